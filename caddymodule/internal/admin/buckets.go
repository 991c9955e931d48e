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
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
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

// describe returns a bucket with its limit, but without its state, and what its name tells.
func (j judge) describe(z *engine.Zone, name string, shadow bool) (b wire.Bucket, n limit.Named) {
	n = z.Read(name)
	b = wire.Bucket{Zone: z.Name, Key: name, Network: shownNetwork(z, name), Shadow: shadow, By: "zone"}
	if n.Listed() {
		b.By, b.From = "override", fmt.Sprintf("override %d", n.Override+1)
	}
	account := limit.AccountOf(name)
	if held := j.set.Limit(z.Name, account, j.now); held != nil {
		rule, changed := j.set.Apply(z.Name, account, n.Rule, n.Limit, z.MostCost, j.now)
		if rule != n.Rule || changed != n.Limit {
			b.By, b.From = "run_time", held.Limit
		}
		n.Rule, n.Limit = rule, changed
	}
	b.Rule, b.Capacity, b.Leak = ruleNames[n.Rule], n.Limit.Capacity, n.Limit.Leak
	return b, n
}

// peek returns a bucket, its state, and what becomes of requests.
func (j judge) peek(ctx context.Context, z *engine.Zone, name string, shadow bool) (wire.Bucket, error) {
	b, n := j.describe(z, name, shadow)
	charges, is := []leakybucket.Charge{z.Peek(name, n.Limit, shadow)}, make([]leakybucket.Decision, 1)
	if n.Limit.Capacity > 0 {
		if err := j.Store.Take(ctx, charges, is); err != nil {
			return b, err
		}
	}
	j.fill(&b, z, &n, &charges[0], is[0])
	return b, nil
}

// fill adds the state of a bucket that describe has returned, and what becomes of requests.
func (j judge) fill(b *wire.Bucket, z *engine.Zone, n *limit.Named, c *leakybucket.Charge, is leakybucket.Decision) {
	b.Share = b.Capacity != c.Limit.Capacity || b.Leak != c.Limit.Leak
	b.Capacity, b.Leak, b.Level, b.Blocked = c.Limit.Capacity, c.Limit.Leak, is.Level, max(0, is.BlockedUntil.Sub(is.At).Seconds())
	if b.Capacity > 0 {
		b.Fraction, b.EmptyIn = b.Level/b.Capacity, c.Limit.TimeToEmpty(b.Level).Seconds()
	}
	b.Verdict = j.verdict(z, n, c, is)
}

// mostSearched bounds how many buckets of one zone an answer shows of a client.
const mostSearched = 1000

// search returns the names of buckets that belong to a client, so many at most.
func (j judge) search(ctx context.Context, z *engine.Zone, owned limit.Owned, shadow bool, most int) (names []string, complete bool, err error) {
	names = owned.Names
	if !owned.Search {
		return names, true, nil
	}
	seen := make(map[string]bool) // Redis may give a bucket more than once
	for _, name := range names {
		seen[name] = true
	}
	of := store.Filter{Zone: z.Name, Prefix: owned.Prefix, Shadow: shadow, Scan: scanned}
	for k, err := range store.ListAll(ctx, j.Store, of) {
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
	zones, err := zonesNamed(e, of.Zone)
	if err != nil {
		return nil, err
	}
	r := release{judge: newJudge(e), of: of, result: wire.Released{Freed: []string{}, Complete: true}}
	for _, z := range zones {
		r.zone(ctx, z)
	}
	if r.broken != nil && r.result.Count == 0 {
		return nil, r.broken
	}
	code, _ := supportcode.Parse(of.Client)
	if coded, found := e.Control.Refusals.Find(code); found && r.result.Count == 0 {
		past := r.past(coded)
		return nil, badRequest("%s is a support code, not a client: zone %s refused %s", past.Code, past.Zone, cmp.Or(past.Network, past.Key, "a request without a key"))
	}
	r.result.Banned = r.set.BannedAll(prefixOf(of.Client), r.now) != nil
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
	of     *wire.ClientQuery
	result wire.Released
	broken error // the last failure, but for outages
}

// zone empties buckets of a zone, and goes on after an error.
func (r *release) zone(ctx context.Context, z *engine.Zone) {
	owned := limit.Owned{Search: true}
	if !r.of.All {
		owned = z.Owned(r.of.Client)
	}
	for _, shadow := range []bool{false, true} {
		names, complete, err := r.search(ctx, z, owned, shadow, math.MaxInt)
		if err == nil && owned.Search && storeDown(r.Engine) {
			err = sharedstore.ErrDown
		}
		r.result.Complete = r.result.Complete && complete
		r.failed(z, err)
		for _, name := range names {
			r.failed(z, r.bucket(ctx, z, name, shadow))
		}
	}
}

// failed notes that the release is not complete, if there is an error.
func (r *release) failed(z *engine.Zone, err error) {
	switch {
	case errors.Is(err, sharedstore.ErrDown):
		r.result.Complete, r.result.Problem = false, "the store is down: this holds on this Caddy, and buckets in the store stay; release again when it is back"
	case err != nil:
		r.broken = fmt.Errorf("zone %q: %w", z.Name, err)
		r.result.Complete, r.result.Problem = false, r.broken.Error()
	}
}

// storeDown reports whether the zones decide without their shared store.
func storeDown(e *engine.Engine) bool { return e.Shared != nil && e.Shared.Down() }

// bucket empties one.
func (r *release) bucket(ctx context.Context, z *engine.Zone, name string, shadow bool) error {
	was, peeked := r.peek(ctx, z, name, shadow)
	err := r.Store.Reset(ctx, z.Name, name, shadow)
	if (err == nil || errors.Is(err, sharedstore.ErrDown)) && (was.Level > 0 || was.Blocked > 0) {
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
	order := listOrders[cmp.Or(l.Sort, "level")]
	l.Limit = cmp.Or(l.Limit, defaultListed)
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
	scan, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	local, j := storeDown(e), newJudge(e)
	result := wire.Buckets{Buckets: []wire.Bucket{}, Complete: !local, Local: local}
	seen := make(map[string]bool)
	for k, err := range store.ListAll(scan, e.Store, store.Filter{Zone: z.Name, Prefix: l.Prefix, Shadow: l.Shadow, Scan: scanned}) {
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
	b, n := j.describe(z, k.Key, l.Shadow)
	c := leakybucket.Charge{Zone: z.Name, Key: k.Key, Shadow: l.Shadow, Limit: n.Limit}
	if n.Limit.Capacity > 0 {
		j.Effective(&c)
	}
	is := leakybucket.Decision{Level: c.Limit.Level(k.State, k.Now), At: k.Now}
	if z.Block != nil {
		is.BlockedUntil = k.State.BlockedUntil
	}
	j.fill(&b, z, &n, &c, is)
	b.LastUsed = max(0, k.Now.Sub(k.State.At).Seconds())
	if matches = b.Blocked > 0 || b.Level > 0 && b.Fraction >= l.MinFraction; l.Refused {
		matches = b.Verdict.Reason != ""
	}
	return b, matches && n.Valid // else a config with another key has left it
}

// top returns the first n in an order.
func top(buckets []wire.Bucket, order bucketOrder, n int) []wire.Bucket {
	slices.SortFunc(buckets, func(a, b wire.Bucket) int { return order(&a, &b) })
	return buckets[:min(n, len(buckets))]
}
