package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
)

// A config in a replay is stripped to routes, matchers and throttle handlers. Nothing
// else of it is loaded: no listener, log, storage, certificate, upstream or shared store.

// A strippedServer is what a replay needs of a server's config.
type strippedServer struct {
	Listen      []string                  `json:"listen,omitempty"`
	Routes      []*strippedRoute          `json:"routes,omitempty"`
	NamedRoutes map[string]*strippedRoute `json:"named_routes,omitempty"`
}

// A strippedRoute is a route without the handlers that a replay cannot run.
type strippedRoute struct {
	Group    string                   `json:"group,omitempty"`
	Match    caddyhttp.RawMatcherSets `json:"match,omitempty"`
	Handle   []json.RawMessage        `json:"handle,omitempty"`
	Terminal bool                     `json:"terminal,omitempty"`
}

// stripRoutes removes the handlers that are neither throttle nor routing, and what
// comes after the last throttle handler: it can change nothing. Later says that there
// is another one behind these routes. It also returns whether one is in them.
func stripRoutes(routes []*strippedRoute, later bool) (kept []*strippedRoute, limits bool, err error) {
	for _, route := range slices.Backward(routes) {
		limited, err := route.strip(later || limits)
		if err != nil {
			return nil, false, err
		}
		if limited || later || limits {
			kept = append(kept, route)
		}
		limits = limits || limited
	}
	slices.Reverse(kept)
	return kept, limits, nil
}

// strip strips a route. A handler that answers every request ends it.
func (r *strippedRoute) strip(later bool) (limits bool, err error) {
	handlers := make([]strippedHandler, 0, len(r.Handle))
	for _, raw := range r.Handle {
		handler := strippedHandler{raw: raw}
		if err := json.Unmarshal(raw, &handler); err != nil {
			return false, fmt.Errorf("reading a handler: %w", err)
		}
		if handler.answers() {
			r.Terminal = true
			break
		}
		handlers = append(handlers, handler)
	}
	later = later && !r.Terminal
	r.Handle = nil
	for i := range slices.Backward(handlers) {
		kept, limited, err := handlers[i].strip(later || limits)
		if err != nil {
			return false, err
		}
		if limits = limits || limited; kept != nil {
			r.Handle = append(r.Handle, kept)
		}
	}
	slices.Reverse(r.Handle)
	return limits, nil
}

// A strippedHandler is what a replay needs to know of a handler's config.
type strippedHandler struct {
	raw            json.RawMessage
	Name           string           `json:"handler"`
	Routes         []*strippedRoute `json:"routes"`
	Request        json.RawMessage  `json:"request"`
	HandleResponse json.RawMessage  `json:"handle_response"`
	PassThru       bool             `json:"pass_thru"`
}

// answers reports whether the handler answers every request.
func (h *strippedHandler) answers() bool {
	switch h.Name {
	case "static_response", "error", "acme_server", "metrics":
		return true
	case "reverse_proxy":
		return h.HandleResponse == nil // forward_auth goes on
	case "file_server":
		return !h.PassThru
	}
	return false
}

// strip returns what is kept of the handler, or nil, and whether it is or holds a
// throttle handler.
func (h *strippedHandler) strip(later bool) (kept json.RawMessage, limits bool, err error) {
	switch h.Name {
	case "throttle", "invoke":
		return h.raw, true, nil
	case "subroute":
		routes, limits, err := stripRoutes(h.Routes, later)
		if err != nil || len(routes) == 0 {
			return nil, limits, err
		}
		kept, err = json.Marshal(map[string]any{"handler": "subroute", "routes": routes})
		return kept, limits, err
	case "vars", "map", "rewrite":
		if later {
			return h.raw, false, nil
		}
	case "headers":
		if later && h.Request != nil {
			kept, err = json.Marshal(map[string]any{"handler": "headers", "request": h.Request})
			return kept, false, err
		}
	}
	return nil, false, nil
}

// A replayServer is a server of the config as a replay runs it.
type replayServer struct {
	*caddyhttp.Server
	name  string
	hosts []string // of its routes; none means that it takes every host
	ports []string
	chain caddyhttp.Handler
}

// A replayConfig is a config that requests of a log can be run through.
type replayConfig struct {
	app      *App
	servers  []*replayServer
	handlers []*Handler
	routes   bool // something but one throttle handler stands in the way of requests
	close    func()
}

// loadReplayConfig loads a config, whose requests end at upstream.
func loadReplayConfig(config []byte, upstream caddyhttp.Handler) (_ *replayConfig, err error) {
	var whole struct {
		Apps struct {
			HTTP struct {
				Servers map[string]*strippedServer `json:"servers"`
			} `json:"http"`
			Throttle map[string]json.RawMessage `json:"throttle"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(config, &whole); err != nil {
		return nil, fmt.Errorf("reading the config: %w", err)
	}
	delete(whole.Apps.Throttle, "store")
	throttle := []byte("{}")
	if whole.Apps.Throttle != nil {
		if throttle, err = json.Marshal(whole.Apps.Throttle); err != nil {
			return nil, err
		}
	}
	cfg := &caddy.Config{
		Admin:   &caddy.AdminConfig{Disabled: true},
		Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{caddy.DefaultLoggerName: {BaseLog: caddy.BaseLog{Level: "FATAL"}}}},
	}
	ctx, err := caddy.ProvisionContext(cfg)
	if err != nil {
		return nil, fmt.Errorf("loading the config: %w", err)
	}
	// The app is loaded in a context that can be ended, which cleans it up.
	loading, cancel := caddy.NewContext(ctx)
	cfg.AppsRaw = caddy.ModuleMap{"throttle": throttle}
	c := &replayConfig{close: cancel}
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	app, err := loading.App("throttle")
	if err != nil {
		return nil, err
	}
	c.app = app.(*App)
	for _, name := range slices.Sorted(maps.Keys(whole.Apps.HTTP.Servers)) {
		if err := c.addServer(loading, name, whole.Apps.HTTP.Servers[name], upstream); err != nil {
			return nil, fmt.Errorf("loading the config of server %s: %w", name, err)
		}
	}
	if len(c.handlers) == 0 {
		return nil, errors.New("the config has no throttle handler, so there is nothing to replay")
	}
	return c, nil
}

// addServer loads the routes of a server.
func (c *replayConfig) addServer(ctx caddy.Context, name string, stripped *strippedServer, upstream caddyhttp.Handler) (err error) {
	if stripped.Routes, _, err = stripRoutes(stripped.Routes, false); err != nil {
		return err
	}
	for _, route := range stripped.NamedRoutes {
		if _, err := route.strip(true); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(stripped)
	if err != nil {
		return err
	}
	s := &replayServer{Server: new(caddyhttp.Server), name: name}
	if err := json.Unmarshal(raw, s.Server); err != nil {
		return err
	}
	for _, listen := range s.Listen {
		if _, port, err := net.SplitHostPort(listen); err == nil {
			s.ports = append(s.ports, port)
		}
	}
	ctx.Context = context.WithValue(ctx.Context, caddyhttp.ServerCtxKey, s.Server)
	if err := s.Routes.Provision(ctx); err != nil {
		return err
	}
	if err := c.finish(ctx, s.Routes, upstream); err != nil {
		return err
	}
	for _, route := range s.NamedRoutes {
		if err := route.Provision(ctx, nil); err != nil {
			return err
		}
		if err := c.finish(ctx, caddyhttp.RouteList{*route}, upstream); err != nil {
			return err
		}
	}
	s.findHosts()
	s.chain = s.Routes.Compile(upstream)
	c.servers = append(c.servers, s)
	return nil
}

// finish lets terminal routes end at upstream, where Caddy would end them with an
// empty answer, and collects the throttle handlers.
func (c *replayConfig) finish(ctx caddy.Context, routes caddyhttp.RouteList, upstream caddyhttp.Handler) error {
	for i := range routes {
		route := &routes[i]
		for _, handler := range route.Handlers {
			switch h := handler.(type) {
			case *Handler:
				c.handlers = append(c.handlers, h)
			case *caddyhttp.Subroute:
				if err := c.finish(ctx, h.Routes, upstream); err != nil {
					return err
				}
			}
		}
		c.routes = c.routes || len(route.MatcherSets) > 0 || len(route.Handlers) != 1
		if route.Terminal {
			route.Handlers = append(route.Handlers, caddyhttp.MiddlewareHandler(asMiddleware{upstream}))
		}
		if err := route.ProvisionHandlers(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// asMiddleware is a handler that calls no other.
type asMiddleware struct{ caddyhttp.Handler }

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h asMiddleware) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	return h.Handler.ServeHTTP(w, r)
}

// findHosts finds out which hosts the routes of a server are for.
func (s *replayServer) findHosts() {
	for i := range s.Routes {
		hosts := hostsOf(&s.Routes[i])
		if hosts == "" {
			s.hosts = nil
			return
		}
		s.hosts = append(s.hosts, strings.Split(hosts, ", ")...)
	}
}

// names reports whether a route of the server is for a host.
func (s *replayServer) names(host string) bool {
	return slices.ContainsFunc(s.hosts, func(pattern string) bool {
		if rest, wild := strings.CutPrefix(pattern, "*."); wild {
			_, parent, found := strings.Cut(host, ".")
			return found && strings.EqualFold(parent, rest)
		}
		return strings.EqualFold(pattern, host)
	})
}

// serverOf returns the server that a request has probably come to. A log does not
// say: it is the one that listens where the Host header says, or the one with a site of
// that host, or the one for HTTPS.
func (c *replayConfig) serverOf(req *accesslog.Request) *replayServer {
	if len(c.servers) == 1 {
		return c.servers[0]
	}
	host, port, err := net.SplitHostPort(req.Host)
	if err != nil {
		host, port = req.Host, ""
	}
	if port == "" && req.TLS {
		port = "443"
	}
	best, most := c.servers[0], -1
	for _, s := range c.servers {
		score := 0
		if port != "" && slices.Contains(s.ports, port) {
			score += 4
		}
		if s.names(host) {
			score += 2
		}
		if slices.Contains(s.ports, "443") {
			score++
		}
		if score > most {
			best, most = s, score
		}
	}
	return best
}
