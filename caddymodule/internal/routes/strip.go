package routes

import (
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
)

// Strip returns a server with nothing in its routes but throttle handlers and what leads
// requests there or changes them on the way. A handler that answers every request makes
// its route terminal. What comes after the last throttle handler goes, too: it can change
// nothing.
func Strip(server *caddyhttp.Server) *caddyhttp.Server {
	routes, _ := strip(server.Routes, false)
	stripped := &caddyhttp.Server{Listen: server.Listen, Routes: routes, NamedRoutes: make(map[string]*caddyhttp.Route)}
	for name, route := range server.NamedRoutes {
		kept, _ := stripRoute(route, true)
		stripped.NamedRoutes[name] = &kept
	}
	return stripped
}

// strip strips routes. Later says that there is another throttle handler behind them. It
// also returns whether one is in them.
func strip(routes caddyhttp.RouteList, later bool) (kept caddyhttp.RouteList, limits bool) {
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
	kept.HandlersRaw, kept.Handlers = nil, nil
	if end := slices.IndexFunc(handlers, func(h Handler) bool { return h.Answers() }); end >= 0 {
		handlers, kept.Terminal = handlers[:end], true
	}
	later = later && !kept.Terminal
	for i := range slices.Backward(handlers) {
		limits = handlers[i].strip(later || limits) || limits
		if handlers[i].Raw != nil {
			kept.HandlersRaw = append(kept.HandlersRaw, handlers[i].Raw)
		}
		if handlers[i].Module != nil {
			kept.Handlers = append(kept.Handlers, handlers[i].Module)
		}
	}
	slices.Reverse(kept.HandlersRaw)
	slices.Reverse(kept.Handlers)
	return kept, limits
}

// strip leaves of a handler what is kept, which may be nothing. It returns whether it is
// or holds a throttle handler.
func (h *Handler) strip(later bool) (limits bool) {
	switch {
	case h.Name == "throttle" || h.Name == "invoke":
		return true
	case h.Name == "subroute":
		routes, limits := strip(h.Routes, later)
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
	h.Raw, h.Module = nil, nil
	return false
}

// replace replaces a handler by another one of the same name.
func (h *Handler) replace(module caddyhttp.MiddlewareHandler) {
	if h.Module != nil {
		h.Module = module
		return
	}
	h.Raw = caddyconfig.JSONModuleObject(module, "handler", h.Name, nil)
}

// A Replace returns the handler that stands for a throttle handler.
type Replace func(throttle caddyhttp.MiddlewareHandler) caddyhttp.MiddlewareHandler

// Link returns a chain of the provisioned routes of a server that was stripped. It ends at
// end, as do terminal routes, which Caddy would end with an empty answer.
func Link(ctx caddy.Context, server *caddyhttp.Server, end caddyhttp.Handler, replace Replace) (caddyhttp.Handler, error) {
	for _, route := range server.NamedRoutes {
		if err := link(ctx, route, end, replace); err != nil {
			return nil, err
		}
	}
	for i := range server.Routes {
		if err := link(ctx, &server.Routes[i], end, replace); err != nil {
			return nil, err
		}
	}
	return server.Routes.Compile(end), nil
}

func link(ctx caddy.Context, route *caddyhttp.Route, end caddyhttp.Handler, replace Replace) error {
	for i, handler := range route.Handlers {
		switch h := handler.(type) {
		case *caddyhttp.Subroute:
			for j := range h.Routes {
				if err := link(ctx, &h.Routes[j], end, replace); err != nil {
					return err
				}
			}
		case caddy.Module:
			if h.CaddyModule().ID.Name() == "throttle" {
				route.Handlers[i] = replace(handler)
			}
		}
	}
	if route.Terminal {
		route.Handlers = append(route.Handlers, last{end})
	}
	return route.ProvisionHandlers(ctx, nil)
}

// last is a handler that calls no other.
type last struct{ caddyhttp.Handler }

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h last) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	return h.Handler.ServeHTTP(w, r)
}
