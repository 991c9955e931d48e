-- The part that take.lua and settle.lua share: a port of State, Ladder and their
-- arithmetic in package leakybucket. It is put before each of them.
--
-- ARGV[1] is repeated in the reply, so that a reply can be matched to its call.
-- ARGV[2] is the time in microseconds, and is set by tests only. If empty, it is
-- the server's time.
--
-- A bucket is a string, "level at leak" or "level at leak blocked_until step",
-- with instants in microseconds since 1970. Numbers leave Lua by string.format
-- only: tostring would round them to 14 digits. Microseconds fit a double exactly
-- until 2255.

local format, match, ceil, max, min = string.format, string.match, math.ceil, math.max, math.min

local nan = 0 / 0
local century = 100 * 365 * 24 * 3600 -- in seconds

-- How long a bucket is kept after it may be forgotten, in milliseconds. Tests
-- that hold the clock need it, and replicas whose clock is ahead.
local margin = 10000

local now = tonumber(ARGV[2])
if not now then
	local time = redis.call('TIME')
	now = time[1] * 1000000 + time[2]
end

local reply = { format('%s %.0f', ARGV[1], now) }

-- terms parses the part of a charge that many charges have in common: "<flags>
-- <capacity> <leak> <debt> <ceiling> <step>...". The flags are b for a block,
-- whose steps follow in microseconds, p for a probe, s for shadow, and l for the
-- last charge of a request.
local parsed = {}
local function terms(text)
	local t = parsed[text]
	if t then
		return t
	end
	local words = {}
	for word in string.gmatch(text, '%S+') do
		words[#words + 1] = word
	end
	local flags = words[1]
	t = {
		probe = match(flags, 'p'), shadow = match(flags, 's'), last = match(flags, 'l'),
		capacity = tonumber(words[2]), leak = tonumber(words[3]), leak_text = words[3], debt = tonumber(words[4]),
	}
	t.room = t.capacity
	local ceiling = tonumber(words[5])
	if ceiling > 0 and ceiling < t.capacity then
		t.room = ceiling
	end
	t.drain = (t.capacity + t.debt) / t.leak
	if match(flags, 'b') then
		t.steps = {}
		for i = 6, #words do
			t.steps[i - 5] = tonumber(words[i])
		end
	end
	parsed[text] = t
	return t
end

-- micro rounds seconds up to microseconds.
local function micro(seconds)
	if seconds <= century then
		return ceil(seconds * 1e6)
	end
	return century * 1e6
end

-- parse reads a bucket from its string, and leaves its level nil if it is none.
-- The text of the leak is kept, since it is written again as it is.
local function parse(b, value)
	local level, at, leak = match(value, '^(%S+) (%d+) (%S+)$')
	local blocked, step
	if not level then
		level, at, leak, blocked, step = match(value, '^(%S+) (%d+) (%S+) (%d+) (%d+)$')
	end
	b.level, b.at, b.leak, b.leak_text = tonumber(level), tonumber(at), tonumber(leak), leak
	if blocked then
		b.blocked, b.step = tonumber(blocked), tonumber(step)
	end
end

-- bucket returns the bucket of a key. It is read once in a call, and written once
-- at the end. A bucket that cannot be used has a fault.
local buckets, order = {}, {}
local function bucket(key)
	local b = buckets[key]
	if b then
		return b
	end
	b = { key = key, level = 0, at = 0, leak = 0, leak_text = '0', blocked = 0, step = 0 }
	local value = redis.pcall('GET', key)
	if type(value) == 'table' then
		if not match(value.err or '', 'WRONGTYPE') then
			redis.call('GET', key) -- fails the call: it is no fault of this key that the user may not read
		end
		b.fault = value.err or 'no error'
	elseif value then
		b.kept = true
		parse(b, value)
		if not (b.level and b.level >= 0 and b.level < 1e300 and b.leak and b.leak < 1e300 and (b.leak > 0 or b.leak == 0 and b.level == 0) and b.step < 256) then
			b.fault = 'it holds no bucket'
		end
	end
	buckets[key] = b
	order[#order + 1] = b
	return b
end

local function level(b)
	if now <= b.at then
		return b.level
	end
	return max(0, b.level - b.leak * ((now - b.at) / 1e6))
end

-- pour sets the level as of now. From then on the bucket drains by the leak of
-- the charge.
local function pour(b, t, filled)
	b.level, b.at, b.leak, b.leak_text, b.written = filled, max(b.at, now), t.leak, t.leak_text, t
end

-- length returns how long a block of a step lasts, or 0 if the ladder has no
-- steps.
local function length(t, step)
	local n = #t.steps
	if n == 0 then
		return 0
	end
	return t.steps[min(step, n - 1) + 1]
end

-- redate dates a bucket as of now if a clock, since set back, left it further
-- ahead than anything that can still be true.
local function redate(b, t)
	if b.at > now and (b.at - now) / 1e6 > max(1, t.drain) then
		b.at, b.written = now, t
	end
	if t.steps and b.blocked > now then
		local longest = length(t, b.step)
		if longest == 0 then
			longest = micro(t.drain)
		end
		if b.blocked - now - 1e6 > longest then
			b.blocked, b.step, b.written = 0, 0, t
		end
	end
end

-- forget returns the instant after which a bucket may be forgotten.
local function forget(b, t)
	local empty = b.at
	if b.level > 0 then
		empty = b.at + micro(b.level / b.leak)
	end
	if t.steps and b.blocked ~= 0 then
		return max(empty, b.blocked + length(t, b.step))
	end
	return empty
end

-- write writes the buckets that have changed, and deletes those that may be
-- forgotten. On a full server the first write fails and none is made: Redis
-- refuses a script no memory once it has begun to write.
local function write()
	for i = 1, #order do
		local b = order[i]
		local t = b.written
		if t then
			local left = forget(b, t) - now
			if left <= 0 then
				if b.kept then
					redis.call('DEL', b.key)
				end
			else
				local value
				if b.blocked == 0 then
					value = format('%.17g %.0f %s', b.level, b.at, b.leak_text)
				else
					value = format('%.17g %.0f %s %.0f %d', b.level, b.at, b.leak_text, b.blocked, b.step)
				end
				redis.call('SET', b.key, value, 'PX', format('%.0f', ceil(left / 1000) + margin))
			end
		end
	end
end
