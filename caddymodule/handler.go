package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight"
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
	return caddy.ModuleInfo{ID: "http.handlers.throttle", New: func() caddy.Module { return new(Handler) }}
}

// Provision finds or compiles the handler's zones.
func (h *Handler) Provision(ctx caddy.Context) error {
	e, err := engine.Of(ctx)
	if err != nil {
		return err
	}
	if len(h.Zone) == 0 {
		return errors.New("no zone given: want at least one")
	}
	match, err := loadMatch(ctx, e, h, h.Match)
	if err != nil {
		return err
	}
	duplicates, zones := make(config.Duplicates), []*engine.Zone(nil)
	for _, definition := range h.Zone {
		z, err := e.AddZone(ctx, definition, false)
		if err != nil {
			return err
		}
		if (z.ReadsFields() || z.MaxBody() > 0) && slices.ContainsFunc(ctx.Modules(), answered) {
			return fmt.Errorf("zone %q reads bodies, and in handle_response the upstream has read them: move it before the upstream, where settle and refund go by the response", z.Name)
		}
		if err := duplicates.Add(z.Name, z.Definition); err != nil {
			return err
		}
		zones = append(zones, z)
	}
	h.running = engine.NewHandler(ctx, e, match, zones)
	h.running.Announces = h.RateLimitHeaders
	return nil
}

// loadMatch loads the matcher of a directive.
func loadMatch(ctx caddy.Context, e *engine.Engine, handler caddy.Module, raw caddyhttp.RawMatcherSets) (caddyhttp.MatcherSets, error) {
	for _, warning := range option.Warnings(option.LeftOut(raw)) {
		e.Warner.Warn(warning, zap.String("place", "the matcher of "+string(handler.CaddyModule().ID)))
	}
	return option.LoadMatch(ctx, handler, raw)
}

// answered reports whether the routes within a module handle the response of an upstream, which has read the body.
func answered(within caddy.Module) bool {
	id := within.CaddyModule().ID
	return id == "http.handlers.reverse_proxy" || id == "http.handlers.intercept"
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return h.running.ServeHTTP(w, r, next)
}

// InFlight limits how many requests the upstream works on at once. A request that finds no slot
// waits, in the order of arrival or by turns, or is refused. Its body is received before that, so
// that a slow client holds no slot, and its slot is free as soon as the upstream is done.
// A request takes one slot of a name, however often it is routed. In an error route it takes
// one if it holds none, and never waits.
type InFlight struct {
	config.InFlightHandler
	running *inflight.Handler
}

// CaddyModule returns the Caddy module information.
func (InFlight) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.in_flight", New: func() caddy.Module { return new(InFlight) }}
}

// Provision finds or compiles what the handler limits.
func (h *InFlight) Provision(ctx caddy.Context) error {
	e, err := engine.Of(ctx)
	if err != nil {
		return err
	}
	match, err := loadMatch(ctx, e, h, h.Match)
	if err != nil {
		return err
	}
	limit, err := e.AddInFlight(ctx, &h.InFlight, false)
	if err != nil {
		return err
	}
	server, _ := e.JoinServer(ctx)
	if strings.Contains(limit.Definition, "http.throttle.") {
		e.ReadVerdicts(ctx) // one from the global options is not in the config of the route
	}
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
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddy.Provisioner           = (*InFlight)(nil)
	_ caddyhttp.MiddlewareHandler = (*InFlight)(nil)
)
