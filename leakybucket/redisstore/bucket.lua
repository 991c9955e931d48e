-- What take.lua and settle.lua share: a port of leakybucket/bucket.go and
-- block.go. It stands before each of them.
--
-- ARGV[1] is repeated in the reply, so that a reply can be told from one to
-- another call. ARGV[2] is the time in microseconds, used by tests; empty, it
-- is the server's.
--
-- A bucket is a string, "level at" or "level at blocked_until step", instants
-- in microseconds since 1970. Numbers leave Lua by string.format only: tostring
-- would round them to 14 digits. Microseconds fit a double exactly until 2255.

local format, match, ceil, max, min = string.format, string.match, math.ceil, math.max, math.min

local nan = 0 / 0
local century = 100 * 365 * 24 * 3600 -- in seconds

-- How long a bucket is kept after it may be forgotten, in milliseconds: for
-- tests that hold ARGV[2], and for a replica whose clock is ahead.
local margin = 10000

local now = tonumber(ARGV[2])
if not now then
	local time = redis.call('TIME')
	now = time[1] * 1000000 + time[2]
end

local reply = { format('%s %.0f', ARGV[1], now) }

-- terms parses what charges have in common: "<flags> <capacity> <leak> <debt>
-- <ceiling> <step>...". The flags are b for a block, whose steps follow in
-- microseconds, p for a probe, s for shadow, and l for the last charge of a
-- request. Most charges of one call have the same terms.
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
		capacity = tonumber(words[2]), leak = tonumber(words[3]), debt = tonumber(words[4]),
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

-- bucket returns the bucket of a key. Each is read once in a call, and written
-- once at its end. One that cannot be understood has a fault.
local buckets, order = {}, {}
local function bucket(key)
	local b = buckets[key]
	if b then
		return b
	end
	b = { key = key, level = 0, at = 0, blocked = 0, step = 0 }
	local value = redis.pcall('GET', key)
	if type(value) == 'table' then
		b.fault = value.err or 'no error'
	elseif value then
		b.kept = true
		local level, at, rest = match(value, '^(%S+) (%d+)(.*)$')
		b.level, b.at = tonumber(level), tonumber(at)
		if rest and rest ~= '' then
			local blocked, step = match(rest, '^ (%d+) (%d+)$')
			b.blocked, b.step = tonumber(blocked), tonumber(step)
		end
		if not (b.level and b.level >= 0 and b.level < 1e300 and b.at and b.blocked and b.step) then
			b.fault = 'it holds no bucket'
		end
	end
	buckets[key] = b
	order[#order + 1] = b
	return b
end

local function level(b, t)
	if now <= b.at then
		return b.level
	end
	return max(0, b.level - t.leak * ((now - b.at) / 1e6))
end

local function pour(b, t, filled)
	b.level, b.at, b.written = filled, max(b.at, now), t
end

-- length returns how long a block of a step lasts, or 0 if that is not given.
local function length(t, step)
	local n = #t.steps
	if n == 0 then
		return 0
	end
	return t.steps[min(step, n - 1) + 1]
end

-- redate makes a bucket one of now that a clock, since set back, has left
-- further ahead than anything that is still true.
local function redate(b, t)
	if b.at > now and (b.at - now) / 1e6 > t.drain then
		b.at, b.written = now, t
	end
	if t.steps and b.blocked > now then
		local longest = length(t, b.step)
		if longest == 0 then
			longest = micro(t.drain)
		end
		if b.blocked - now > longest then
			b.blocked, b.step, b.written = 0, 0, t
		end
	end
end

-- forget returns the instant after which a bucket may be forgotten.
local function forget(b, t)
	local empty = b.at + micro(b.level / t.leak)
	if t.steps and b.blocked ~= 0 then
		return max(empty, b.blocked + length(t, b.step))
	end
	return empty
end

-- write writes the buckets that have changed. One that may be forgotten is an
-- absent key. The first write fails if the server is full, and then none is
-- made: Redis refuses a script no memory once it has begun to write.
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
					value = format('%.17g %.0f', b.level, b.at)
				else
					value = format('%.17g %.0f %.0f %d', b.level, b.at, b.blocked, b.step)
				end
				redis.call('SET', b.key, value, 'PX', format('%.0f', ceil(left / 1000) + margin))
			end
		end
	end
end
