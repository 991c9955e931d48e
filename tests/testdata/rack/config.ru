# An application that does what a test asks for. What a request cost it says in
# x-cost, as many units as ?cost= says.
require 'digest'
require 'json'
require 'rack'
require 'uri'

# Sends a byte and breaks off.
class Broken
  def each
    yield 'x'
    raise 'broken off, as a test asked for'
  end
end

# Sends a byte every few milliseconds until nobody listens.
class Endless
  def each
    loop do
      yield 'x'
      sleep 0.005
    end
  end
end

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
  asked = URI.decode_www_form(env['QUERY_STRING']).to_h
  headers = { 'content-type' => 'text/plain' }
  headers['x-cost'] = asked['cost'] if asked['cost']
  case env['PATH_INFO']
  when '/slow' # long enough to be in flight when Caddy reloads
    sleep asked.fetch('for', '30').to_f / 1000
  when '/broken'
    return [200, headers, Broken.new]
  when '/endless'
    return [200, headers, Endless.new]
  when '/fields'
    return [200, headers.merge('x-sees' => sees(env)), []]
  when '/import'
    return [200, headers, [Digest::SHA256.hexdigest(env['rack.input'].read)]]
  when '/users/sign_in' # like Devise
    form = URI.decode_www_form(env['rack.input'].read).to_h
    return [422, headers, ["try again\n"]] unless form['user[password]'] == 'right'

    return [303, headers.merge('location' => '/'), []]
  end
  [200, headers, ["executed: rack\nPATH_INFO: #{env['PATH_INFO']}\n"]]
}
