package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// A judge says what would become of requests now. Every answer of the admin API to that
// question is one of a judge.
type judge struct {
	*engine.Engine
	set *override.Set
	now time.Time
}

func newJudge(e *engine.Engine) judge { return judge{e, e.Overrides(), time.Now()} }

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
		in.changed = freed[0] // the client may be named by a secret, and the names of its buckets hold none
		if more := r.result.Count - 1; more > 0 {
			in.changed += fmt.Sprintf(" and %d more", more)
		}
		e.Control.Changes.Note(override.Change{At: r.now, Origin: in.from, Action: "release", Of: in.changed})
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

var listOrders = map[string]func(a, b wire.Bucket) int{
	"level": func(a, b wire.Bucket) int {
		return cmp.Or(byVerdict(a, b), cmp.Compare(b.Fraction, a.Fraction), cmp.Compare(a.Key, b.Key))
	},
	"key": func(a, b wire.Bucket) int { return cmp.Compare(a.Key, b.Key) },
	"last": func(a, b wire.Bucket) int {
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
	b.LastUsed = max(0, k.Now.Sub(k.State.At).Seconds())
	c, is := z.Peek(k.Key, n.Limit, l.Shadow), leakybucket.Decision{}
	if n.Limit.Capacity > 0 {
		j.Effective(&c)
		c.Take(&k.State, k.Now, &is)
	}
	j.fill(&b, z, &n, &c, is)
	if matches = b.Blocked > 0 || b.Level > 0 && b.Fraction >= l.MinFraction; l.Refused {
		matches = b.Verdict.Reason != ""
	}
	return b, matches && n.Valid // else a config with another key has left it
}

// top returns the first n in an order.
func top(buckets []wire.Bucket, order func(a, b wire.Bucket) int, n int) []wire.Bucket {
	slices.SortFunc(buckets, order)
	return buckets[:min(n, len(buckets))]
}

// answerWhy shows the buckets of a client in all zones. For a support code, they are those
// of the client that was refused.
func answerWhy(ctx context.Context, e *engine.Engine, _ *input, of *wire.ClientQuery) (any, error) {
	if of.Client == "" {
		return nil, badRequest("no client is given: want an address or a key")
	}
	zones, err := zonesNamed(e, of.Zone)
	if err != nil {
		return nil, err
	}
	code, coded := supportcode.Parse(of.Client)
	w := why{newJudge(e), &wire.Why{Code: coded, Buckets: []wire.Bucket{}, Complete: true}}
	past, found := e.Control.Refusals.Find(code)
	if !found {
		w.lately(of)
		return w.result, w.client(ctx, zones, of.Client, supportcode.Refusal{})
	}
	shown := w.past(past)
	w.result.Refusal = &shown
	if z := e.Zones[past.Zone]; z != nil {
		if _, err := netip.ParseAddr(past.Key); err != nil || shown.Network != "" {
			zones = []*engine.Zone{z} // the others want to know the client's address
		}
	}
	if past.Key == "" {
		zones = nil // the request had no key
	}
	return w.result, w.client(ctx, zones, past.Key, past.Refusal)
}

// A why finds out why a client is refused.
type why struct {
	judge
	result *wire.Why
}

// mostLately is how many refusals of an address are shown.
const mostLately = 10

// lately adds the refusals of an address, whatever keys its requests had. A zone that is keyed
// by account cannot tell by the address.
func (w *why) lately(of *wire.ClientQuery) {
	network := prefixOf(of.Client)
	if !network.IsValid() {
		return
	}
	for _, one := range w.Control.Refusals.Of(network) {
		if len(w.result.Refusals) < mostLately && (of.Zone == "" || of.Zone == one.Zone) {
			w.result.Refusals = append(w.result.Refusals, w.past(one))
		}
	}
}

// client adds what zones do with a client. The bucket that has refused it is shown in any case.
func (w *why) client(ctx context.Context, zones []*engine.Zone, client string, past supportcode.Refusal) error {
	zones = slices.DeleteFunc(zones, func(z *engine.Zone) bool { return len(z.Directives) == 0 }) // no site uses it
	r := w.result
	if ban := w.set.BannedAll(prefixOf(client), w.now); ban != nil {
		r.Ban = new(overrideOf(w.Engine, ban.Entry))
		r.Refused = !w.set.AllShadow(w.now) && slices.ContainsFunc(zones, func(z *engine.Zone) bool { return z.Shadow == nil })
	}
	concerned := map[string]bool{"": true} // zones that may charge the client
	for _, z := range zones {
		own := w.own(z, client)
		concerned[z.Name] = own != ""
		for _, shadow := range []bool{false, true} {
			names, complete, err := w.search(ctx, z, z.Owned(client), shadow, mostSearched)
			if err != nil {
				complete, r.Problem = false, err.Error()
			}
			r.Complete = r.Complete && complete
			if own == limit.SharedBucket && !slices.Contains(names, own) {
				names = append(names, own)
			}
			for _, name := range names {
				b, err := w.peek(ctx, z, name, shadow)
				if err != nil {
					return fmt.Errorf("zone %q: %w", z.Name, err)
				}
				// An empty bucket of the client is shown if something is to be said of it.
				telling := b.Verdict.Reason != "" || b.By != "zone"
				if z.Read(name).Valid && (b.Level > 0 || b.Blocked > 0 || telling && own != "" && name == own && shadow == (z.Shadow != nil) ||
					!shadow && b.Zone == past.Zone && b.Key == past.Key) { // else a config with another key has left it
					r.Buckets = append(r.Buckets, b)
					r.Refused, concerned[z.Name] = r.Refused || b.Verdict.Refused(), true
				}
			}
		}
	}
	r.Local = w.Shared != nil && w.Shared.Failing()
	slices.SortStableFunc(r.Buckets, byVerdict)
	for _, o := range overridesOf(w.Engine, w.now) {
		if o.Kind == "shadow" && concerned[o.Zone] {
			r.Shadows = append(r.Shadows, o)
		}
	}
	return nil
}

// own returns the name of the bucket that a zone charges requests of a client to, or "" if
// the zone cannot tell by the client alone.
func (w *why) own(z *engine.Zone, client string) string {
	own, named := z.NameOf(client)
	_, notAddress := netip.ParseAddr(client)
	network := notAddress != nil && prefixOf(client).IsValid()
	if !named || network || z.Key.HasAddress() != (notAddress == nil) && !strings.Contains(client, "/") { // a key of several parts has a slash
		return ""
	}
	policy := z.Read(own).Unlisted
	if policy == "" {
		return own
	}
	r := w.result
	r.Unlisted = append(r.Unlisted, wire.UnlistedKey{Zone: z.Name, Key: own, Policy: string(policy)})
	switch policy {
	case limit.Refuse:
		return own
	case limit.Share:
		return limit.SharedBucket
	}
	return ""
}

// past shows a refusal as it was then.
func (j judge) past(one supportcode.Coded) wire.PastRefusal {
	p := wire.PastRefusal{Code: one.Code.String(), Refusal: one.Refusal}
	if z := j.Zones[p.Zone]; z != nil {
		p.Network = shownNetwork(z, p.Key)
	}
	return p
}

// verdict returns what becomes of a request of cost 1, whose key has a bucket of this name and state.
func (j judge) verdict(z *engine.Zone, n *limit.Named, c *leakybucket.Charge, is leakybucket.Decision) wire.Verdict {
	o := z.Foresee(&limit.Bucket{Name: c.Key, Rule: n.Rule, Limit: c.Limit}, c.Shadow || z.InShadow(j.set, limit.AccountOf(c.Key)), is)
	if ban := j.banOf(z, c.Key); ban != nil {
		o = limit.Outcome{Block: ban.Left(j.now)}
		o.Shadow = z.Shadow != nil // a zone's switch at run time leaves bans as they are
		o.Refuse(limit.Banned)
	} else if n.Unlisted == limit.Refuse {
		o.Refuse(limit.UnlistedKey)
	}
	return wire.Verdict{Decision: o.Decision().String(), Reason: o.Reason().String(), For: o.TimeToFit().Seconds()}
}

// banOf returns the ban of all addresses for which the one in a key stands, or nil.
func (j judge) banOf(z *engine.Zone, key string) *override.Held {
	if !z.Key.HasAddress() && !strings.HasPrefix(key, "@client_ip/") || j.set.AllShadow(j.now) {
		return nil
	}
	for part := range strings.SplitSeq(key, "/") {
		if ban := j.set.BannedAll(bucketkey.ClientPrefix(prefixOf(part).Addr(), z.Key.IPv4, z.Key.IPv6), j.now); ban != nil {
			return ban
		}
	}
	return nil
}

// prefixOf returns the network or the address that a text is, or the zero Prefix.
func prefixOf(text string) netip.Prefix {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = bucketkey.Unmap(addr)
		return netip.PrefixFrom(addr, addr.BitLen())
	}
	network, _ := netip.ParsePrefix(text)
	return network
}

// byVerdict sorts buckets that refuse first, then those in shadow that would.
func byVerdict(a, b wire.Bucket) int {
	order := []string{limit.Refused.String(), limit.ShadowRefused.String(), limit.Admitted.String()}
	return cmp.Compare(slices.Index(order, a.Verdict.Decision), slices.Index(order, b.Verdict.Decision))
}
