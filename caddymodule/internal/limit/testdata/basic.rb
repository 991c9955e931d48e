# Answers each header, a line in base64, with the user that Rails reads from it:
# has_basic_credentials? and user_name_and_password of
# ActionController::HttpAuthentication::Basic. Without a colon there is no password to
# try.
$stdout.sync = true
while (line = gets)
  header = line.unpack1('m')
  scheme, parameter = header.split(' ', 2)
  user = nil
  if scheme.to_s.downcase == 'basic'
    user, password = (parameter || '').unpack1('m').split(':', 2)
    user = nil if password.nil?
  end
  puts [user.to_s].pack('m0')
end
