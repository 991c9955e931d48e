package caddymodule

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(MatchBlocked{})
}

// MatchBlocked matches requests of clients that a zone with `block` keeps out:
// after the throttle handler those that it has found to be, and before it those
// that it would find, as far as this process knows. Shadow zones block nobody.
type MatchBlocked struct {
	// The zone. Default: any.
	Zone string `json:"zone,omitempty"`

	app *App
}

var errAsksThrottle = errors.New("throttle_blocked cannot stand within throttle, which would have to ask itself: want it among the site's own matchers")

// CaddyModule returns the Caddy module information.
func (MatchBlocked) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.matchers.throttle_blocked",
		New: func() caddy.Module { return new(MatchBlocked) },
	}
}

// Provision finds the zones.
func (m *MatchBlocked) Provision(ctx caddy.Context) error {
	for _, within := range ctx.Modules() {
		switch within.(type) {
		case *App, *Handler:
			return errAsksThrottle
		}
	}
	app, err := ctx.App("throttle")
	if err != nil {
		return err
	}
	m.app = app.(*App)
	m.app.matched = append(m.app.matched, m.Zone)
	return nil
}

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (m *MatchBlocked) MatchWithError(r *http.Request) (bool, error) {
	p := passageOf(r)
	if p.blocked(m.Zone) {
		return true, nil
	}
	if free, err := isNot(m.app.exempt, r); err != nil || !free || !m.app.blocks.some.Load() {
		return false, err
	}
	s := subject{r: r, repl: r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)}
	for name, shared := range m.app.shared {
		if z := shared.zone; (m.Zone == "" || m.Zone == name) && !p.charged(name) {
			if c, _, found := z.blockOf(&s, new(keyRoom)); found && !c.Shadow {
				return true, nil
			}
		}
	}
	return false, nil
}

// UnmarshalCaddyfile sets up the matcher from Caddyfile tokens. Syntax:
//
//	throttle_blocked [<zone>]
func (m *MatchBlocked) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	for d.Next() {
		if words := d.RemainingArgs(); len(words) == 1 && m.Zone == "" {
			m.Zone = words[0]
		} else if len(words) > 0 {
			return d.Err("throttle_blocked is about one zone or any: want throttle_blocked [<zone>]")
		}
		if d.NextBlock(0) {
			return d.Err("throttle_blocked takes no block: want throttle_blocked [<zone>]")
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
