require_relative 'config/application'
run Shop.initialize!
