-- Settles charges one after the other, each as leakybucket.Settlement.Apply
-- does. KEYS[i] is the bucket of charge i, ARGV[2i+1] its terms and ARGV[2i+2]
-- "<diff> <level> <level with it> <at>": the levels before and after the charge was
-- poured, and the instant of the decision. A diff of "cancel" gives all back. The
-- reply has a line for each request. It is empty, or "!", the number of a charge
-- whose bucket cannot be used, and the reason.

local function settle(b, t, diff, was, with, at)
	if diff == 'cancel' then
		if b.at == at and b.level == with then
			b.level = was
			pour(b, t, level(b))
		end
		return
	end
	diff = tonumber(diff)
	local filled = level(b)
	if diff > 0 then
		pour(b, t, max(filled, min(filled + diff, t.capacity + t.debt)))
	elseif diff < 0 then
		local back = -diff - t.leak * (max(0, now - at) / 1e6)
		pour(b, t, max(0, filled - max(0, back)))
	end
end

local count, fault = 0, nil
for i = 1, #KEYS do
	local b, t = bucket(KEYS[i]), terms(ARGV[2 * i + 1])
	local diff, was, with, at = match(ARGV[2 * i + 2], '^(%S+) (%S+) (%S+) (%S+)$')
	count = count + 1
	fault = fault or b.fault and format('!%d %s', count, b.fault)
	-- A missing bucket is made for a pour, not to give back.
	if not b.fault and (b.kept or b.written or (tonumber(diff) or 0) > 0) then
		redate(b, t)
		settle(b, t, diff, tonumber(was), tonumber(with), tonumber(at))
	end
	if t.last then
		reply[#reply + 1] = fault or ''
		count, fault = 0, nil
	end
end
write()
return table.concat(reply, '\n')
