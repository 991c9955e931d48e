// Package guest is a module of somebody else that uses throttle. It has nothing but what
// package caddymodule exports.
package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"

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
	w.throttle, err = caddymodule.Join(ctx)
	return err
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (w *Warden) ServeHTTP(rw http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	call, of := "buckets", map[string]any{"zone": w.Zone, "refused": true}
	switch network := r.URL.Query().Get("network"); r.Method {
	case http.MethodPost:
		call, of = "ban", map[string]any{"network": network, "for": "1m"}
	case http.MethodDelete:
		call, of = "unban", map[string]any{"network": network}
	}
	body, err := json.Marshal(of)
	if err != nil {
		return err
	}
	ask, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	ask.Header.Set("Content-Type", "application/json")
	err = w.throttle.Serve(rw, ask, call, "a stranger")
	var wrong caddy.APIError
	if errors.As(err, &wrong) {
		return caddyhttp.Error(wrong.HTTPStatus, err)
	}
	return err
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Warden)(nil)
	_ caddyhttp.MiddlewareHandler = (*Warden)(nil)
)
