// Package guest is a module of somebody else that uses throttle. It has nothing but what
// package caddymodule exports.
package guest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
)

func init() {
	caddy.RegisterModule(Warden{})
	httpcaddyfile.RegisterHandlerDirective("warden", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		w := new(Warden)
		h.Next()
		if !h.AllArgs(&w.Zone) {
			return nil, h.ArgErr()
		}
		return w, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("warden", httpcaddyfile.Before, "respond")
}

// Warden lists who is refused in a zone (GET), bans a network (POST), and lifts the ban
// (DELETE).
type Warden struct {
	Zone string `json:"zone"`

	throttle *caddymodule.Guest
}

// CaddyModule returns the Caddy module information.
func (Warden) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.warden", New: func() caddy.Module { return new(Warden) }}
}

// Provision joins throttle.
func (w *Warden) Provision(ctx caddy.Context) (err error) {
	if w.throttle, err = caddymodule.Join(ctx); err != nil {
		return err
	}
	w.throttle.NeedZone(w.Zone)
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (w *Warden) ServeHTTP(rw http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	network := r.URL.Query().Get("network")
	switch r.Method {
	case http.MethodPost:
		made, err := w.throttle.Begin(r.Context(), "a stranger", caddymodule.Ban, caddymodule.Change{Network: network, For: caddy.Duration(time.Minute)})
		if err != nil {
			return err
		}
		return json.NewEncoder(rw).Encode(made.Network)
	case http.MethodDelete:
		ended, err := w.throttle.End(r.Context(), "a stranger", caddymodule.Ban, caddymodule.Change{Network: network})
		if err != nil {
			return err
		}
		return json.NewEncoder(rw).Encode(ended.Ended)
	}
	refused, err := w.throttle.Buckets(r.Context(), caddymodule.BucketsQuery{Zone: w.Zone, Refused: true})
	if err != nil {
		return err
	}
	for _, b := range refused.Buckets {
		why, err := w.throttle.Why(r.Context(), caddymodule.ClientQuery{Client: b.Key})
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(rw, b.Key, b.Verdict.Reason, why.Refused, why.Ban != nil)
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Warden)(nil)
	_ caddyhttp.MiddlewareHandler = (*Warden)(nil)
)
