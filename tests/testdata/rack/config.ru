# /slow takes long enough to be in flight when Caddy reloads.
run lambda { |env|
  sleep 0.03 if env['PATH_INFO'] == '/slow'
  [200, { 'content-type' => 'text/plain' }, ["executed: rack\nPATH_INFO: #{env['PATH_INFO']}\n"]]
}
