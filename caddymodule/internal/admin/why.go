package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

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
		shown := overrideOf(w.Engine, ban.Entry)
		r.Ban = &shown
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
	slices.SortStableFunc(r.Buckets, func(a, b wire.Bucket) int { return byVerdict(&a, &b) })
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

// A judge says what would become of requests now. Every answer of the admin API to that
// question is one of a judge.
type judge struct {
	*engine.Engine
	set *override.Set
	now time.Time
}

func newJudge(e *engine.Engine) judge { return judge{e, e.Overrides(), time.Now()} }

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
func byVerdict(a, b *wire.Bucket) int {
	order := []string{limit.Refused.String(), limit.ShadowRefused.String(), limit.Admitted.String()}
	return cmp.Compare(slices.Index(order, a.Verdict.Decision), slices.Index(order, b.Verdict.Decision))
}
