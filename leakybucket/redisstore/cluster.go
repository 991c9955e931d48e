package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

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

// A group is the charges of one take that share a call.
type group struct {
	slot    uint16
	shadow  leakybucket.Shadow
	indexes []int
}

// groups divides charges by slot. Shadow charges come last, since they are
// poured only if all enforced ones are.
func (s *Store) groups(charges []leakybucket.Charge) []*group {
	var groups []*group
	for i := range charges {
		slot, shadow := s.slotOfCharge(&charges[i]), charges[i].Shadow
		at := slices.IndexFunc(groups, func(g *group) bool { return g.slot == slot && g.shadow == shadow })
		if at < 0 {
			at = len(groups)
			groups = append(groups, &group{slot: slot, shadow: shadow})
		}
		groups[at].indexes = append(groups[at].indexes, i)
	}
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.shadow, b.shadow), cmp.Compare(a.slot, b.slot))
	})
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

// takeBySlot takes charges one slot after the other. Once a slot has refused,
// the others are only probed. If a slot refuses or fails, whatever earlier slots
// poured is given back. A refusal of shadow concerns its group alone.
func (s *Store) takeBySlot(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if slot, one := s.oneSlot(charges); one {
		return s.takeTogether(ctx, slot, charges, decisions)
	}
	clear(decisions)
	refused := make(map[leakybucket.Shadow]bool)
	for _, g := range s.groups(charges) {
		some := make([]leakybucket.Charge, len(g.indexes))
		for i, at := range g.indexes {
			some[i] = charges[at]
			some[i].Probe = some[i].Probe || refused[0] || refused[g.shadow]
		}
		answers := make([]leakybucket.Decision, len(some))
		if err := s.takeTogether(ctx, g.slot, some, answers); err != nil {
			_ = s.giveBack(ctx, charges, decisions, func(leakybucket.Shadow) bool { return true }) // the cause is what the caller must know
			return err
		}
		for i, at := range g.indexes {
			decisions[at] = answers[i]
			refused[g.shadow] = refused[g.shadow] || !answers[i].Fits
		}
	}
	return s.giveBack(ctx, charges, decisions, func(group leakybucket.Shadow) bool { return refused[0] || refused[group] })
}

// giveBack settles charges that were poured before another slot refused or
// failed, those of such groups. Other clients must not pay for those, so it goes on in the background
// when ctx ends.
func (s *Store) giveBack(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision, such func(leakybucket.Shadow) bool) error {
	var settlements []leakybucket.Settlement
	for i := range decisions {
		if !decisions[i].Poured || !such(charges[i].Shadow) {
			continue
		}
		settlements = append(settlements, leakybucket.Settlement{Charge: charges[i], Was: decisions[i], Diff: -charges[i].Cost})
		decisions[i].Poured = false
		for j := range i { // report the level without an earlier charge to the same bucket
			if charges[j].Key == charges[i].Key && charges[j].Zone == charges[i].Zone && (charges[j].Shadow == 0) == (charges[i].Shadow == 0) {
				decisions[i].Level = decisions[j].Level
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
		done <- s.settleBySlot(ctx, settlements)
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
	var mu sync.Mutex
	var worst error
	var wg sync.WaitGroup
	inFlight := make(chan struct{}, mostSlots)
	for slot, some := range bySlot {
		inFlight <- struct{}{}
		wg.Go(func() {
			err := s.settleTogether(ctx, slot, some)
			mu.Lock()
			worst = graver(worst, err)
			mu.Unlock()
			<-inFlight
		})
	}
	wg.Wait()
	return worst
}

// graver returns the error that says more about the store: any before none, and
// a failure of the store before a fault of one bucket.
func graver(a, b error) error {
	if a == nil || b != nil && errors.Is(a, leakybucket.ErrBadBucket) {
		return b
	}
	return a
}
