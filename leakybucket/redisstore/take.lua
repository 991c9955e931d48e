-- Takes requests one after the other, each as leakybucket.TakeAll does. KEYS[i]
-- is the bucket of charge i, ARGV[2i+1] its terms and ARGV[2i+2] its cost,
-- empty for a NaN. The reply has a line for each request: for each charge its
-- flags (1 fits, 2 poured, 4 began a block), level, and the end of its block or
-- 0; or "!", the number of a charge whose bucket cannot be used, and why.

local function fits(room, filled, cost)
	if cost == 0 then
		return filled < room
	end
	return cost > 0 and filled + cost <= room * (1 + 1e-9)
end

-- begin begins a block, as an overflow of a bucket filled to a level does.
local function begin(b, t, filled)
	local last = length(t, b.step)
	if b.blocked ~= 0 and last > 0 and now - b.blocked < last then
		b.step = min(b.step + 1, #t.steps - 1)
	else
		b.step = 0
	end
	last = length(t, b.step)
	if last == 0 then
		last = min(micro(filled / t.leak), micro(t.drain))
	end
	b.blocked, b.written = now + last, t
end

-- judge decides whether a charge fits if all that is asked of its bucket is
-- cost, and begins a block if not. It pours nothing.
local function judge(c, cost)
	local b, t = c.b, c.t
	if b.at > now or b.blocked > now then
		redate(b, t)
	end
	c.level, c.blocked, c.flags = level(b, t), 0, 0
	if t.steps and b.blocked > now then
		c.blocked = b.blocked
	elseif c.cost >= 0 and fits(t.room, c.level, cost) then
		c.flags = 1
	elseif t.steps and c.cost >= 0 and fits(t.capacity, 0, cost) then
		begin(b, t, c.level)
		c.blocked, c.flags = b.blocked, 4
	end
end

-- The first n of charges are those of the request that is taken. The tables are
-- used again for the next one.
local charges, n, fault = {}, 0, nil

-- ask judges all charges of a request, each by the sum of what is asked of its
-- bucket, and pours if all enforced ones fit. A negative cost, which does not
-- fit, makes no room for the others.
local function ask()
	for i = 1, n do
		charges[i].b.sum = 0
	end
	for i = 1, n do
		local c = charges[i]
		if not (c.cost < 0) then
			c.b.sum = c.b.sum + c.cost
		end
	end
	local fit = true
	for i = 1, n do
		local c = charges[i]
		judge(c, c.b.sum)
		fit = fit and (c.flags == 1 or c.t.shadow)
	end
	for i = 1, n do
		local c = charges[i]
		if fit and c.flags == 1 and not c.t.probe then
			c.flags, c.level = 3, level(c.b, c.t)
			pour(c.b, c.t, c.level + c.cost)
		end
	end
end

local function line()
	local words = {}
	for i = 1, n do
		local c = charges[i]
		words[i] = format('%d %.17g %.0f', c.flags, c.level, c.blocked)
	end
	return n == 1 and words[1] or table.concat(words, ' ')
end

for i = 1, #KEYS do
	n = n + 1
	local c = charges[n]
	if not c then
		c = {}
		charges[n] = c
	end
	c.b, c.t, c.cost = bucket(KEYS[i]), terms(ARGV[2 * i + 1]), tonumber(ARGV[2 * i + 2]) or nan
	fault = fault or c.b.fault and format('!%d %s', n, c.b.fault)
	if c.t.last then
		if not fault then
			ask()
		end
		reply[#reply + 1] = fault or line()
		n, fault = 0, nil
	end
end
write()
return table.concat(reply, '\n')
