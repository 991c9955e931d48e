package tune

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
)

// A routeHandler is a handler of a route that Caddy has not provisioned yet.
type routeHandler struct {
	Name string          `json:"handler"` // of its module, such as throttle
	raw  json.RawMessage // its config

	Routes    caddyhttp.RouteList `json:"routes"`          // of a subroute
	Request   *headers.HeaderOps  `json:"request"`         // what headers changes in requests
	Responses []any               `json:"handle_response"` // with which a proxy lets requests go on, as forward_auth does
	PassThru  bool                `json:"pass_thru"`       // of a file_server
}

// handlersOf returns the handlers of a route. What is none has no name: Caddy says so.
func handlersOf(route *caddyhttp.Route) (handlers []routeHandler) {
	for _, raw := range route.HandlersRaw {
		h := routeHandler{raw: raw}
		_ = json.Unmarshal(raw, &h) // other modules may have fields of these names and of other types
		handlers = append(handlers, h)
	}
	return handlers
}

// answers reports whether the handler answers every request, or fails it.
func (h *routeHandler) answers() bool {
	switch h.Name {
	case "static_response", "error", "metrics", "throttle_inspector", "throttle_seen":
		return true
	case "reverse_proxy":
		return len(h.Responses) == 0
	case "file_server":
		return !h.PassThru
	}
	return false
}

// hostsOf returns the hosts that a route matches. Placeholders in them are as they were written.
func hostsOf(route *caddyhttp.Route) (hosts []string) {
	for _, set := range route.MatcherSetsRaw {
		var match []string
		_ = json.Unmarshal(set["host"], &match) // a set without host
		hosts = append(hosts, match...)
	}
	return hosts
}

// stripServer returns a server with nothing in its routes but throttle handlers and what leads
// requests there or changes them on the way. A handler that answers every request makes its
// route terminal. What comes after the last throttle handler goes, too: it can change nothing.
func stripServer(server *caddyhttp.Server) *caddyhttp.Server {
	routes, _ := stripRoutes(server.Routes, false)
	stripped := &caddyhttp.Server{Listen: server.Listen, Routes: routes, NamedRoutes: make(map[string]*caddyhttp.Route)}
	for name, route := range server.NamedRoutes {
		kept, _ := stripRoute(route, true)
		stripped.NamedRoutes[name] = &kept
	}
	return stripped
}

// stripRoutes strips routes. later says that there is another throttle handler behind them. It
// also returns whether one is in them.
func stripRoutes(routes caddyhttp.RouteList, later bool) (kept caddyhttp.RouteList, limits bool) {
	for i := range slices.Backward(routes) {
		route, limited := stripRoute(&routes[i], later || limits)
		if limited || later || limits {
			kept = append(kept, route)
		}
		limits = limits || limited
	}
	slices.Reverse(kept)
	return kept, limits
}

func stripRoute(route *caddyhttp.Route, later bool) (kept caddyhttp.Route, limits bool) {
	handlers := handlersOf(route)
	kept = *route
	kept.HandlersRaw = nil
	if end := slices.IndexFunc(handlers, func(h routeHandler) bool { return h.answers() }); end >= 0 {
		handlers, kept.Terminal = handlers[:end], true
	}
	later = later && !kept.Terminal
	for i := range slices.Backward(handlers) {
		limits = handlers[i].strip(later || limits) || limits
		if handlers[i].raw != nil {
			kept.HandlersRaw = append(kept.HandlersRaw, handlers[i].raw)
		}
	}
	slices.Reverse(kept.HandlersRaw)
	return kept, limits
}

// strip leaves of a handler what is kept, which may be nothing. It returns whether it is
// or holds a throttle handler.
func (h *routeHandler) strip(later bool) (limits bool) {
	switch {
	case h.Name == "throttle" || h.Name == "invoke":
		return true
	case h.Name == "subroute":
		routes, limits := stripRoutes(h.Routes, later)
		if len(routes) > 0 {
			h.replace(&caddyhttp.Subroute{Routes: routes})
			return limits
		}
	case !later:
	case h.Name == "vars" || h.Name == "map" || h.Name == "rewrite":
		return false
	case h.Name == "headers" && h.Request != nil:
		h.replace(&headers.Handler{Request: h.Request})
		return false
	}
	h.raw = nil
	return false
}

// replace replaces a handler by another one of the same name.
func (h *routeHandler) replace(module caddyhttp.MiddlewareHandler) {
	h.raw = caddyconfig.JSONModuleObject(module, "handler", h.Name, nil)
}

// linkServer returns a chain of the provisioned routes of a server that was stripped. It ends
// at end, as do terminal routes, which Caddy would end with an empty answer. What instead
// returns is in the place of each throttle handler.
func linkServer(ctx caddy.Context, server *caddyhttp.Server, end caddyhttp.Handler, instead func(throttle caddyhttp.MiddlewareHandler) caddyhttp.MiddlewareHandler) (caddyhttp.Handler, error) {
	for _, route := range server.NamedRoutes {
		if err := linkRoute(ctx, route, end, instead); err != nil {
			return nil, err
		}
	}
	for i := range server.Routes {
		if err := linkRoute(ctx, &server.Routes[i], end, instead); err != nil {
			return nil, err
		}
	}
	return server.Routes.Compile(end), nil
}

func linkRoute(ctx caddy.Context, route *caddyhttp.Route, end caddyhttp.Handler, instead func(throttle caddyhttp.MiddlewareHandler) caddyhttp.MiddlewareHandler) error {
	for i, handler := range route.Handlers {
		switch h := handler.(type) {
		case *caddyhttp.Subroute:
			for i := range h.Routes {
				if err := linkRoute(ctx, &h.Routes[i], end, instead); err != nil {
					return err
				}
			}
		case caddy.Module:
			if h.CaddyModule().ID.Name() == "throttle" {
				route.Handlers[i] = instead(handler)
			}
		}
	}
	if route.Terminal {
		route.Handlers = append(route.Handlers, lastHandler{end})
	}
	return route.ProvisionHandlers(ctx, nil)
}

// lastHandler is a handler that calls no other.
type lastHandler struct{ caddyhttp.Handler }

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h lastHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	return h.Handler.ServeHTTP(w, r)
}
