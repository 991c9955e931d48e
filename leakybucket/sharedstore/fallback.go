package sharedstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Policy is the fallback of a zone when the shared store does not answer.
type Policy uint8

const (
	// Local charges buckets of this node's own, with this node's share of the
	// limit.
	Local Policy = iota

	// Allow lets every request pass.
	Allow

	// Deny refuses every request.
	Deny
)

var policyNames = [...]string{Local: "local", Allow: "allow", Deny: "deny"}

// ParsePolicy returns the policy of a name: local, allow or deny.
func ParsePolicy(name string) (Policy, error) {
	i := slices.Index(policyNames[:], name)
	if i < 0 {
		return 0, fmt.Errorf("invalid policy %q: want local, allow or deny", name)
	}
	return Policy(i), nil
}

// String returns the name that ParsePolicy takes.
func (p Policy) String() string { return policyNames[p] }

// The kinds of Origin: none is the remote store's. Above them stands the instant of the
// charge, in microseconds since the backend was made.
const (
	originLocal = 1
	originNoted = 2 // with originLocal: the ledger has the charge
	originShift = 2
)

// FellBack reports whether a decision was made without the shared store, by any
// policy.
func FellBack(d *leakybucket.Decision) bool {
	return d.Undecided || d.Origin&originLocal != 0
}

// origin returns the Origin of a decision that is made now.
func (b *Backend) origin(kind uint64, now time.Time) uint64 {
	return uint64(now.Sub(b.base).Microseconds())<<originShift | kind
}

// age returns for how many seconds a charge has been leaking.
func (b *Backend) age(origin uint64, now time.Time) float64 {
	charged := b.base.Add(time.Duration(origin>>originShift) * time.Microsecond)
	return max(0, now.Sub(charged).Seconds())
}

// fallBack decides by the zones' policies, and leaves the charges of zones with
// the policy Local as this node's share. If doubtful, the shared store may have
// poured them or may still do so.
func (s *Store) fallBack(charges []leakybucket.Charge, decisions []leakybucket.Decision, doubtful bool) error {
	locals, watched := 0, s.blocks(charges)
	var wholes []leakybucket.Charge // of all shares, if the request may be blocked
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		*d = leakybucket.Decision{Undecided: true}
		policy := s.zone(c.Zone).Policy
		d.Fits = policy != Deny // as far as is known before this node's buckets are asked
		if policy == Local {
			whole := *c
			s.share(c)
			s.open(&whole, c, watched)
			locals++
			if watched {
				wholes = append(wholes, whole)
			}
		}
	}
	switch {
	case locals == 0:
		return nil
	case locals == len(charges) && !watched:
		return s.takeLocally(charges, decisions, doubtful)
	}
	asked, answers := make([]leakybucket.Charge, 0, locals), make([]leakybucket.Decision, locals)
	for i := range charges {
		if s.zone(charges[i].Zone).Policy == Local {
			c := charges[i]
			c.Probe = c.Probe || !leakybucket.FitTogether(charges, decisions, c.Shadow)
			asked = append(asked, c)
		}
	}
	judged := s.judgeWhole(wholes, asked)
	if err := s.takeLocally(asked, answers, doubtful); err != nil {
		return err
	}
	next := 0
	for i := range charges {
		if s.zone(charges[i].Zone).Policy == Local {
			decisions[i] = answers[next]
			if watched {
				s.heedWhole(&decisions[i], &wholes[next], &judged[next])
			}
			next++
		}
	}
	return nil
}

// takeLocally takes shares of charges in this node's own buckets, and enters the
// poured amounts into the ledger.
func (s *Store) takeLocally(charges []leakybucket.Charge, decisions []leakybucket.Decision, doubtful bool) error {
	b, now := s.backend, time.Now()
	if err := b.local.Take(context.Background(), charges, decisions); err != nil {
		return err
	}
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		d.Origin = b.origin(originLocal, now)
		if d.Began {
			s.block(c, d) // a node of one has the whole limit
		}
		if d.Poured && c.Cost > 0 && s.enter(c, now, func(e *entry) { e.admit(c.Cost, doubtful) }) {
			d.Origin |= originNoted
		}
	}
	return nil
}

// open ensures that the ledger has an entry for a charge that is poured or watched. The
// entry must exist before the pour, because its first level must not contain this node's
// own amounts.
func (s *Store) open(whole, share *leakybucket.Charge, watched bool) {
	if (share.Probe || share.Cost <= 0) && !(watched && s.backend.ledger.mayWatch()) {
		return
	}
	now := time.Now()
	s.enter(share, now, func(e *entry) {
		e.setLimit(whole)
		e.reserve(now.Add(reserved))
	})
}

// settleLocally corrects a charge that this node's own store took, in that store
// and in the ledger. If the shared store knows of the charge, it is corrected
// there the next time it answers.
func (s *Store) settleLocally(settlement *leakybucket.Settlement) {
	b, now, c := s.backend, time.Now(), &settlement.Charge
	noted, before := settlement.Was.Origin&originNoted != 0, b.localLevel(c)
	diff := s.diff(settlement, c.Limit.Leak, now)
	if diff > 0 {
		diff = min(diff, max(0, c.Limit.Capacity+c.Debt-before))
	}
	// First, since enter has the limit of the charge, which may be that of a former config.
	b.ledger.update(bucketOf(c), now, func(e *entry, _ bool) { e.settleWhole(*settlement, b.local.Now()) })
	if diff > 0 || diff < 0 && noted {
		s.enter(c, now, func(e *entry) { e.admit(diff, false) })
	}
	_ = b.local.Settle(context.Background(), []leakybucket.Settlement{*settlement}) // fails for no key that it has
	if settlement.Cancel && noted {
		// Only the bucket knows whether anything was given back.
		diff = -min(c.Cost, max(0, before-b.localLevel(c)))
		s.enter(c, now, func(e *entry) { e.admit(diff, false) })
	}
}

// localLevel returns how full this node's own bucket of a charge is.
func (b *Backend) localLevel(c *leakybucket.Charge) float64 {
	return c.Limit.Level(b.local.State(c), b.local.Now())
}

// InForce leaves a charge as Take would leave it now: while its shard is down, that is one to
// this node's share.
func (s *Store) InForce(c *leakybucket.Charge) {
	if s.backend.DownFor(c) && s.zone(c.Zone).Policy == Local {
		s.share(c)
	}
}

// share makes a charge one to this node's share of the bucket, which holds and
// leaks its part of the limit, and at least the dearest constant cost. A computed
// cost above that capacity counts as the capacity, unless it is above the shared
// capacity as well.
func (s *Store) share(c *leakybucket.Charge) {
	if s.nodes == 1 {
		return
	}
	whole, cost, undelayed := c.Limit.Capacity, c.Cost, c.Undelayed
	fits := !c.Limit.Oversize(cost)
	c.Limit.Capacity = max(whole/s.nodes, min(s.zone(c.Zone).MaxCost, whole))
	c.Limit.Leak /= s.nodes
	c.Debt /= s.nodes
	c.Undelayed /= s.nodes
	if fits {
		c.Cost = min(cost, c.Limit.Capacity)
	}
	if c.Ceiling >= whole {
		c.Ceiling = c.Limit.Capacity
	} else if c.Ceiling > 0 {
		leaking := max(0, c.Ceiling-undelayed-cost) / s.nodes // while it waits as long as it may
		c.Ceiling = min(c.Limit.Capacity, c.Undelayed+leaking+c.Cost)
	}
}
