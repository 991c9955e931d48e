package caddymodule

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
)

// Handler limits the rate of requests with leaky buckets. It charges each request to
// one bucket in every zone that matches it, all or none. A request that does not
// fit is refused with a Retry-After that says when to come back. A zone charges a
// request once, even if it is rewritten or passes several handlers. A request that is
// refused further in, by another throttle or in_flight, costs nothing. Inside error
// routes nothing is charged.
type Handler struct {
	config.Handler
	running *engine.Handler
}

// Running returns the handler as it runs.
func (h *Handler) Running() *engine.Handler { return h.running }

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.throttle",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision finds or compiles the handler's zones.
func (h *Handler) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	if len(h.Zone) == 0 {
		return errors.New("no zone given: want at least one")
	}
	for _, warning := range option.Warnings(h.Match, false) {
		app.engine.Warner.Warn(warning)
	}
	match, err := option.LoadMatchers(ctx, h, "Match", h.Match)
	if err != nil {
		return err
	}
	duplicates, zones := make(config.Duplicates), []*engine.Zone(nil)
	for _, definition := range h.Zone {
		z, err := app.zoneOf(ctx, definition)
		if err != nil {
			return err
		}
		if err := duplicates.Add(z.Name, z.Definition); err != nil {
			return err
		}
		zones = append(zones, z)
	}
	h.running = engine.NewHandler(ctx, app.engine, match, zones)
	h.running.Announces = h.RateLimitHeaders
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return h.running.ServeHTTP(w, r, next)
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
