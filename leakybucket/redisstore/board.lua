-- Writes posts to the board and reads it, as leakybucket.Board says. KEYS[1] is a hash: the
-- field "" holds the highest version, "~" the beats, and each "=<name>" a post as
-- "<version> <text>". ARGV is an instant for tests, the version that was read last, a node
-- and its beat, and four words for each post: name, version, version to replace, text. The
-- reply is the highest version, and then in turn the field of a post with its version and
-- text, or "~" and a node with the microseconds since its beat and the beat. Others may have written anything there: what is no version
-- of ours is 0, of a post 1.

local now = tonumber(ARGV[1])
if not now then
	local t = redis.call('TIME')
	now = t[1] * 1e6 + t[2]
end
local board, after = KEYS[1], tonumber(ARGV[2])

local function version(text, none)
	local v = tonumber(string.match(text or '', '^%d+'))
	return v and v > 0 and v < 2^53 and v or text and none or 0
end

local latest = version(redis.call('HGET', board, ''), 0)

for i = 5, #ARGV, 4 do
	local field, fresh, text = '=' .. ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 3]
	local has = version(redis.call('HGET', board, field), 1)
	if fresh > latest and has == tonumber(ARGV[i + 2]) then
		latest = fresh
		if text == '' then
			redis.call('HDEL', board, field)
		else
			redis.call('HSET', board, field, ARGV[i + 1] .. ' ' .. text)
		end
		redis.call('HSET', board, '', ARGV[i + 1])
	end
end

local ours, beats = pcall(cjson.decode, redis.call('HGET', board, '~') or '{}')
if not ours or type(beats) ~= 'table' then
	beats = {}
end
local reply = {string.format('%.0f', latest)}
local function add(field, number, text)
	local n = #reply
	reply[n + 1], reply[n + 2], reply[n + 3] = field, string.format('%.0f', number), text
end
for node, beat in pairs(beats) do
	local at = type(beat) == 'table' and tonumber(beat[1])
	local age = at and now - at
	if not at or type(beat[2]) ~= 'string' or math.abs(age) > 60e6 then
		beats[node] = nil
	elseif node ~= ARGV[3] then
		add('~' .. node, math.max(age, 0), beat[2])
	end
end
if ARGV[3] ~= '' then
	beats[ARGV[3]] = {string.format('%.0f', now), ARGV[4]}
	redis.call('HSET', board, '~', cjson.encode(beats))
end

if latest > after then
	local all = redis.call('HGETALL', board)
	for i = 1, #all, 2 do
		local has = version(all[i + 1], 1)
		if string.sub(all[i], 1, 1) == '=' and has > after then
			add(all[i], has, string.match(all[i + 1], '^%d+ (.*)') or all[i + 1])
		end
	end
end
return reply
