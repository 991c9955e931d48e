# An application like Devise.
require 'uri'

run lambda { |env|
  headers = { 'content-type' => 'text/plain' }
  case env['PATH_INFO']
  when '/users/sign_in' # like Devise
    form = URI.decode_www_form(env['rack.input'].read).to_h
    return [422, headers, ["try again\n"]] unless form['user[password]'] == 'right'

    return [303, headers.merge('location' => '/'), []]
  when '/account/twofa' # like Redmine after the second step
    return [302, headers.merge('location' => '/', 'set-cookie' => 'autologin=token'), []]
  end
  [200, headers, ["executed: rack\nPATH_INFO: #{env['PATH_INFO']}\n"]]
}
