package rule

import "github.com/caddy-throttle/caddy-throttle/leakybucket"

// Limits returns a charge for each limit that a bucket of the zone may have, with its
// debt and its block. The zone's own limit comes first.
func (r *Rule) Limits() (all []leakybucket.Charge) {
	for _, limit := range r.Key.Overrides.Load().Limits() {
		all = append(all, leakybucket.Charge{Limit: limit, Debt: r.debt(limit), Block: r.Block})
	}
	if r.Trust != nil {
		all = append(all, leakybucket.Charge{Limit: PlaceLimit(r.Trust)})
	}
	if r.Ranks.LearnsMembers() {
		all = append(all, leakybucket.Charge{Limit: MemberLimit})
	}
	return all
}

// Charge makes c, which must be zero, the charge of a cost to the bucket of a key.
func (r *Rule) Charge(c *leakybucket.Charge, k *Bucket, shadow leakybucket.Shadow, cost float64) {
	// Field by field, that is cheaper than a copy.
	c.Zone, c.Key, c.Shadow = r.Name, k.Name, shadow
	c.Limit, c.Cost, c.Debt, c.Block = k.Limit, cost, r.debt(k.Limit), r.Block
	c.Probe = r.Settle != nil && r.Settle.After
	if r.Delay != nil {
		c.Undelayed = *r.Delay
		if r.MaxWait > 0 {
			c.Ceiling = k.Limit.Ceiling(cost, *r.Delay, r.MaxWait)
		}
	}
}

// Peek returns a charge that shows the state of a bucket, and pours and begins nothing:
// its cost fits no bucket.
func (r *Rule) Peek(name string, limit leakybucket.Limit, shadow bool) leakybucket.Charge {
	var c leakybucket.Charge
	r.Charge(&c, &Bucket{Name: name, Limit: limit}, leakybucket.ShadowIf(shadow), -1)
	c.Probe = true
	return c
}
