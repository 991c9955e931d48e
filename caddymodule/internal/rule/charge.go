package rule

import "github.com/caddy-throttle/caddy-throttle/leakybucket"

// Limits returns a charge for each limit that a bucket of the zone may have, with its
// debt and its block. The zone's own limit comes first.
func (r *Rule) Limits() (all []leakybucket.Charge) {
	for _, limit := range r.Key.Overrides.Load().Limits() {
		all = append(all, leakybucket.Charge{Limit: limit, Debt: r.Settle.DebtUnder(limit), Block: r.Block})
	}
	if r.Trust != nil {
		all = append(all, leakybucket.Charge{Limit: PlaceLimit(r.Trust)})
	}
	if r.Ranks.LearnsMembers() {
		all = append(all, leakybucket.Charge{Limit: MemberLimit})
	}
	return all
}

// Terms returns on which terms the zone charges a cost to a bucket with this limit, as in
// [leakybucket.Charge].
func (r *Rule) Terms(limit leakybucket.Limit, cost float64) (debt, ceiling float64, probe bool) {
	if r.Delay != nil && r.MaxWait > 0 {
		ceiling = limit.Ceiling(cost, *r.Delay, r.MaxWait)
	}
	return r.Settle.DebtUnder(limit), ceiling, r.Settle != nil && r.Settle.After
}

// Charge returns the charge of a cost to the bucket of a key.
func (r *Rule) Charge(k *Bucket, shadow leakybucket.Shadow, cost float64) leakybucket.Charge {
	c := leakybucket.Charge{Zone: r.Name, Key: k.Name, Shadow: shadow, Limit: k.Limit, Cost: cost, Block: r.Block}
	c.Debt, c.Ceiling, c.Probe = r.Terms(k.Limit, cost)
	if r.Delay != nil {
		c.Undelayed = *r.Delay
	}
	return c
}

// Peek returns a charge that shows the state of a bucket, and pours and begins nothing:
// its cost fits no bucket.
func (r *Rule) Peek(name string, limit leakybucket.Limit, shadow bool) leakybucket.Charge {
	c := r.Charge(&Bucket{Name: name, Limit: limit}, leakybucket.ShadowIf(shadow), -1)
	c.Probe = true
	return c
}
