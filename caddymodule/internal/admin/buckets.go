package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

var ruleNames = map[perkey.Rule]string{perkey.Limited: "limited", perkey.Unlimited: "unlimited", perkey.Denied: "deny"}

// shownNetwork returns the network that a key stands for, or "".
func shownNetwork(z *engine.Zone, key string) string {
	if network, masked := z.NetworkOf(key); masked {
		return network.String()
	}
	return ""
}

// describe returns a bucket with its limit, but without its state.
func describe(e *engine.Engine, z *engine.Zone, name string, shadow bool) (b wire.Bucket, whole leakybucket.Limit) {
	entry := z.OverrideOf(name)
	whole = entry.Limit
	b = wire.Bucket{Zone: z.Name, Key: name, Network: shownNetwork(z, name), Shadow: shadow, By: "zone"}
	if entry.Listed() {
		b.By, b.From = "override", fmt.Sprintf("override %d", entry.Override+1)
	}
	account, set, now := limit.AccountOf(name), e.Overrides(), time.Now()
	if set.Limit(z.Name, account, now) != nil {
		b.By, b.From = "run_time", set.Limit(z.Name, account, now).Text
		entry.Rule, whole = set.Apply(z.Name, account, entry.Rule, whole, z.MostCost, now)
	}
	b.Rule, b.Capacity, b.Leak = ruleNames[entry.Rule], whole.Capacity, whole.Leak
	return b, whole
}

// peek returns a bucket, its state, and what becomes of requests.
func (j judge) peek(ctx context.Context, z *engine.Zone, name string, shadow bool) (b wire.Bucket, s state, err error) {
	b, s.limit = describe(j.Engine, z, name, shadow)
	whole := s.limit
	if whole.Capacity > 0 {
		charges := []leakybucket.Charge{z.Peek(name, whole, shadow)}
		var d [1]leakybucket.Decision
		if err := j.Store.Take(ctx, charges, d[:]); err != nil {
			return b, s, fmt.Errorf("zone %q: %w", z.Name, err)
		}
		s.limit, s.level, s.denied = charges[0].Limit, d[0].Level, d[0].Undecided && !d[0].Fits
		if d[0].BlockedUntil != 0 {
			s.blocked = d[0].BlockedUntil.Sub(d[0].At)
		}
	}
	j.fill(z, &b, whole, s)
	return b, s, nil
}

// mostSearched bounds how many buckets of one zone an answer shows of a client.
const mostSearched = 1000

// search returns the names of buckets that belong to a client, so many at most.
func (j judge) search(ctx context.Context, z *engine.Zone, owned limit.Owned, shadow bool, most int) (names []string, complete bool, err error) {
	names = owned.Names
	lister, can := j.Store.(store.Lister)
	switch {
	case !owned.Search:
		return names, true, nil
	case !can:
		return names, false, nil
	}
	seen := make(map[string]bool) // Redis may give a bucket more than once
	for _, name := range names {
		seen[name] = true
	}
	of := store.Filter{Zone: z.Name, Prefix: owned.Prefix, Shadow: shadow, Scan: scanned}
	for k, err := range store.ListAll(ctx, lister, of) {
		switch {
		case err != nil:
			return names, true, err
		case seen[k.Key] || !owned.Has(k.Key):
		case len(names) >= most:
			return names, false, nil
		default:
			seen[k.Key], names = true, append(names, k.Key)
		}
	}
	return names, true, nil
}

// mostNamed bounds how many buckets the answer to a release names.
const mostNamed = 100

// answerRelease empties the buckets of a client, a network or a whole zone and ends their
// blocks, those of shadow too. If the store fails, the answer is what was done all the same.
func answerRelease(ctx context.Context, e *engine.Engine, in *input, of *wire.ClientQuery) (any, error) {
	switch {
	case of.All && (of.Client != "" || of.Zone == ""):
		return nil, badRequest("all wants a zone, and no client")
	case !of.All && of.Client == "":
		return nil, badRequest("no client is given: want an address, a network or a key")
	}
	if err := notTranslated(of.Client); err != nil {
		return nil, err
	}
	zones, err := zonesNamed(e, of.Zone)
	if err != nil {
		return nil, err
	}
	resetter, can := e.Store.(store.Resetter)
	if !can {
		return nil, errors.New("the store cannot forget single buckets")
	}
	r := release{newJudge(e), resetter, of, wire.Released{Client: of.Client, Freed: []string{}, Complete: true}}
	var failed error
	for _, z := range zones {
		failed = errors.Join(failed, r.zone(ctx, z))
	}
	if failed != nil {
		if r.result.Count == 0 {
			return nil, failed
		}
		r.result.Complete, r.result.Problem = false, failed.Error()
	}
	r.result.Banned = r.banned(of.Client) != nil
	if freed := r.result.Freed; len(freed) > 0 {
		of := freed[0] // the client may be named by a secret, and the names of its buckets hold none
		if more := r.result.Count - 1; more > 0 {
			of += fmt.Sprintf(" and %d more", more)
		}
		in.note(e, "release", of)
	}
	return r.result, nil
}

// A release empties buckets.
type release struct {
	judge
	resetter store.Resetter
	of       *wire.ClientQuery
	result   wire.Released
}

// zone empties buckets of a zone. It goes on after an error, and returns the last one.
func (r *release) zone(ctx context.Context, z *engine.Zone) (failed error) {
	owned := limit.Owned{Search: true, All: true}
	if !r.of.All {
		owned = z.Owned(r.of.Client)
	}
	for _, shadow := range []bool{false, true} {
		names, complete, err := r.search(ctx, z, owned, shadow, math.MaxInt)
		if err == nil && owned.Search && storeDown(r.Engine) {
			err = errLocal
		}
		if err != nil {
			complete, r.result.Problem = false, err.Error()
		}
		r.result.Complete = r.result.Complete && complete
		for _, name := range names {
			if err := r.bucket(ctx, z, name, shadow); err != nil {
				failed = fmt.Errorf("zone %q: %w", z.Name, err)
			}
		}
	}
	return failed
}

// errLocal is why a release is not complete while the store is down.
var errLocal = errors.New("the store is down: this holds on this Caddy, and buckets in the store stay; release again when it is back")

// storeDown reports whether the zones decide without their shared store.
func storeDown(e *engine.Engine) bool { return e.Shared != nil && e.Shared.Down() }

// bucket empties one.
func (r *release) bucket(ctx context.Context, z *engine.Zone, name string, shadow bool) error {
	was, _, peeked := r.peek(ctx, z, name, shadow)
	err := r.resetter.Reset(ctx, z.Name, name, shadow)
	if errors.Is(err, sharedstore.ErrDown) {
		r.result.Complete, r.result.Problem, err = false, errLocal.Error(), nil
	}
	if err == nil && (was.Level > 0 || was.Blocked > 0) {
		if r.result.Count++; r.result.Count <= mostNamed {
			freed := z.Name + "/" + cmp.Or(was.Network, name)
			if shadow {
				freed = "~" + freed // as stores name it
			}
			r.result.Freed = append(r.result.Freed, freed)
		}
	}
	return cmp.Or(err, peeked)
}

const (
	// MostListed is how many buckets one answer lists at most.
	MostListed    = 1000
	defaultListed = 100

	// scanned is about how many buckets a store looks at in one step of a scan.
	scanned = 1000

	// listTime is how long one scan may last, in which the store serves requests too.
	listTime = 5 * time.Second
)

// A bucketOrder compares buckets.
type bucketOrder func(a, b *wire.Bucket) int

var listOrders = map[string]bucketOrder{
	"level": func(a, b *wire.Bucket) int {
		return cmp.Or(byVerdict(a, b), cmp.Compare(b.Fraction, a.Fraction), cmp.Compare(a.Key, b.Key))
	},
	"key": func(a, b *wire.Bucket) int { return cmp.Compare(a.Key, b.Key) },
	"last": func(a, b *wire.Bucket) int {
		return cmp.Or(cmp.Compare(a.LastUsed, b.LastUsed), cmp.Compare(a.Key, b.Key))
	},
}

// answerBuckets lists the buckets of a zone: the top of one scan of them. Redis may give a
// bucket more than once.
func answerBuckets(ctx context.Context, e *engine.Engine, _ *input, l *wire.BucketsQuery) (any, error) {
	order := listOrders[l.Sort]
	switch {
	case order == nil:
		return nil, badRequest("invalid sort %q: want level, key or last", l.Sort)
	case l.Limit < 1 || l.Limit > MostListed:
		return nil, badRequest("invalid limit %d: want 1 to %d", l.Limit, MostListed)
	case !(l.MinFraction >= 0):
		return nil, badRequest("invalid min_fraction: want a number from 0")
	}
	z, err := findZone(e, l.Zone)
	if err != nil {
		return nil, err
	}
	lister, can := e.Store.(store.Lister)
	if !can {
		return nil, errors.New("the store cannot list its buckets")
	}
	scan, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	local, j := storeDown(e), newJudge(e)
	result := wire.Buckets{Buckets: []wire.Bucket{}, Complete: !local, Local: local}
	seen := make(map[string]bool)
	for k, err := range store.ListAll(scan, lister, store.Filter{Zone: z.Name, Prefix: l.Prefix, Shadow: l.Shadow, Scan: scanned}) {
		if err != nil {
			if scan.Err() == nil && !errors.Is(err, store.ErrBadCursor) { // the store went down or came up
				return nil, err
			}
			result.Complete = false
			break
		}
		b, matches := j.listed(z, l, &k)
		if !matches || seen[b.Key] {
			continue
		}
		seen[b.Key] = true
		result.Matched++
		if result.Buckets = append(result.Buckets, b); len(result.Buckets) >= 2*MostListed {
			result.Buckets = top(result.Buckets, order, l.Limit)
		}
	}
	result.Buckets = top(result.Buckets, order, l.Limit)
	return result, nil
}

// listed returns a bucket of a listing, unless it does not match.
func (j judge) listed(z *engine.Zone, l *wire.BucketsQuery, k *store.Entry) (b wire.Bucket, matches bool) {
	b, whole := describe(j.Engine, z, k.Key, l.Shadow)
	s := state{limit: whole}
	if z.Block != nil && k.State.BlockedUntil > k.Now {
		s.blocked = k.State.BlockedUntil.Sub(k.Now)
	}
	if whole.Capacity > 0 {
		c := leakybucket.Charge{Zone: z.Name, Key: k.Key, Shadow: l.Shadow, Limit: whole}
		j.Effective(&c)
		s.limit = c.Limit
	}
	s.level = s.limit.Level(k.State, k.Now)
	j.fill(z, &b, whole, s)
	b.LastUsed = max(0, k.Now.Sub(k.State.At).Seconds())
	if l.Refused {
		return b, b.Verdict.Reason != ""
	}
	return b, b.Blocked > 0 || b.Level > 0 && b.Fraction >= l.MinFraction
}

// top returns the first n in an order.
func top(buckets []wire.Bucket, order bucketOrder, n int) []wire.Bucket {
	slices.SortFunc(buckets, func(a, b wire.Bucket) int { return order(&a, &b) })
	return buckets[:min(n, len(buckets))]
}
