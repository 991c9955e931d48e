package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// mostSlots is how many slots one Settle has in flight at once.
const mostSlots = 64

// slotOf returns the slot of a key in a cluster: CRC16 (XMODEM) of the key, or
// of the first {tag} in it that is not empty, modulo 16384.
func slotOf(key string) uint16 {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

func (s *Store) slotOfCharge(c *leakybucket.Charge) uint16 {
	return slotOf(s.name(c.Zone, c.Key, c.Shadow != 0))
}

// A group is the charges of one take that share a slot.
type group struct {
	slot    uint16
	indexes []int
}

// groups divides charges by slot, in ascending order of it. It leaves out those
// that are not wanted.
func (s *Store) groups(charges []leakybucket.Charge, wanted func(i int) bool) []*group {
	var groups []*group
	for i := range charges {
		if !wanted(i) {
			continue
		}
		slot := s.slotOfCharge(&charges[i])
		at := slices.IndexFunc(groups, func(g *group) bool { return g.slot == slot })
		if at < 0 {
			at = len(groups)
			groups = append(groups, &group{slot: slot})
		}
		groups[at].indexes = append(groups[at].indexes, i)
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.slot, b.slot) })
	return groups
}

// oneSlot returns the slot of all charges, if they share one.
func (s *Store) oneSlot(charges []leakybucket.Charge) (slot uint16, one bool) {
	slot = s.slotOfCharge(&charges[0])
	for i := range charges[1:] {
		if s.slotOfCharge(&charges[i+1]) != slot {
			return 0, false
		}
	}
	return slot, true
}

// A bySlot is a take of charges in several slots of a cluster.
type bySlot struct {
	*Store
	charges   []leakybucket.Charge
	decisions []leakybucket.Decision
}

// takeBySlot asks all slots at once, and pours into all at once if all fit. If a
// slot refuses the pour, because others poured in between, all is given back and
// poured once more, slot after slot: of two such takes one is then admitted.
//
// The answers to an earlier probe of the same request are not used as the asking. They
// would serve where a body was read for its items and has one item only: elsewhere the
// probe lacks a charge or had another cost. That round trip is dear where it is wrong: a
// pour that races costs at least four more.
func (s *Store) takeBySlot(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if slot, one := s.oneSlot(charges); one {
		return s.takeTogether(ctx, slot, charges, decisions, false)
	}
	t := &bySlot{s, charges, decisions}
	clear(decisions)
	if err := t.atOnce(ctx, t.groups(charges, func(int) bool { return true }), t.ask); err != nil {
		return err
	}
	pours := t.groups(charges, func(i int) bool { return t.fit(i) && !charges[i].Probe })
	err := t.atOnce(ctx, pours, t.pour)
	if raced, err := t.undo(ctx, err); !raced || err != nil {
		return err
	}
	for i := range pours {
		var refused bool
		if refused, err = t.pourPatiently(ctx, pours[i:i+1]); err != nil || refused {
			break
		}
	}
	_, err = t.undo(ctx, err)
	return err
}

// mostRepours is how often a slot is asked again for what another take, which was refused,
// is about to give back.
const mostRepours = 3

// pourPatiently pours into one slot, and reports whether it refuses. The slots before it
// are held meanwhile, so those that want them in the same order wait for this take.
func (t *bySlot) pourPatiently(ctx context.Context, one []*group) (refused bool, err error) {
	for n := 0; ; n++ {
		began := time.Now()
		err := t.atOnce(ctx, one, t.pour)
		refused := slices.ContainsFunc(one[0].indexes, t.refuses)
		if err != nil || !refused || n == mostRepours {
			return refused, err
		}
		select {
		case <-time.After(time.Since(began)): // about a round trip
		case <-ctx.Done():
			return true, nil
		}
	}
}

// fit reports whether charge i fits, and so do all that it is judged with.
func (t *bySlot) fit(i int) bool {
	return leakybucket.FitTogether(t.charges, t.decisions, t.charges[i].Shadow)
}

// refuses reports whether charge i keeps all others from being poured.
func (t *bySlot) refuses(i int) bool { return !t.decisions[i].Fits && t.charges[i].Shadow == 0 }

// ask asks a slot for its charges and pours nothing.
func (t *bySlot) ask(ctx context.Context, g *group) error { return t.take(ctx, g, true) }

// pour takes the charges of a slot. It begins no block, since a charge that fitted
// when it was asked exceeds no limit of its own.
func (t *bySlot) pour(ctx context.Context, g *group) error { return t.take(ctx, g, false) }

func (t *bySlot) take(ctx context.Context, g *group, asking bool) error {
	some, answers := make([]leakybucket.Charge, len(g.indexes)), make([]leakybucket.Decision, len(g.indexes))
	for i, at := range g.indexes {
		some[i] = t.charges[at]
		some[i].Probe = some[i].Probe || asking
	}
	if err := t.takeTogether(ctx, g.slot, some, answers, !asking); err != nil {
		return err
	}
	for i, at := range g.indexes {
		t.decisions[at] = answers[i]
	}
	return nil
}

// undo gives back what was poured if a slot failed with err, or what was poured beside
// charges that did not fit. It reports whether enforced ones were among those.
func (t *bySlot) undo(ctx context.Context, err error) (raced bool, _ error) {
	var back []int
	for i := range t.decisions {
		if t.decisions[i].Poured && (err != nil || !t.fit(i)) {
			back = append(back, i)
		}
		raced = raced || t.refuses(i)
	}
	if failed := t.giveBack(ctx, back); err == nil {
		err = failed // otherwise the cause is what the caller must know
	}
	return raced && len(back) > 0, err
}

// atOnce calls f for all groups at once and returns the gravest error.
func (t *bySlot) atOnce(ctx context.Context, groups []*group, f func(context.Context, *group) error) error {
	ended := outcomes{shards: &t.connection.shards}
	var wg sync.WaitGroup
	for _, g := range groups {
		wg.Go(func() { ended.add(g.slot, f(ctx, g)) })
	}
	wg.Wait()
	return ended.err()
}

// giveBack settles charges that were poured before another slot refused or
// failed. Other clients must not pay for those, so it goes on in the background
// when ctx ends.
func (t *bySlot) giveBack(ctx context.Context, indexes []int) error {
	var settlements []leakybucket.Settlement
	for _, i := range indexes {
		c, d := &t.charges[i], &t.decisions[i]
		settlements = append(settlements, leakybucket.Settlement{Charge: *c, Was: *d, Diff: -c.Cost})
		d.Poured = false
		for j := range i { // report the level without an earlier charge to the same bucket
			if was := &t.charges[j]; was.Key == c.Key && was.Zone == c.Zone && (was.Shadow == 0) == (c.Shadow == 0) {
				d.Level = t.decisions[j].Level
			}
		}
	}
	if len(settlements) == 0 {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*silence)
		defer cancel()
		done <- t.settleBySlot(ctx, settlements)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settleBySlot settles charges slot by slot, many slots at once. Settlements of
// one bucket keep their order.
func (s *Store) settleBySlot(ctx context.Context, settlements []leakybucket.Settlement) error {
	bySlot := make(map[uint16][]leakybucket.Settlement)
	for i := range settlements {
		slot := s.slotOfCharge(&settlements[i].Charge)
		bySlot[slot] = append(bySlot[slot], settlements[i])
	}
	ended := outcomes{shards: &s.connection.shards}
	var wg sync.WaitGroup
	inFlight := make(chan struct{}, mostSlots)
	for slot, some := range bySlot {
		inFlight <- struct{}{}
		wg.Go(func() {
			ended.add(slot, s.settleTogether(ctx, slot, some))
			<-inFlight
		})
	}
	wg.Wait()
	return ended.err()
}

// graver returns the error that says more about the store: any before none, and
// a failure of the store before a fault of one bucket.
func graver(a, b error) error {
	if a == nil || b != nil && isOfBuckets(a) {
		return b
	}
	return a
}

// isOfBuckets reports whether an error is about buckets, and no failure of the store.
func isOfBuckets(err error) bool {
	return errors.Is(err, leakybucket.ErrBadBucket) || errors.Is(err, leakybucket.ErrMoving)
}
