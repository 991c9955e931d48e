package admin

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/changes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// An entryOf returns the entry of a change, or with ends that of what is to end. Fields that
// the change has no use for are errors.
type entryOf func(e *engine.Engine, o *wire.Change, ends bool) (override.Entry, error)

// makes returns what makes changes of a kind, or ends them. One that replaces another without
// leave is an error of status 409.
func makes(of entryOf, ends bool) func(context.Context, *engine.Engine, *input, *wire.Change) (any, error) {
	return func(_ context.Context, e *engine.Engine, in *input, o *wire.Change) (any, error) {
		entry, err := of(e, o, ends)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		entry.Span = override.Span{Since: now, Until: now.Add(cmp.Or(time.Duration(o.For), override.Longest)), By: in.from.By, Note: o.Note}
		entry.Ended = ends
		where, made, err := e.Control.Changes.Change(entry, in.from.Via, o.Replace)
		switch {
		case errors.Is(err, changes.ErrNothing):
			return wire.Ended{}, nil
		case errors.As(err, new(*changes.Conflict)):
			return nil, caddy.APIError{HTTPStatus: http.StatusConflict, Err: err}
		case err != nil:
			return nil, badRequest("%w", err)
		}
		in.changed = made.Of
		if ends {
			return wire.Ended{Ended: true, Sync: &where}, nil
		}
		held := overrideOf(e, entry)
		held.Sync = &where
		return held, nil
	}
}

func banEntry(_ *engine.Engine, o *wire.Change, _ bool) (entry override.Entry, err error) {
	if o.Zone != "" || o.Key != "" || o.Limit != "" {
		return entry, badRequest("a ban holds in all zones: want a network, and no zone, key or limit")
	}
	network, err := networkOf(o.Network)
	return override.Entry{Name: override.Name{Kind: override.OfBan, Key: network.String()}}, err
}

func shadowEntry(e *engine.Engine, o *wire.Change, ends bool) (entry override.Entry, err error) {
	if o.Network != "" || o.Key != "" || o.Limit != "" {
		return entry, badRequest("shadow is of a whole zone: want no network, key or limit")
	}
	if o.Zone != "" && !ends && e.InFlight[o.Zone] == nil {
		_, err = findZone(e, o.Zone, slices.Sorted(maps.Keys(e.InFlight))...)
	}
	return override.Entry{Name: override.Name{Kind: override.OfShadow, Zone: o.Zone}}, err
}

func limitEntry(e *engine.Engine, o *wire.Change, ends bool) (entry override.Entry, err error) {
	if o.Network != "" {
		return entry, badRequest("a limit is of a zone: want no network")
	}
	entry = override.Entry{Name: override.Name{Kind: override.OfLimit, Zone: o.Zone, Key: o.Key}}
	h := e.Overrides().Limit(o.Zone, o.Key, time.Now())
	if ends && (e.Zones[o.Zone] == nil || h != nil && h.Key == o.Key) {
		return entry, nil // perhaps of a zone, or of a key, that a reload has taken away
	}
	z, err := findZone(e, o.Zone)
	if err != nil {
		return entry, err
	}
	if o.Key != "" {
		entry.Key, err = bucketOf(z, o.Key)
	}
	if ends || err != nil {
		return entry, err
	}
	entry.Limit = strings.Join(strings.Fields(o.Limit), " ")
	entry.Plan = e.Plans[entry.Limit]
	switch n := z.Read(entry.Key); {
	case o.Key == "":
	case n.Unlisted != "":
		return entry, badRequest("no override of zone %q lists this key, so its requests use another bucket: key unlisted is %s", z.Name, n.Unlisted)
	case !n.Valid:
		return entry, badRequest("invalid key %q: zone %q can have no such bucket: give the whole key as the access log shows it, such as 203.0.113.7 or @sha256:.../@sha256:...", o.Key, z.Name)
	}
	return entry, nil
}

// bucketOf returns the name of the one bucket that a text stands for.
func bucketOf(z *engine.Zone, text string) (name string, err error) {
	if strings.HasSuffix(text, limit.Cut) {
		return "", badRequest("invalid key %q: want the whole key, which --json shows", text)
	}
	if account := limit.AccountOf(text); account != text {
		return "", badRequest("invalid key %q: a device has the limit of its account: want %s", text, account)
	}
	network, wrong := netip.ParsePrefix(text)
	isNetwork := wrong == nil && z.Key.HasAddress()
	if isNetwork {
		text = network.Addr().String()
	}
	name, _ = z.NameOf(text)
	if isNetwork && !network.IsSingleIP() && shownNetwork(z, name) != network.String() {
		return "", badRequest("invalid key %q: a limit is of one bucket, and those of zone %q are not of this network; ban refuses networks", network, z.Name)
	}
	return name, nil
}

// networkOf parses an address or a network. An IPv6 address stands for its /64, as
// clients have whole ones.
func networkOf(text string) (netip.Prefix, error) {
	if network, err := netip.ParsePrefix(text); err == nil {
		return network.Masked(), nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, badRequest("invalid network %q: want an address, or a network such as 203.0.113.0/24", text)
	}
	return bucketkey.ClientPrefix(addr, 32, 64), nil
}

// overrideOf describes a change that holds.
func overrideOf(e *engine.Engine, entry override.Entry) wire.Override {
	entry.Plan = leakybucket.Limit{} // the text names it
	o := wire.Override{Entry: entry}
	if o.Kind == override.OfBan {
		o.Key, o.Network = "", o.Key
	} else if z := e.Zones[o.Zone]; z != nil {
		o.Network = shownNetwork(z, o.Key)
	}
	return o
}

// overridesOf describes those that hold, which JSON shows as a list even if it is empty.
func overridesOf(e *engine.Engine, now time.Time) []wire.Override {
	return converted(e.Control.Changes.Table.List(now), func(h *override.Held) wire.Override {
		o := overrideOf(e, h.Entry)
		o.Hits = h.Hits.Load()
		return o
	})
}
