# Answers each line of JSON, a form, with how Rack reads it: the fields as
# nested pairs, or an error.
require 'json'
require 'rack'

def plain(value)
  case value
  when Hash
    # A file is no value of a form.
    return nil if value[:tempfile]
    { 'list' => value.map { |key, inner| [[key.to_s].pack('m0'), plain(inner)] } }
  when Array
    { 'list' => value.each_with_index.map { |inner, index| [[index.to_s].pack('m0'), plain(inner)] } }
  when nil
    nil
  else
    { 'text' => [value.to_s].pack('m0') }
  end
end

$stdout.sync = true
puts Rack.release
$stdin.each_line do |line|
  form = JSON.parse(line)
  options = { method: 'POST', input: form['data'].unpack1('m0') }
  options['CONTENT_TYPE'] = form['type'] unless form['type'].empty?
  env = Rack::MockRequest.env_for('/', options)
  env.delete('CONTENT_TYPE') if form['type'].empty?
  env['HTTP_CONTENT_ENCODING'] = form['encoding']
  begin
    puts JSON.generate(plain(Rack::Request.new(env).POST))
  rescue StandardError
    puts JSON.generate({ 'error' => true })
  end
end
