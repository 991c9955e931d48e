-- Makes one step of a listing. KEYS[1] is the prefix, which finds the server in a cluster. ARGV is
-- an instant for tests, and the cursor, the pattern and the count of a SCAN. The reply is the next
-- cursor, the time, and then in turn a key and what it holds. Keys that hold no string are left out.

local now = tonumber(ARGV[1])
if not now then
	local t = redis.call('TIME')
	now = t[1] * 1e6 + t[2]
end
local page = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
local reply = {page[1], string.format('%.0f', now)}
for _, key in ipairs(page[2]) do
	local value = redis.pcall('GET', key)
	if type(value) == 'string' then
		reply[#reply + 1] = key
		reply[#reply + 1] = value
	end
end
return reply
