-- Takes requests one after the other, each as store.TakeAll does. KEYS[i]
-- is the bucket of charge i, ARGV[2i+1] its terms and ARGV[2i+2] its cost, which
-- is empty for a NaN. The reply has a line for each request: for each charge its
-- flags, its level, and the end of the block that runs or 0. The flags are the
-- sum of 1 (fits), 2 (poured), 4 (began a block) and 8 times the step of that
-- block. If a bucket of the request cannot be used, the line is "!", the number
-- of the charge, and the reason.

local function fits(room, filled, cost)
	if cost == 0 then
		return filled < room
	end
	return cost > 0 and filled + cost <= room * (1 + 1e-9)
end

-- begin begins a block of a bucket that is filled to a level, which a charge
-- has overflowed.
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
	b.blocked = now + last
	pour(b, t, filled)
end

-- judge decides whether a charge fits when its bucket is asked for cost in all,
-- and begins a block if not. It pours nothing.
local function judge(c, cost)
	local b, t = c.b, c.t
	if b.at > now or b.blocked > now then
		redate(b, t)
	end
	c.level, c.blocked, c.flags = level(b), 0, 0
	if b.leak ~= t.leak and c.level > 0 then
		pour(b, t, c.level) -- bring it up to date: it was written with another leak
	end
	if t.steps and b.blocked > now then
		c.blocked, c.flags = b.blocked, 8 * b.step
	elseif c.cost >= 0 and fits(t.room, c.level, cost) then
		c.flags = 1
	elseif t.steps and c.cost >= 0 and fits(t.capacity, 0, cost) then
		begin(b, t, c.level)
		c.blocked, c.flags = b.blocked, 4 + 8 * b.step
	end
end

-- The first n of charges are those of the current request. Their tables are
-- reused for the next one.
local charges, n, fault = {}, 0, nil

-- ask judges all charges of a request, each by the sum of the costs asked of its
-- bucket. It pours the enforced ones if all of them fit, and those of shadow if
-- all charges do. A negative cost does not fit, and makes no room for others.
local function ask()
	if n == 1 then -- the same, faster
		local c = charges[1]
		judge(c, c.cost)
		if c.flags == 1 and not c.t.probe then
			c.flags = 3
			pour(c.b, c.t, c.level + c.cost)
		end
		return
	end
	for i = 1, n do
		charges[i].b.sum = 0
	end
	for i = 1, n do
		local c = charges[i]
		if not (c.cost < 0) then
			c.b.sum = c.b.sum + c.cost
		end
	end
	local enforced, all = true, true
	for i = 1, n do
		local c = charges[i]
		judge(c, c.b.sum)
		if c.flags ~= 1 then
			enforced, all = enforced and c.t.shadow, false
		end
	end
	for i = 1, n do
		local c = charges[i]
		if enforced and (all or not c.t.shadow) and not c.t.probe then
			c.flags, c.level = 3, level(c.b)
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
