# Answers each line of JSON, a request, with how Rack reads it: the query, the form, and
# the body as JSON.
require 'json'
require 'rack'

# nothing is what a name without a value has.
def plain(value, nothing)
  case value
  when nil
    nothing
  when Hash
    return { 'other' => true } if value[:tempfile] # a file
    { 'list' => value.map { |key, inner| [[key.to_s].pack('m0'), plain(inner, nothing)] } }
  when Array
    { 'list' => value.each_with_index.map { |inner, index| [[index.to_s].pack('m0'), plain(inner, nothing)] } }
  when String, Integer
    { 'text' => [value.to_s].pack('m0') }
  else
    { 'other' => true }
  end
end

def seen(nothing = { 'text' => '' })
  value = yield
  plain(value.is_a?(Hash) || value.is_a?(Array) ? value : {}, nothing)
rescue StandardError
  plain({}, nothing) # it is answered with an error
end

$stdout.sync = true
puts Rack.release
$stdin.each_line do |line|
  asked = JSON.parse(line)
  body = asked['body'].to_s.unpack1('m0')
  options = { method: 'POST', input: body }
  options['CONTENT_TYPE'] = asked['type'] unless asked['type'].empty?
  env = Rack::MockRequest.env_for('/', options)
  env.delete('CONTENT_TYPE') if asked['type'].empty?
  env['QUERY_STRING'] = asked['query'].to_s.unpack1('m0')
  request = Rack::Request.new(env)
  json = body.dup.force_encoding('UTF-8')
  puts JSON.generate([seen { request.GET }, seen { request.POST }, seen({ 'other' => true }) { JSON.parse(json) }], max_nesting: 0)
end
