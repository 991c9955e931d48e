package redisstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// mostSlots is how many slots one call has in flight at once.
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
	return slotOf(s.name(c.Zone, c.Key, c.Shadow))
}

// A group is the charges of one take that share a slot.
type group struct {
	slot    uint16
	indexes []int
}

// groups divides n charges by slot, in ascending order of it. It leaves out those for which
// charge returns nil.
func (s *Store) groups(n int, charge func(i int) *leakybucket.Charge) []group {
	bySlot := make(map[uint16][]int)
	for i := range n {
		if c := charge(i); c != nil {
			slot := s.slotOfCharge(c)
			bySlot[slot] = append(bySlot[slot], i)
		}
	}
	var groups []group
	for _, slot := range slices.Sorted(maps.Keys(bySlot)) {
		groups = append(groups, group{slot, bySlot[slot]})
	}
	return groups
}

// atOnce calls f for all groups, many at once, and returns the gravest error.
func (s *Store) atOnce(groups []group, f func(group) error) error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	inFlight := make(chan struct{}, mostSlots)
	for i, g := range groups {
		inFlight <- struct{}{}
		wg.Go(func() {
			errs[i] = f(g)
			<-inFlight
		})
	}
	wg.Wait()
	var worst error
	for _, err := range errs {
		worst = graver(worst, err)
	}
	return worst
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
func (s *Store) takeBySlot(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if len(charges) == 1 {
		return s.takeTogether(ctx, s.slotOfCharge(&charges[0]), charges, decisions, false)
	}
	t := &bySlot{s, charges, decisions}
	asks := t.groups(len(charges), func(i int) *leakybucket.Charge { return &charges[i] })
	if len(asks) == 1 {
		return s.takeTogether(ctx, asks[0].slot, charges, decisions, false)
	}
	clear(decisions)
	if err := t.take(ctx, asks, true); err != nil {
		return err
	}
	held := t.held()
	pours := t.groups(len(charges), func(i int) *leakybucket.Charge {
		if charges[i].Probe || held(i) {
			return nil
		}
		return &charges[i]
	})
	err := t.take(ctx, pours, false)
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
func (t *bySlot) pourPatiently(ctx context.Context, one []group) (refused bool, err error) {
	for n := 0; ; n++ {
		began := time.Now()
		err := t.take(ctx, one, false)
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

// held returns which charges must not be poured, by the decisions so far.
func (t *bySlot) held() func(i int) bool {
	enforced, all := store.Fit(t.charges, t.decisions)
	return func(i int) bool { return !enforced || t.charges[i].Shadow && !all }
}

// refuses reports whether charge i keeps all others from being poured.
func (t *bySlot) refuses(i int) bool { return !t.decisions[i].Fits && !t.charges[i].Shadow }

// take takes the charges of all groups at once. Asking pours nothing. Pouring begins no
// block, since a charge that fitted when it was asked exceeds no limit of its own.
func (t *bySlot) take(ctx context.Context, groups []group, asking bool) error {
	return t.atOnce(groups, func(g group) error { return t.takeGroup(ctx, g, asking) })
}

func (t *bySlot) takeGroup(ctx context.Context, g group, asking bool) error {
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
	held := t.held()
	for i := range t.decisions {
		if t.decisions[i].Poured && (err != nil || held(i)) {
			back = append(back, i)
		}
		raced = raced || t.refuses(i)
	}
	if failed := t.giveBack(ctx, back); err == nil {
		err = failed // otherwise the cause is what the caller must know
	}
	return raced && len(back) > 0, err
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
			if store.SameBucket(&t.charges[j], c) {
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
	groups := s.groups(len(settlements), func(i int) *leakybucket.Charge { return &settlements[i].Charge })
	return s.atOnce(groups, func(g group) error {
		some := make([]leakybucket.Settlement, len(g.indexes))
		for i, at := range g.indexes {
			some[i] = settlements[at]
		}
		return s.settleTogether(ctx, g.slot, some)
	})
}

// graver returns the error that says more about the store: any before none, and
// a failure of the store before a fault of one bucket.
func graver(a, b error) error {
	if a == nil || b != nil && errors.Is(a, store.ErrBadBucket) {
		return b
	}
	return a
}
