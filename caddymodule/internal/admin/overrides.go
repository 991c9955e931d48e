package admin

import (
	"context"
	"net/netip"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
)

// networkOf parses an address or a network. An IPv6 address stands for its /64, as
// clients have whole ones.
func networkOf(text string) (netip.Prefix, error) {
	if network, err := netip.ParsePrefix(text); err == nil {
		if network.Addr().Is4In6() {
			return netip.Prefix{}, badRequest("invalid network %q: write it as an IPv4 network", text)
		}
		return network.Masked(), nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, badRequest("invalid network %q: want an address, or a network such as 203.0.113.0/24", text)
	}
	addr = addr.Unmap().WithZone("")
	bits := 64
	if addr.Is4() {
		bits = 32
	}
	return addr.Prefix(bits)
}

// ofNetwork decodes the input of a ban. Fields that a ban has no use for are errors.
func (in *Input) ofNetwork() (o wire.Change, network netip.Prefix, err error) {
	if err := in.decode(&o); err != nil {
		return o, network, err
	}
	if o.Zone != "" || o.Key != "" || o.Limit != "" {
		return o, network, badRequest("a ban holds in all zones: want a network, and no zone, key or limit")
	}
	network, err = networkOf(o.Network)
	return o, network, err
}

// ofZone decodes the input of a shadow switch, or of a limit.
func (in *Input) ofZone() (o wire.Change, err error) {
	if err := in.decode(&o); err != nil {
		return o, err
	}
	if o.Network != "" {
		return o, badRequest("the change is of a zone: want no network")
	}
	return o, nil
}

// ofWholeZone is ofZone for a shadow switch.
func (in *Input) ofWholeZone() (o wire.Change, err error) {
	if o, err = in.ofZone(); err == nil && (o.Key != "" || o.Limit != "") {
		err = badRequest("shadow is of a whole zone: want no key and no limit")
	}
	return o, err
}

// wrong turns an error about a value into the client's.
func wrong(err error) error {
	if err != nil {
		return badRequest("%w", err)
	}
	return nil
}

// converted returns what of makes of each, which JSON shows as a list even if it is empty.
func converted[T, W any](all []T, of func(T) W) []W {
	result := make([]W, len(all))
	for i := range all {
		result[i] = of(all[i])
	}
	return result
}

func banOf(b override.Ban) wire.Ban { return wire.Ban{Network: b.Network, Span: wire.Span(b.Span)} }

func shadowOf(s override.Shadow) wire.Shadow {
	return wire.Shadow{Zone: s.Zone, Span: wire.Span(s.Span)}
}

func limitOf(l override.Limit) wire.Limit {
	return wire.Limit{Zone: l.Zone, Key: l.Key, Text: l.Text, Span: wire.Span(l.Span)}
}

func overridesOf(o override.Overrides) wire.Overrides {
	return wire.Overrides{Shadows: converted(o.Shadows, shadowOf), Bans: converted(o.Bans, banOf), Limits: converted(o.Limits, limitOf)}
}

func answerOverrides(_ context.Context, e *engine.Engine, _ *Input) (any, error) {
	return overridesOf(e.Control.Overrides.List(time.Now())), nil
}

func answerBan(_ context.Context, e *engine.Engine, in *Input) (any, error) {
	o, network, err := in.ofNetwork()
	if err != nil {
		return nil, err
	}
	ban, err := e.Control.Overrides.Ban(network, time.Duration(o.For), o.Note, time.Now())
	return banOf(ban), wrong(err)
}

func answerUnban(_ context.Context, e *engine.Engine, in *Input) (any, error) {
	_, network, err := in.ofNetwork()
	if err != nil {
		return nil, err
	}
	ended := e.Control.Overrides.Unban(network, time.Now())
	if ban := e.Overrides().Banned(network.Addr(), time.Now()); !ended && ban != nil && ban.Network.Bits() < network.Bits() {
		return nil, badRequest("no ban is of %s alone: it lies in %s, which is banned; to let it in, end that ban", network, ban.Network)
	}
	return wire.Ended{Ended: ended}, nil
}

func answerShadow(_ context.Context, e *engine.Engine, in *Input) (any, error) {
	o, err := in.ofWholeZone()
	if err != nil {
		return nil, err
	}
	if o.Zone != "" {
		if _, err := findZone(e, o.Zone); err != nil {
			return nil, err
		}
	}
	shadow, err := e.Control.Overrides.Shadow(o.Zone, time.Duration(o.For), o.Note, time.Now())
	return shadowOf(shadow), wrong(err)
}

// answerUnshadow ends a switch, of a zone that a reload has taken away, too.
func answerUnshadow(_ context.Context, e *engine.Engine, in *Input) (any, error) {
	o, err := in.ofWholeZone()
	if err != nil {
		return nil, err
	}
	done := wire.Ended{Ended: e.Control.Overrides.Unshadow(o.Zone, time.Now())}
	if !done.Ended && o.Zone != "" {
		_, err = findZone(e, o.Zone)
	}
	return done, err
}

func answerLimit(_ context.Context, e *engine.Engine, in *Input) (any, error) {
	o, err := in.ofZone()
	if err != nil {
		return nil, err
	}
	z, err := findZone(e, o.Zone)
	if err != nil {
		return nil, err
	}
	limit, err := override.ParseLimit(o.Limit, e.Plans)
	if err != nil {
		return nil, wrong(err)
	}
	if account := rule.AccountOf(o.Key); account != o.Key {
		return nil, badRequest("invalid key %q: a device has the limit of its account: want %s", o.Key, account)
	}
	o.Key = z.BucketOf(o.Key)
	if policy := z.Unlisted(o.Key); o.Key != "" && policy != "" {
		return nil, badRequest("no override of zone %q lists this key, so its requests use another bucket: key unlisted is %s", z.Name, policy)
	}
	if z.SlotsOnly() && limit.Limits() {
		return nil, badRequest("zone %q has no capacity and leak: want unlimited or deny", z.Name)
	}
	limit, err = e.Control.Overrides.Limit(o.Zone, o.Key, limit, time.Duration(o.For), o.Note, time.Now())
	return limitOf(limit), wrong(err)
}

// answerUnlimit ends a limit, of a zone that a reload has taken away, too.
func answerUnlimit(_ context.Context, e *engine.Engine, in *Input) (any, error) {
	o, err := in.ofZone()
	if err != nil {
		return nil, err
	}
	z, unknown := findZone(e, o.Zone)
	keys := []string{o.Key}
	if unknown == nil {
		keys = append(keys, z.BucketOf(o.Key))
	}
	for _, key := range keys {
		if e.Control.Overrides.Unlimit(o.Zone, key, time.Now()) {
			return wire.Ended{Ended: true, Key: key}, nil
		}
	}
	return wire.Ended{}, unknown
}
