package caddymodule

import (
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
)

// InFlight limits how many requests the upstream works on at once. A request that finds no slot
// waits, in the order of arrival or by turns, or is refused. Its body is received before that, so
// that no slot goes by the pace of a client, and its slot is free as soon as the upstream is done.
// A request takes one slot of a name, however often it is routed. In an error route it takes
// one if it holds none, and never waits.
type InFlight struct {
	config.InFlightHandler
	running *inflight.Handler
}

// CaddyModule returns the Caddy module information.
func (InFlight) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.in_flight",
		New: func() caddy.Module { return new(InFlight) },
	}
}

// Provision finds or compiles what the handler limits.
func (h *InFlight) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	for _, warning := range option.Warnings(h.Match, false) {
		app.engine.Warner.Warn(warning)
	}
	match, err := option.LoadMatchers(ctx, h, "Match", h.Match)
	if err != nil {
		return err
	}
	limit, err := app.inFlightOf(ctx, &h.InFlight)
	if err != nil {
		return err
	}
	if of := app.engine.Guard(ctx); of != nil && strings.Contains(limit.Definition, "http.throttle.") {
		of.Shown = true // one from the global options is not in the config of the route
	}
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	h.running = limit.NewHandler(server, match)
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *InFlight) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return h.running.ServeHTTP(w, r, next)
}

// parseInFlight sets up a route with the handler.
func parseInFlight(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	handler, err := zonefile.ParseInFlight(h)
	if err != nil {
		return nil, err
	}
	return h.NewRoute(nil, &InFlight{InFlightHandler: *handler}), nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*InFlight)(nil)
	_ caddyhttp.MiddlewareHandler = (*InFlight)(nil)
)
