package sharedstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// DefaultTimeout is the budget of each call where none is given.
const DefaultTimeout = 50 * time.Millisecond

// Options are one config's view of a shared store. The zero value is ready for
// use.
type Options struct {
	// Timeout is the budget of each call of the remote store. Zero or less means
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
	// limit holds at least that. Larger costs find room in an empty share.
	MaxCost float64
}

// A Policy is what a zone does when the shared store does not answer.
type Policy uint8

const (
	// Local charges buckets of this node's own, with this node's share of the
	// limit. The charge is left as that share, see [leakybucket.Store].
	Local Policy = iota

	// Allow lets every request pass that no known block refuses.
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

// A Store is a shared store as one config uses it. It is safe for concurrent use.
type Store struct {
	backend *Backend
	timeout time.Duration
	nodes   float64
	zone    func(name string) ZoneOptions
}

// With returns the store as one config uses it.
func (b *Backend) With(o Options) *Store {
	s := &Store{backend: b, timeout: cmp.Or(max(0, o.Timeout), DefaultTimeout), nodes: float64(max(1, o.Nodes)), zone: o.Zone}
	if s.zone == nil {
		s.zone = func(string) ZoneOptions { return ZoneOptions{} }
	}
	return s
}

// New returns a store around a remote one, for a program that has one. It connects now,
// without waiting for it. Until [Store.Close] it owns the remote store, whose calls must end when
// their contexts do, see [Interruptible]. During outages it keeps this node's buckets in a memory
// of its own. observer is told of outages and errors, and may be nil: see [Log].
//
// A program whose options change while it runs makes a [Backend] and a Store for each of them.
func New(remote leakybucket.Store, o Options, observer Observer) *Store {
	b := NewBackend(fmt.Sprintf("%T", remote), remote, memstore.New(memstore.Options{}))
	b.Attach(observer)
	return b.With(o)
}

// Close is [Backend.Close], for stores that [New] returned.
func (s *Store) Close() { s.backend.Close() }

// Timeout returns the budget of each call, which a [leakybucket.Limiter] without one takes for its own.
func (s *Store) Timeout() time.Duration { return s.timeout }

// Take implements [leakybucket.Store]. It returns within the timeout, and at once
// while the store is down. Only before the store was reached for the first time may it take
// longer, see [Backend.Await]. It fails only if this node's own store does.
//
// Charges of zones with the policy [Local] that were decided without the shared
// store are left as this node's share. Settle them as they are then.
func (s *Store) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if len(charges) == 0 {
		return nil
	}
	b := s.backend
	if slices.ContainsFunc(charges, enforced) {
		b.Await(ctx)
	}
	c, admitted := b.begin(ctx, s.timeout)
	if !admitted {
		return s.fallBack(charges, decisions)
	}
	blocked := b.blocks.refusing(charges, never)
	asked := withhold(charges, blocked)
	if b.end(c, "asking the store; this request falls back", b.remote.Take(c.ctx, asked, decisions)) != nil {
		return s.fallBack(charges, decisions)
	}
	b.blocks.learn(asked, decisions, c.began)
	refuse(blocked, decisions)
	return nil
}

func enforced(c leakybucket.Charge) bool { return !c.Shadow }

// fallBack decides by the zones' policies.
func (s *Store) fallBack(charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	b, blocked := s.backend, s.backend.blocks.refusing(charges, ever)
	for i := range charges {
		policy := s.zone(charges[i].Zone).Policy
		decisions[i] = leakybucket.Decision{Undecided: true, Fits: policy != Deny, At: b.local.Now()}
		if policy == Local {
			s.share(&charges[i])
		}
	}
	refuse(blocked, decisions)
	var of []int // the charges that local buckets decide
	var asked []leakybucket.Charge
	for i, c := range withhold(charges, decisions) {
		if s.zone(c.Zone).Policy == Local {
			if s.nodes > 1 {
				c.Block = nil // begin none
			}
			of, asked = append(of, i), append(asked, c)
		}
	}
	answers := make([]leakybucket.Decision, len(asked))
	if err := b.local.Take(context.Background(), asked, answers); err != nil {
		return err
	}
	for i, d := range answers {
		d.Local = true
		decisions[of[i]] = d
	}
	refuse(blocked, decisions)
	return nil
}

// share makes a charge one to this node's share of the bucket, which leaks its part of the limit. It
// holds its part, and at least the largest constant cost, and this one if it fits the shared capacity.
func (s *Store) share(c *leakybucket.Charge) {
	if s.nodes == 1 {
		return
	}
	whole, undelayed := c.Limit.Capacity, c.Undelayed
	c.Limit.Capacity = max(whole/s.nodes, min(s.zone(c.Zone).MaxCost, whole))
	if c.Cost <= whole { // neither what never fits nor a NaN
		c.Limit.Capacity = max(c.Limit.Capacity, c.Cost)
	}
	c.Limit.Leak /= s.nodes
	c.Debt /= s.nodes
	c.Undelayed /= s.nodes
	if c.Ceiling >= whole {
		c.Ceiling = c.Limit.Capacity
	} else if c.Ceiling > 0 {
		leaking := max(0, c.Ceiling-undelayed-c.Cost) / s.nodes // while it waits as long as it may
		c.Ceiling = min(c.Limit.Capacity, c.Undelayed+leaking+c.Cost)
	}
}

// Effective leaves a charge as Take would leave it now.
func (s *Store) Effective(c *leakybucket.Charge) {
	if s.backend.Down() && s.zone(c.Zone).Policy == Local {
		s.share(c)
	}
}

// Settle implements [leakybucket.Store]. It corrects each charge where it was
// taken. It returns within a fifth of the timeout, while a slower call of the remote store goes
// on. A charge that cannot be corrected, or that no store took, stays as it was, and the
// [Observer] counts it, so callers may ignore the error.
func (s *Store) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	b := s.backend
	var shared []leakybucket.Settlement
	for i := range settlements {
		switch was := &settlements[i].Was; {
		case was.Undecided:
			b.lost(settlements[i : i+1])
		case was.Local:
			_ = b.local.Settle(ctx, settlements[i:i+1]) // fails for no key that it has
		default:
			shared = append(shared, settlements[i])
		}
	}
	if len(shared) == 0 {
		return nil
	}
	c, admitted := b.begin(context.WithoutCancel(ctx), s.timeout)
	if !admitted {
		b.lost(shared)
		return ErrDown
	}
	ended := make(chan error, 1)
	go func() {
		b.settling.RLock()
		defer b.settling.RUnlock()
		err := b.end(c, "settling in the store; the charges stay as reserved", b.remote.Settle(c.ctx, shared))
		if err != nil {
			b.lost(shared)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-time.After(s.timeout / 5): // no client waits longer for the end of its answer
		return nil
	}
}

// Reset implements [store.Resetter]. If the store is down, the bucket is reset on this
// node only, and the error wraps [ErrDown].
func (s *Store) Reset(ctx context.Context, zone, key string, shadow bool) error {
	b := s.backend
	_ = b.local.Reset(ctx, zone, key, shadow) // neither fails
	_ = b.blocks.reported.Reset(ctx, zone, key, shadow)
	resetter, can := capability[store.Resetter](b.remote)
	if !can {
		return fmt.Errorf("resetting a bucket: the store %s cannot", b.name)
	}
	c, admitted := b.begin(ctx, s.timeout)
	if !admitted {
		return fmt.Errorf("resetting a bucket: %w", ErrDown)
	}
	return b.end(c, "resetting a bucket", resetter.Reset(c.ctx, zone, key, shadow))
}

// List implements [store.Lister]. While the store is down, it lists this node's own
// buckets. All are blocked as a take would find them, and last come those that are known to be
// blocked and have no level. It may take as long as ctx lasts, and is no sign of an outage if it
// fails.
func (s *Store) List(ctx context.Context, of store.Filter, cursor string) (some []store.Entry, next string, err error) {
	b := s.backend
	lister, can := capability[store.Lister](b.remote)
	source, others, since := "store-", b.local, never
	if b.Down() {
		lister, can, source, others, since = b.local, true, "local-", b.blocks.reported, ever
	}
	at, same := strings.CutPrefix(cursor, source)
	switch {
	case !can:
		return nil, "", fmt.Errorf("listing buckets: the store %s cannot", b.name)
	case cursor != "" && !same:
		return nil, "", fmt.Errorf("%w: the store has gone down or come up", store.ErrBadCursor)
	}
	some, next, err = lister.List(ctx, of, at)
	b.blocks.mark(some, of, since)
	switch {
	case err != nil:
		return nil, "", err
	case next != "":
		return some, source + next, nil
	}
	for e, err := range store.ListAll(ctx, others, of) {
		if err != nil {
			return nil, "", err
		}
		if e.State.BlockedUntil > e.Now {
			e.State.Level = 0
			some = append(some, e)
		}
	}
	return some, "", nil
}

// ErrDown is returned by calls that are not made because the store is down.
var ErrDown = errors.New("the store is down")

// Interface guards
var (
	_ leakybucket.Store = (*Store)(nil)
	_ store.Resetter    = (*Store)(nil)
	_ store.Lister      = (*Store)(nil)
)
