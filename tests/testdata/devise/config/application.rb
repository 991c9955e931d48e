# A small Rails application with Devise, from Debian's packages.
ENV['RAILS_ENV'] = 'production'
ENV['DATABASE_URL'] = "sqlite3:#{File.dirname(__dir__)}/shop.sqlite?timeout=10000"
require 'rails'
require 'active_record/railtie'
require 'action_controller/railtie'
require 'action_mailer/railtie'
require 'devise'
require 'devise/orm/active_record'

class Shop < Rails::Application
  config.load_defaults 6.1
  config.root = File.dirname(__dir__)
  config.eager_load = true
  config.secret_key_base = '0123456789abcdef' * 8
  config.session_store :cookie_store, key: '_shop_session'
  config.log_level = :warn
  config.logger = Logger.new($stdout)
end

Devise.setup do |config|
  config.stretches = 1 # of a digest that nobody attacks
end
