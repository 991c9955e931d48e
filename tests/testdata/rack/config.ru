# An application like Devise.
require 'json'
require 'rack'
require 'uri'

# What Rack sees of passwords and users, as testdata/php/fields.php says it of PHP.
def sees(env)
  request = Rack::Request.new(env)
  json = begin
    JSON.parse(env['rack.input'].read.tap { env['rack.input'].rewind })
  rescue StandardError
    {}
  end
  tables = [-> { request.GET }, -> { request.POST }, -> { json }].map do |table|
    table.call
  rescue StandardError
    {} # it is answered with an error
  end
  sees = { passwords: 0, users: [], zone: env['HTTP_X_ZONE'].to_s, key: env['HTTP_X_KEY'].to_s }
  tables.grep(Hash).each do |table|
    user = table['user'].is_a?(Hash) ? table['user'] : {}
    sees[:passwords] += [table['pwd'], user['password']].compact.size
    next if table['log'].nil?

    sees[:users] << ([String, Integer, Float].any? { |kind| table['log'].is_a?(kind) } ? [table['log'].to_s].pack('m0') : nil)
  end
  JSON.generate(sees)
end

run lambda { |env|
  headers = { 'content-type' => 'text/plain' }
  case env['PATH_INFO']
  when '/fields'
    return [200, headers.merge('x-sees' => sees(env)), []]
  when '/users/sign_in' # like Devise
    form = URI.decode_www_form(env['rack.input'].read).to_h
    return [422, headers, ["try again\n"]] unless form['user[password]'] == 'right'

    return [303, headers.merge('location' => '/'), []]
  when '/account/twofa' # like Redmine after the second step
    return [302, headers.merge('location' => '/', 'set-cookie' => 'autologin=token'), []]
  end
  [200, headers, ["executed: rack\nPATH_INFO: #{env['PATH_INFO']}\n"]]
}
