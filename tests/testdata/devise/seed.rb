require_relative 'config/application'
Shop.initialize!
ActiveRecord::Schema.define do
  create_table :users do |t|
    t.string :email
    t.string :encrypted_password
    t.datetime :remember_created_at
  end
end
User.create!(id: 7, email: 'alice@example.com', password: 'right')
