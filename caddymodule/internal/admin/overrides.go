package admin

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/board"
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

func banOf(b override.Ban) wire.Ban {
	return wire.Ban{Network: b.Network, Span: wire.Span(b.Span), Hits: b.Hits()}
}

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
	return overridesOf(e.Control.Board.Table.List(time.Now())), nil
}

// change makes a change. One that replaces another without leave is an error of status 409.
func (in *Input) change(ctx context.Context, e *engine.Engine, entry override.Entry, o *wire.Change) (*wire.Told, error) {
	told, made, err := e.Control.Board.Change(ctx, entry, in.from.Via, o.Replace, !o.More)
	var was *board.Conflict
	switch {
	case errors.As(err, &was):
		text := "it would replace the one that holds until " + was.Until.Local().Format(time.DateTime)
		if was.By != "" {
			text += ", by " + was.By
		}
		if was.Note != "" {
			text += ", with the note " + strconv.Quote(was.Note)
		}
		return nil, caddy.APIError{HTTPStatus: http.StatusConflict, Err: errors.New(text + ": repeat it with replace (--replace) if that is meant")}
	case errors.Is(err, board.ErrNothing):
		return nil, err
	case err != nil:
		return nil, wrong(err)
	}
	in.changed = append(in.changed, made)
	if o.More {
		return nil, nil
	}
	result := &wire.Told{Nodes: told.Nodes, Holding: told.Holding, Kept: told.Kept}
	if told.Err != nil {
		result.Error = told.Err.Error()
	}
	return result, nil
}

// end ends a change, if there is one.
func (in *Input) end(ctx context.Context, e *engine.Engine, of override.Name, o *wire.Change) (done wire.Ended, err error) {
	entry := override.Entry{Name: of, Span: override.Span{Since: time.Now(), By: in.from.By}, Ended: true}
	done.Told, err = in.change(ctx, e, entry, o)
	if errors.Is(err, board.ErrNothing) {
		return done, nil
	}
	done.Ended = err == nil
	return done, err
}

func (in *Input) span(o *wire.Change) (override.Span, error) {
	span, err := override.NewSpan(time.Now(), time.Duration(o.For), in.from.By, o.Note)
	return span, wrong(err)
}

func answerBan(ctx context.Context, e *engine.Engine, in *Input) (any, error) {
	o, network, err := in.ofNetwork()
	if err != nil {
		return nil, err
	}
	held, err := in.span(&o)
	if err != nil {
		return nil, err
	}
	ban, err := override.NewBan(network, held)
	if err != nil {
		return nil, wrong(err)
	}
	told, err := in.change(ctx, e, ban, &o)
	return wire.Ban{Network: network, Span: wire.Span(held), Told: told}, err
}

func answerUnban(ctx context.Context, e *engine.Engine, in *Input) (any, error) {
	o, network, err := in.ofNetwork()
	if err != nil {
		return nil, err
	}
	done, err := in.end(ctx, e, override.Name{Kind: override.OfBan, Key: network.String()}, &o)
	if ban := e.Overrides().Banned(network.Addr(), time.Now()); err == nil && !done.Ended && ban != nil && ban.Network.Bits() < network.Bits() {
		return nil, badRequest("no ban is of %s alone: it lies in %s, which is banned; to let it in, end that ban", network, ban.Network)
	}
	return done, err
}

func answerShadow(ctx context.Context, e *engine.Engine, in *Input) (any, error) {
	o, err := in.ofWholeZone()
	if err != nil {
		return nil, err
	}
	if o.Zone != "" {
		if _, err := findZone(e, o.Zone); err != nil {
			return nil, err
		}
	}
	held, err := in.span(&o)
	if err != nil {
		return nil, err
	}
	told, err := in.change(ctx, e, override.NewShadow(o.Zone, held), &o)
	return wire.Shadow{Zone: o.Zone, Span: wire.Span(held), Told: told}, err
}

// answerUnshadow ends a switch, of a zone that a reload has taken away, too.
func answerUnshadow(ctx context.Context, e *engine.Engine, in *Input) (any, error) {
	o, err := in.ofWholeZone()
	if err != nil {
		return nil, err
	}
	done, err := in.end(ctx, e, override.Name{Kind: override.OfShadow, Zone: o.Zone}, &o)
	if err == nil && !done.Ended && o.Zone != "" {
		_, err = findZone(e, o.Zone)
	}
	return done, err
}

func answerLimit(ctx context.Context, e *engine.Engine, in *Input) (any, error) {
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
	if strings.HasSuffix(o.Key, rule.Cut) {
		return nil, badRequest("invalid key %q: want the whole key, which --json shows", o.Key)
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
	held, err := in.span(&o)
	if err != nil {
		return nil, err
	}
	told, err := in.change(ctx, e, override.NewLimit(o.Zone, o.Key, limit, held), &o)
	return wire.Limit{Zone: o.Zone, Key: o.Key, Text: limit.Text, Span: wire.Span(held), Told: told}, err
}

// answerUnlimit ends a limit, of a zone that a reload has taken away, too.
func answerUnlimit(ctx context.Context, e *engine.Engine, in *Input) (any, error) {
	o, err := in.ofZone()
	if err != nil {
		return nil, err
	}
	if o.Zone == "" {
		return nil, badRequest("a limit needs a zone")
	}
	z, unknown := findZone(e, o.Zone)
	keys := []string{o.Key}
	if unknown == nil {
		keys = append(keys, z.BucketOf(o.Key))
	}
	for _, key := range keys {
		done, err := in.end(ctx, e, override.Name{Kind: override.OfLimit, Zone: o.Zone, Key: key}, &o)
		if done.Key = key; done.Ended || err != nil {
			return done, err
		}
	}
	return wire.Ended{}, unknown
}
