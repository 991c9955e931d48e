package caddymodule

import (
	"context"
	"net/netip"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

// An overrideInput describes a change at run time, or the end of one.
type overrideInput struct {
	// How long it holds. At most 720h. Default: until this process ends.
	For caddy.Duration `json:"for,omitempty"`

	Note string `json:"note,omitempty"`

	// The zone. Empty means all zones, for shadow alone.
	Zone string `json:"zone,omitempty"`

	// The key of the one bucket whose limit changes, or an address or a plain value of
	// a secret part. Empty means all of the zone.
	Key string `json:"key,omitempty"`

	// A factor such as x0.5, a capacity and a leak such as "10 1/s", the name of a plan,
	// unlimited, or deny.
	Limit string `json:"limit,omitempty"`

	// The network that is banned: an address, or a network in CIDR notation.
	Network string `json:"network,omitempty"`
}

// network parses an address or a network. An IPv6 address stands for its /64, as
// clients have whole ones.
func (o *overrideInput) network() (netip.Prefix, error) {
	if network, err := netip.ParsePrefix(o.Network); err == nil {
		if network.Addr().Is4In6() {
			return netip.Prefix{}, badRequest("invalid network %q: write it as an IPv4 network", o.Network)
		}
		return network.Masked(), nil
	}
	addr, err := netip.ParseAddr(o.Network)
	if err != nil {
		return netip.Prefix{}, badRequest("invalid network %q: want an address, or a network such as 203.0.113.0/24", o.Network)
	}
	addr = addr.Unmap().WithZone("")
	bits := 64
	if addr.Is4() {
		bits = 32
	}
	return addr.Prefix(bits)
}

// An ended says whether there was something to end.
type ended struct {
	Ended bool `json:"ended"`

	// Key is that of the bucket, which the caller may have named by a secret.
	Key string `json:"key,omitempty"`
}

// ofNetwork decodes the input of a ban. Fields that a ban has no use for are errors.
func (in *adminInput) ofNetwork() (o overrideInput, network netip.Prefix, err error) {
	if err := in.decode(&o); err != nil {
		return o, network, err
	}
	if o.Zone != "" || o.Key != "" || o.Limit != "" {
		return o, network, badRequest("a ban holds in all zones: want a network, and no zone, key or limit")
	}
	network, err = o.network()
	return o, network, err
}

// ofZone decodes the input of a shadow switch, or of a limit.
func (in *adminInput) ofZone() (o overrideInput, err error) {
	if err := in.decode(&o); err != nil {
		return o, err
	}
	if o.Network != "" {
		return o, badRequest("the change is of a zone: want no network")
	}
	return o, nil
}

// ofWholeZone is ofZone for a shadow switch.
func (in *adminInput) ofWholeZone() (o overrideInput, err error) {
	if o, err = in.ofZone(); err == nil && (o.Key != "" || o.Limit != "") {
		err = badRequest("shadow is of a whole zone: want no key and no limit")
	}
	return o, err
}

// wrong turns an error about a value into the client's.
func wrong(result any, err error) (any, error) {
	if err != nil {
		return nil, badRequest("%w", err)
	}
	return result, nil
}

func (a *engine) adminOverrides(context.Context, *adminInput) (any, error) {
	return a.overrides.List(time.Now()), nil
}

func (a *engine) adminBan(_ context.Context, in *adminInput) (any, error) {
	o, network, err := in.ofNetwork()
	if err != nil {
		return nil, err
	}
	return wrong(a.overrides.Ban(network, time.Duration(o.For), o.Note, time.Now()))
}

func (a *engine) adminUnban(_ context.Context, in *adminInput) (any, error) {
	_, network, err := in.ofNetwork()
	if err != nil {
		return nil, err
	}
	return ended{Ended: a.overrides.Unban(network, time.Now())}, nil
}

func (a *engine) adminShadow(_ context.Context, in *adminInput) (any, error) {
	o, err := in.ofWholeZone()
	if err != nil {
		return nil, err
	}
	if o.Zone != "" {
		if _, err := a.findZone(o.Zone); err != nil {
			return nil, err
		}
	}
	return wrong(a.overrides.Shadow(o.Zone, time.Duration(o.For), o.Note, time.Now()))
}

// adminUnshadow ends a switch, of a zone that a reload has taken away, too.
func (a *engine) adminUnshadow(_ context.Context, in *adminInput) (any, error) {
	o, err := in.ofWholeZone()
	if err != nil {
		return nil, err
	}
	done := ended{Ended: a.overrides.Unshadow(o.Zone, time.Now())}
	if !done.Ended && o.Zone != "" {
		_, err = a.findZone(o.Zone)
	}
	return done, err
}

func (a *engine) adminLimit(_ context.Context, in *adminInput) (any, error) {
	o, err := in.ofZone()
	if err != nil {
		return nil, err
	}
	z, err := a.findZone(o.Zone)
	if err != nil {
		return nil, err
	}
	limit, err := override.ParseLimit(o.Limit, a.plans)
	if err != nil {
		return wrong(nil, err)
	}
	if account := decision.AccountOf(o.Key); account != o.Key {
		return nil, badRequest("invalid key %q: a device has the limit of its account: want %s", o.Key, account)
	}
	o.Key = z.BucketOf(o.Key)
	if policy := z.Unlisted(o.Key); o.Key != "" && policy != "" {
		return nil, badRequest("no override of zone %q lists this key, so its requests use another bucket: key unlisted is %s", z.Name, policy)
	}
	if z.Bucketless() && limit.Limits() {
		return nil, badRequest("zone %q has no capacity and leak: want unlimited or deny", z.Name)
	}
	return wrong(a.overrides.Limit(o.Zone, o.Key, limit, time.Duration(o.For), o.Note, time.Now()))
}

// adminUnlimit ends a limit, of a zone that a reload has taken away, too.
func (a *engine) adminUnlimit(_ context.Context, in *adminInput) (any, error) {
	o, err := in.ofZone()
	if err != nil {
		return nil, err
	}
	z, unknown := a.findZone(o.Zone)
	keys := []string{o.Key}
	if unknown == nil {
		keys = append(keys, z.BucketOf(o.Key))
	}
	for _, key := range keys {
		if a.overrides.Unlimit(o.Zone, key, time.Now()) {
			return ended{true, key}, nil
		}
	}
	return ended{}, unknown
}
