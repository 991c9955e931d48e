package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// DefaultTimeout is the budget of each call where none is given.
const DefaultTimeout = 50 * time.Millisecond

// Options are one config's view of a shared store. The zero value is ready for
// use.
type Options struct {
	// Timeout is the budget of each call of the remote store. Zero means
	// [DefaultTimeout].
	Timeout time.Duration

	// Nodes is how many nodes share the store, and by how much limits are divided
	// while it is down. Zero means 1.
	Nodes int

	// Zone returns the options of a zone. It is called for each charge and must
	// be safe for concurrent use. If nil, all zones have zero options.
	Zone func(name string) ZoneOptions
}

// ZoneOptions are the options of one zone.
type ZoneOptions struct {
	Policy Policy

	// MaxCost is the largest constant cost of the zone, in units. A share of the
	// limit is never too small for it.
	MaxCost float64
}

// A Store is a shared store for the requests of one config. It is safe for
// concurrent use, and needs no closing.
type Store struct {
	backend *Backend
	timeout time.Duration
	nodes   float64
	zone    func(name string) ZoneOptions
}

// With returns the store as one config uses it.
func (b *Backend) With(o Options) *Store {
	s := &Store{backend: b, timeout: o.Timeout, nodes: float64(max(1, o.Nodes)), zone: o.Zone}
	if s.timeout <= 0 {
		s.timeout = DefaultTimeout
	}
	if s.zone == nil {
		s.zone = func(string) ZoneOptions { return ZoneOptions{} }
	}
	return s
}

// Take implements [leakybucket.Store]. It returns within the timeout, and at once
// while the store is down, or the shard of any charge. It fails only if this node's own
// store does.
//
// Charges of zones with the policy [Local] that were decided without the shared
// store are left as this node's share. Settle them as they are then.
func (s *Store) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	b := s.backend
	if len(charges) == 0 {
		return nil
	}
	if !s.releaseAll(ctx, charges) {
		return s.fallBack(charges, decisions, false)
	}
	var room [4]int
	c, admitted := b.begin(ctx, s.timeout, b.shardsOf(room[:0], charges)...)
	if !admitted {
		return s.fallBack(charges, decisions, false)
	}
	asked, blocks := charges, s.untold(charges, c.began)
	if blocks != nil {
		asked = heed(charges, blocks)
	}
	var err error
	if c.trial {
		err = s.try(ctx, c, asked, decisions)
	} else {
		err = b.end(c, asking, b.remote.Take(c.ctx, asked, decisions))
	}
	if err != nil {
		return s.fallBack(charges, decisions, true)
	}
	s.accept(charges, decisions, blocks, c.began)
	return nil
}

// asking says what a take that failed means.
const asking = "asking the store; this request falls back"

// errSlow is why a request does not wait for a trial.
var errSlow = errors.New("no answer within a fifth of the timeout")

// try takes by a trial. The caller waits for a fifth of the timeout only, while the trial
// goes on to its end: so a store that is slow, but within its timeout, proves it.
func (s *Store) try(ctx context.Context, c call, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	b, asked, answers := s.backend, slices.Clone(charges), make([]leakybucket.Decision, len(charges))
	wait := s.timeout / 5
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	ended := make(chan error, 1)
	b.goHeld(func() { ended <- b.end(c, asking, b.remote.Take(c.ctx, asked, answers)) })
	select {
	case err := <-ended:
		copy(decisions, answers)
		return err
	case <-time.After(wait):
		return errSlow
	}
}

// accept makes decisions of the store ones that heed the blocks that it does not know of,
// and remembers them. began is when the call began.
func (s *Store) accept(charges []leakybucket.Charge, decisions []leakybucket.Decision, blocks []entry, began time.Time) {
	b, now := s.backend, time.Now()
	origin := b.origin(0, now)
	var tellings []telling
	for i := range charges {
		decisions[i].Origin = origin
		if blocks != nil && !blocks[i].blocked.IsZero() {
			blocks[i].refuse(&decisions[i], now)
		}
		if s.zone(charges[i].Zone).Policy == Local {
			tellings = s.remember(&charges[i], &decisions[i], began, now, tellings)
		}
	}
	if tellings == nil {
		return
	}
	for shard, some := range byShard(b, tellings, (*telling).of) { // which the request does not wait for
		b.goHeld(func() { s.tell(shard, some) })
	}
}

// remember copies the state of a shared bucket, so that an outage is no amnesty.
// It appends what the store must be told that this node admitted without it.
func (s *Store) remember(c *leakybucket.Charge, d *leakybucket.Decision, began, now time.Time, tellings []telling) []telling {
	seen, own, tellings := s.reconcile(c, d, began, now, tellings)
	local, at := *c, s.backend.local.Now()
	s.share(&local)
	state := leakybucket.State{Level: seen/s.nodes + own, At: at, Leak: local.Limit.Leak}
	switch {
	case d.BlockedUntil != 0:
		state.BlockedUntil, state.Step = at.Add(d.BlockedUntil.Sub(d.At)), d.Step
	case c.Block != nil:
		// The store tells of a block only while it runs. The ladder goes on from the
		// last one.
		if was := s.backend.local.State(&local); was.BlockedUntil <= at {
			state.BlockedUntil, state.Step = was.BlockedUntil, was.Step
		}
	}
	s.backend.local.Put(&local, state)
	return tellings
}

// A telling is what the store is told of one bucket.
type telling struct {
	leakybucket.Settlement
	blocked time.Time // the end of the block that is told, or zero
}

func (t *telling) of() *leakybucket.Charge { return &t.Charge }

// reconcile compares the level of a bucket that the store has just shown with the
// ledger. It returns the level that the bucket has there as far as is known, and the amount
// that this node has admitted beyond that, and appends what the store can be told about it.
func (s *Store) reconcile(c *leakybucket.Charge, d *leakybucket.Decision, began, now time.Time, tellings []telling) (seen, own float64, all []telling) {
	b, name, poured := s.backend, bucketOf(c), 0.0
	if d.Poured {
		poured = c.Cost
	}
	seen = d.Level + poured
	if b.ledger.empty() {
		return seen, 0, tellings
	}
	if _, found := b.ledger.get(name, now); !found {
		return seen, 0, tellings
	}
	b.ledger.update(name, now, func(e *entry, found bool) {
		if !found {
			return
		}
		e.setLimit(c)
		e.share, e.wholeUntil = c.Limit.Leak/s.nodes, time.Time{}
		untold := e.observe(d, poured, began, now)
		if math.Abs(untold) <= dust*c.Limit.Capacity {
			untold = 0
		}
		t := telling{Settlement: leakybucket.Settlement{Charge: *c, Was: *d}}
		if e.blocked.After(now) && !e.telling {
			t.blocked, t.BlockStep = e.blocked, e.step
			untold = max(0, untold) // what is to be given back can wait
		}
		if untold < 0 { // of which nothing has leaked: that was taken off before
			t.Charge.Cost, t.Was.Poured = -untold, true
		}
		if t.Diff = untold; untold != 0 || !t.blocked.IsZero() {
			e.tell(untold)
			tellings = append(tellings, t)
		}
		seen, own = e.seen, max(0, e.own+e.sent)
	})
	return seen, own, tellings
}

// tell pours the amounts that this node admitted without the store into buckets of a
// shard, and begins the blocks of that time. A negative amount gives back.
func (s *Store) tell(shard int, tellings []telling) {
	b := s.backend
	settlements := make([]leakybucket.Settlement, len(tellings))
	for i := range tellings {
		t := &tellings[i]
		t.BlockRest = max(0, time.Until(t.blocked))
		settlements[i] = t.Settlement
	}
	c, reached := b.begin(context.Background(), s.timeout, shard)
	err := ErrDown
	if reached {
		err = s.settleShared(c, settlements)
	}
	now := time.Now()
	for i := range tellings {
		t := &tellings[i]
		if t.Diff < 0 {
			if err != nil {
				b.teller.lost(t.Charge.Zone)
			}
			continue
		}
		told := 0.0
		b.ledger.update(bucketOf(&t.Charge), now, func(e *entry, found bool) {
			if !found {
				return // it was reset
			}
			if err == nil {
				told = e.sent
			}
			e.told(reached, err == nil, now, s.timeout)
			if err == nil && e.blocked.Equal(t.blocked) {
				e.blocked = time.Time{}
			}
		})
		if told > 0 { // of which this node's share is in its copy from now on
			share := t.Charge
			s.share(&share)
			s.adjust(share, told/s.nodes-told)
		}
	}
}

// settleShared settles in the remote store.
func (s *Store) settleShared(c call, settlements []leakybucket.Settlement) error {
	err := s.backend.remote.Settle(c.ctx, settlements)
	return s.backend.end(c, "settling in the store; what is not known to be settled is told later, or stays as reserved", err)
}

// Settle implements [leakybucket.Store]. It corrects each charge where it was
// taken, and ignores charges that no store took. It returns within a fifth of the
// timeout, while a slower call of the remote store goes on. Callers may ignore
// its errors, which the [Observer] gets.
func (s *Store) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	shared := make([]leakybucket.Settlement, 0, len(settlements))
	for i := range settlements {
		switch settlement := &settlements[i]; {
		case !FellBack(&settlement.Was):
			shared = append(shared, *settlement)
		case !settlement.Was.Undecided:
			s.settleLocally(settlement)
		}
	}
	if len(shared) == 0 {
		return nil
	}
	return s.settleInTime(ctx, shared)
}

func chargeOf(settlement *leakybucket.Settlement) *leakybucket.Charge { return &settlement.Charge }

// settleInTime settles charges that the remote store took, shard by shard. It waits only
// as long as a request may be delayed.
func (s *Store) settleInTime(ctx context.Context, settlements []leakybucket.Settlement) (failed error) {
	b, calls, ended := s.backend, 0, make(chan error, len(settlements))
	for shard, some := range byShard(b, settlements, chargeOf) {
		c, admitted := b.begin(context.WithoutCancel(ctx), s.timeout, shard)
		if !admitted {
			s.carry(some, false)
			failed = ErrDown
			continue
		}
		calls++
		b.goHeld(func() {
			err := s.settleShared(c, some)
			if err == nil {
				s.rememberSettled(some)
			} else {
				s.carry(some, true)
			}
			ended <- err
		})
	}
	enough := time.After(s.timeout / 5)
	for range calls {
		select {
		case err := <-ended:
			failed = errors.Join(failed, err)
		case <-enough:
			return failed
		}
	}
	return failed
}

// rememberSettled applies settlements to this node's copies of shared buckets. A
// cancelled charge shows when its bucket is asked next.
func (s *Store) rememberSettled(settlements []leakybucket.Settlement) {
	now := time.Now()
	for i := range settlements {
		settlement := &settlements[i]
		c := settlement.Charge
		diff := s.diff(settlement, c.Limit.Leak, now)
		if diff == 0 || s.zone(c.Zone).Policy != Local {
			continue
		}
		s.share(&c)
		if _, found := s.backend.ledger.get(bucketOf(&c), now); found {
			s.enter(&c, now, func(e *entry) {
				if diff > 0 {
					e.seen += e.explain(diff, now)
				} else {
					e.seen = max(0, e.seen+diff)
				}
				e.confirmed = now
			})
		}
		s.adjust(c, diff/s.nodes)
	}
}

// carry enters settlements that the remote store did not confirm into the ledger.
// If reached, the store may have executed them all the same. The ledger keeps no
// cancelled charges, and no refunds that may have been made already.
func (s *Store) carry(settlements []leakybucket.Settlement, reached bool) {
	now := time.Now()
	for i := range settlements {
		settlement := &settlements[i]
		c := settlement.Charge
		diff := s.diff(settlement, c.Limit.Leak, now)
		s.share(&c)
		keep := func(e *entry) {
			e.setLimit(&settlement.Charge)
			e.admit(min(diff, max(0, e.limit.Capacity+e.debt-e.seen-e.own-e.sent)), reached)
		}
		if settlement.Cancel || s.zone(c.Zone).Policy != Local || diff < 0 && reached ||
			diff != 0 && !s.enter(&c, now, keep) {
			s.backend.teller.lost(c.Zone)
			continue
		}
		s.adjust(c, diff)
	}
}

// diff returns how much a settlement changes a bucket with this leak, in units a
// second. What has leaked since the charge cannot be given back.
func (s *Store) diff(settlement *leakybucket.Settlement, leak float64, now time.Time) float64 {
	switch diff := settlement.Diff; {
	case settlement.Cancel:
		return 0
	case diff > 0:
		return diff
	case settlement.Was.Poured && diff < 0:
		return min(0, max(diff, -settlement.Charge.Cost)+leak*s.backend.age(settlement.Was.Origin, now))
	}
	return 0
}

// adjust pours into this node's own bucket, or gives back.
func (s *Store) adjust(c leakybucket.Charge, diff float64) {
	const late = math.MaxInt64 // charged so late that nothing has leaked since
	settlement := leakybucket.Settlement{Charge: c, Was: leakybucket.Decision{Poured: true, At: late}, Diff: diff}
	settlement.Charge.Cost = max(0, -diff)
	_ = s.backend.local.Settle(context.Background(), []leakybucket.Settlement{settlement}) // fails for no key that it has
}

// ofLocal begins the cursors of this node's copies.
const ofLocal = "local-"

// List implements [leakybucket.Lister]. While the store or a shard is down, it lists this
// node's copies. It may take as long as ctx lasts, and is no sign of an outage if it fails.
func (s *Store) List(ctx context.Context, of leakybucket.Filter, cursor string) ([]leakybucket.Entry, string, error) {
	lister, can := s.backend.remote.(leakybucket.Lister)
	local := s.backend.Down()
	switch at, ofLocals := strings.CutPrefix(cursor, ofLocal); {
	case cursor != "" && ofLocals != local:
		return nil, "", fmt.Errorf("%w: the store has gone down or come up", leakybucket.ErrBadCursor)
	case local:
		some, next, err := s.backend.local.List(ctx, of, at)
		if next != "" {
			next = ofLocal + next
		}
		return some, next, err
	case !can:
		return nil, "", fmt.Errorf("listing buckets: the store %s cannot", s.backend.name)
	}
	return lister.List(ctx, of, cursor)
}

// Interface guards
var (
	_ leakybucket.Lister = (*Store)(nil)
	_ leakybucket.Store  = (*Store)(nil)
)
