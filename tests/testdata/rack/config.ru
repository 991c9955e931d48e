require 'digest'
require 'rack'

# A body that breaks off, as when a worker is killed.
class Broken
  def each
    yield 'x' * 1000
    raise IOError, 'broken off on purpose'
  end
end

# /slow takes long enough to be in flight when Caddy reloads or a client leaves.
# /users/sign_in answers as Devise does. /digest says what it was sent.
run lambda { |env|
  request = Rack::Request.new(env)
  case request.path_info
  when '/slow'
    sleep 0.03
  when '/users/sign_in'
    good = request.post? && request.POST.dig('user', 'password') == 'right'
    next [good ? 303 : 422, { 'content-type' => 'text/plain', 'location' => '/' }, ["executed: sign_in\n"]]
  when '/digest'
    next [200, { 'content-type' => 'text/plain' }, [Digest::SHA256.hexdigest(request.body&.read.to_s)]]
  when '/broken'
    next [200, { 'content-type' => 'text/plain' }, Broken.new]
  end
  [200, { 'content-type' => 'text/plain' }, ["executed: rack\nPATH_INFO: #{env['PATH_INFO']}\n"]]
}
