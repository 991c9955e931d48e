-- Writes posts to the board and reads it, as leakybucket.Board says. KEYS[1] is a hash: the
-- field "" holds the highest version, "~" the beats, and each "=<name>" a post as
-- "<version> <text>". ARGV is an instant for tests, the version that was read last, a node
-- and its beat, and four words for each post: name, version, version to replace, text. The
-- reply is the highest version, then names and posts in turn, then nodes, the
-- microseconds since, and beats.

local now = tonumber(ARGV[1])
if not now then
	local t = redis.call('TIME')
	now = t[1] * 1e6 + t[2]
end
local board, after = KEYS[1], tonumber(ARGV[2])
local latest = tonumber(redis.call('HGET', board, '') or 0)

for i = 5, #ARGV, 4 do
	local field, version, text = '=' .. ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 3]
	local has = tonumber(string.match(redis.call('HGET', board, field) or '0', '^%d+'))
	if version > latest and has == tonumber(ARGV[i + 2]) then
		latest = version
		if text == '' then
			redis.call('HDEL', board, field)
		else
			redis.call('HSET', board, field, ARGV[i + 1] .. ' ' .. text)
		end
		redis.call('HSET', board, '', ARGV[i + 1])
	end
end

local beats = cjson.decode(redis.call('HGET', board, '~') or '{}')
local others = {}
for node, beat in pairs(beats) do
	local age = now - tonumber(beat[1])
	if age > 60e6 or age < -60e6 then
		beats[node] = nil
	elseif node ~= ARGV[3] then
		others[#others + 1] = {node, string.format('%.0f', math.max(age, 0)), beat[2]}
	end
end
if ARGV[3] ~= '' then
	beats[ARGV[3]] = {string.format('%.0f', now), ARGV[4]}
	redis.call('HSET', board, '~', cjson.encode(beats))
end

local posts = {}
if latest > after then
	local all = redis.call('HGETALL', board)
	for i = 1, #all, 2 do
		local version = string.sub(all[i], 1, 1) == '=' and tonumber(string.match(all[i + 1], '^%d+'))
		if version and version > after then
			posts[#posts + 1] = string.sub(all[i], 2)
			posts[#posts + 1] = all[i + 1]
		end
	end
end
return {string.format('%.0f', latest), posts, others}
