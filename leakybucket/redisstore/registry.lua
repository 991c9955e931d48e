-- Writes texts and reads all, as store.Registry says. KEYS[1] is a hash: the field ""
-- holds the mark of the last write, and each field of a name "<number> <end> <text>". ARGV is
-- an instant for tests, the mark that the reader has seen, or "" if it only writes, the mark of
-- this write, and four words for each text: name, number, end and text. The reply is the mark of
-- the last write before and after this one, how many texts there are, and then in turn a name
-- and what its field holds. Others may have written anything there: what is no number of ours is 0.

local now = tonumber(ARGV[1])
if not now then
	local t = redis.call('TIME')
	now = t[1] * 1e6 + t[2]
end
local key, seen = KEYS[1], tonumber(ARGV[2])

local function number(text)
	local n = tonumber(string.match(text or '', '^%d+'))
	return n and n < 2^52 and n or 0
end

local before = number(redis.call('HGET', key, ''))
local last = before
for i = 4, #ARGV, 4 do
	local name, fresh = ARGV[i], number(ARGV[i + 1])
	if fresh > number(redis.call('HGET', key, name)) and tonumber(ARGV[i + 2]) > now then
		redis.call('HSET', key, name, ARGV[i + 1] .. ' ' .. ARGV[i + 2] .. ' ' .. ARGV[i + 3])
		last = tonumber(ARGV[3])
	end
end
if last ~= before then
	redis.call('HSET', key, '', ARGV[3])
end

local reply = {string.format('%.0f', before), string.format('%.0f', last), '0'}
if seen and seen ~= last then
	local most, cursor = 3 + 2 * 10000, '0'
	repeat -- ends after 10,000 fields, however many somebody has written
		local page = redis.call('HSCAN', key, cursor, 'COUNT', 1000)
		cursor = page[1]
		for i = 1, #page[2], 2 do
			local name, value = page[2][i], page[2][i + 1]
			local ends = tonumber(string.match(value, '^%d+ (%d+) '))
			if ends and ends <= now then
				redis.call('HDEL', key, name)
			elseif name ~= '' and #reply < most then
				if #name + #value > 4096 + 40 then
					name, value = string.sub(name, 1, 100), ''
				end
				reply[#reply + 1] = name
				reply[#reply + 1] = value
			end
		end
	until cursor == '0' or #reply >= most
	reply[3] = tostring(redis.call('HLEN', key) - redis.call('HEXISTS', key, ''))
end
return reply
