# An application that does what a test asks for. What a request cost it says in
# x-cost, as many units as ?cost= says.
require 'digest'
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
  when '/import'
    return [200, headers, [Digest::SHA256.hexdigest(env['rack.input'].read)]]
  when '/users/sign_in' # like Devise
    form = URI.decode_www_form(env['rack.input'].read).to_h
    return [422, headers, ["try again\n"]] unless form['user[password]'] == 'right'

    return [303, headers.merge('location' => '/'), []]
  end
  [200, headers, ["executed: rack\nPATH_INFO: #{env['PATH_INFO']}\n"]]
}
