package store

import "github.com/caddy-throttle/caddy-throttle/leakybucket"

// TakeAll is [leakybucket.Charge.Take] for several buckets at once, all or none.
//
// Before the call states[i] is the bucket of charges[i] as it was read. After it
// states[i] is the bucket as it must be written, if that differs. It may differ
// without a pour. If several charges name the same bucket, the last of them
// holds its final state.
func TakeAll(charges []leakybucket.Charge, states []leakybucket.State, now leakybucket.Instant, decisions []leakybucket.Decision) {
	for i := range charges {
		c := &charges[i]
		carry(charges, states, i)
		c.Judge(&states[i], costOfBucket(charges, c), now, &decisions[i])
	}
	enforced, all := Fit(charges, decisions)
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		if !enforced || c.Shadow && !all {
			continue
		}
		carry(charges, states, i)
		if !c.Probe {
			s := &states[i]
			d.Poured, d.Level = true, c.Limit.Level(*s, now)
			s.Level, s.At, s.Leak = d.Level+c.Cost, max(s.At, now), c.Limit.Leak
		}
	}
}

// Fit reports whether all enforced charges of a take fit, by their decisions, and whether all
// of its charges do. A store pours enforced charges if the former is true, and shadow charges
// if the latter is.
func Fit(charges []leakybucket.Charge, decisions []leakybucket.Decision) (enforced, all bool) {
	enforced, all = true, true
	for i := range charges {
		if !decisions[i].Fits {
			enforced, all = enforced && charges[i].Shadow, false
		}
	}
	return enforced, all
}

// carry lets the i-th charge find its bucket as an earlier one left it.
func carry(charges []leakybucket.Charge, states []leakybucket.State, i int) {
	for j := range i {
		if SameBucket(&charges[i], &charges[j]) {
			states[i] = states[j]
		}
	}
}

// costOfBucket returns what all charges together ask of the bucket of c. A
// negative cost, which does not fit, makes no room for the others.
func costOfBucket(charges []leakybucket.Charge, c *leakybucket.Charge) float64 {
	sum := 0.0
	for i := range charges {
		if SameBucket(c, &charges[i]) {
			sum += max(0, charges[i].Cost)
		}
	}
	return sum
}

// SameBucket reports whether two charges name the same bucket.
func SameBucket(a, b *leakybucket.Charge) bool {
	return a == b || a.Zone == b.Zone && a.Key == b.Key && a.Shadow == b.Shadow
}
