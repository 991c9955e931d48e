package caddymodule

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
)

// MatchBlocked matches requests of clients that a zone blocks, or that an administrator
// has banned. After the throttle handler, it matches requests that the handler found to be
// blocked. Before it, it matches those that the handler would block, as far as this
// process knows. Shadow zones block nobody.
type MatchBlocked struct {
	// The zone that has blocked the client. Default: any zone. A zone that this
	// config does not define is an error.
	Zone string `json:"zone,omitempty"`

	engine *engine.Engine
}

// CaddyModule returns the Caddy module information.
func (MatchBlocked) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.matchers.throttle_blocked", New: func() caddy.Module { return new(MatchBlocked) }}
}

// Provision has the zone looked for when the config starts, when all zones are known.
func (m *MatchBlocked) Provision(ctx caddy.Context) (err error) {
	for _, within := range ctx.Modules() {
		switch within.(type) {
		case *App, *Handler:
			return option.ErrAsksThrottle
		}
	}
	if m.engine, err = engine.Of(ctx); err != nil {
		return err
	}
	m.engine.ReadVerdicts(ctx)
	m.engine.OnStart = append(m.engine.OnStart, func(context.Context) error {
		if m.Zone == "" || m.engine.Zones[m.Zone] != nil {
			return nil
		}
		return fmt.Errorf("throttle_blocked: %w", option.Unknown("zone", m.Zone, "", slices.Sorted(maps.Keys(m.engine.Zones))))
	})
	return nil
}

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (m *MatchBlocked) MatchWithError(r *http.Request) (bool, error) {
	res := limit.VerdictsOf(r.Context())
	if res.Blocked(m.Zone) {
		return true, nil
	}
	s := limit.NewSubject(r)
	s.Overrides = m.engine.Overrides()
	if exempt, err := s.MatchesEveryAddress(m.engine.Exempt); err != nil || exempt {
		return false, err
	}
	if s.Ban(time.Now()) != nil {
		if by := limit.BannedBy(m.zones(), &s); by != nil && by.Shadow == nil {
			return true, nil
		}
	}
	if !m.engine.AnyBlock() {
		return false, nil
	}
	var zones []*limit.Zone
	if m.Zone == "" {
		zones = m.engine.MayBlock(&s) // of all, of which a host may have thousands
	} else {
		zones = m.zones()
	}
	for _, z := range zones {
		c, can := z.BlockedBucket(&s)
		if !can || c.Shadow || res.Decided(z) {
			continue
		}
		if _, runs := m.engine.ConfirmedBlock(r.Context(), &c); runs {
			return true, nil
		}
	}
	return false, nil
}

// zones returns the zones that the matcher asks about.
func (m *MatchBlocked) zones() (zones []*limit.Zone) {
	if z := m.engine.Zones[m.Zone]; z != nil {
		return []*limit.Zone{z.Zone}
	}
	for _, z := range m.engine.Zones {
		zones = append(zones, z.Zone)
	}
	return zones
}

// UnmarshalCaddyfile sets up the matcher from Caddyfile tokens. Syntax:
//
//	throttle_blocked [<zone>]
func (m *MatchBlocked) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	for d.Next() {
		if m.Zone == "" {
			d.Args(&m.Zone)
		}
		if d.NextArg() || d.NextBlock(0) {
			return d.Err("want throttle_blocked [<zone>] and nothing else")
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner                 = (*MatchBlocked)(nil)
	_ caddyhttp.RequestMatcherWithError = (*MatchBlocked)(nil)
	_ caddyfile.Unmarshaler             = (*MatchBlocked)(nil)
)
