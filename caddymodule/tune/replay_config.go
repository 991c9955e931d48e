package tune

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/certmagic"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
)

// A replayServer is a server of the config as a replay runs it.
type replayServer struct {
	*caddyhttp.Server
	hosts []string // of its routes; none means that it takes every host
	ports []string
	chain caddyhttp.Handler
}

// A replayConfig is a config that requests of a log can be run through.
type replayConfig struct {
	app      *engine.Engine
	servers  []*replayServer
	handlers []*engine.Handler
	raw      []byte   // the config
	absent   []string // folders in which the config looks for files, and which are not here
	fields   []string // of zones, which requests are given that are logins
	close    func()

	elsewhere int    // requests for hosts of which the config has no site
	stranger  string // the first of these hosts
}

// newPlayer loads a config, as JSON, for a replay. Nothing is loaded but throttle and the routes that
// lead to it: no listener, log, storage, certificate, upstream, shared store or secret.
func newPlayer(config []byte) (_ *player, err error) {
	var whole struct {
		Apps struct {
			HTTP struct {
				Servers map[string]*caddyhttp.Server `json:"servers"`
			} `json:"http"`
			Throttle map[string]json.RawMessage `json:"throttle"`
		} `json:"apps"`
	}
	var compact bytes.Buffer
	whole.Apps.Throttle = make(map[string]json.RawMessage) // if there is none
	if err := errors.Join(json.Compact(&compact, config), json.Unmarshal(compact.Bytes(), &whole)); err != nil {
		return nil, fmt.Errorf("reading the config: %w", err)
	}
	delete(whole.Apps.Throttle, "store")
	delete(whole.Apps.Throttle, "signing_key")
	rp := &player{unknown: make(map[string]string), keyless: make(map[string]int), replayConfig: replayConfig{raw: compact.Bytes()}}
	rp.clients.By(32, 64)
	rp.noteFolders(whole.Apps.Throttle)
	throttle, _ := json.Marshal(whole.Apps.Throttle) // of what has been read
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
	rp.close = cancel
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	if rp.app, err = engine.Of(loading); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(whole.Apps.HTTP.Servers)) {
		if err := rp.addServer(loading, whole.Apps.HTTP.Servers[name]); err != nil {
			return nil, fmt.Errorf("loading the config of server %s: %w", name, err)
		}
	}
	if len(rp.handlers) == 0 {
		return nil, errors.New("the config has no throttle handler, so there is nothing to replay: named routes are not followed")
	}
	return rp, nil
}

// rootFolder finds the folders of a config.
var rootFolder = regexp.MustCompile(`"root":"(/[^"{]*)"`)

// noteFolders notes the folders of parts of the config that look for files and are not here:
// static_files goes by endings then, and what try_files makes of an address is unknown.
func (c *replayConfig) noteFolders(parts ...any) {
	raw, _ := json.Marshal(parts) // loading the config says why it fails
	if !bytes.Contains(raw, []byte(`"file":`)) && !bytes.Contains(raw, []byte(`"exempt_static_files":`)) {
		return
	}
	for _, root := range rootFolder.FindAllStringSubmatch(string(raw), -1) {
		if _, err := os.Stat(root[1]); err != nil && !slices.Contains(c.absent, root[1]) {
			c.absent = append(c.absent, root[1])
		}
	}
}

// addServer loads the routes of a server.
func (rp *player) addServer(ctx caddy.Context, config *caddyhttp.Server) error {
	s := &replayServer{Server: &caddyhttp.Server{Listen: config.Listen, Routes: stripRoutes(config.Routes, false)}}
	rp.servers = append(rp.servers, s)
	rp.noteFolders(s.Routes)
	for _, listen := range s.Listen {
		if _, port, err := net.SplitHostPort(listen); err == nil {
			s.ports = append(s.ports, port)
		}
	}
	for _, route := range s.Routes { // before Caddy drops the matchers that it has loaded
		var hosts []string
		for _, set := range route.MatcherSetsRaw {
			var match []string
			_ = json.Unmarshal(set["host"], &match) // a set without host
			hosts = append(hosts, match...)
		}
		if s.hosts = append(s.hosts, hosts...); len(hosts) == 0 {
			s.hosts = nil
			break
		}
	}
	ctx.Context = context.WithValue(ctx.Context, caddyhttp.ServerCtxKey, s.Server)
	if err := s.Routes.Provision(ctx); err != nil {
		return err
	}
	if err := rp.linkRoutes(ctx, s.Routes); err != nil {
		return err
	}
	s.chain = s.Routes.Compile(caddyhttp.HandlerFunc(rp.upstream))
	return nil
}

// takes reports whether the server has a site of that host, or one for all.
func (s *replayServer) takes(host string) bool {
	return len(s.hosts) == 0 || slices.ContainsFunc(s.hosts, func(pattern string) bool { return certmagic.MatchWildcard(host, strings.ToLower(pattern)) })
}

// serverOf returns the server that a request has probably come to, which a log does not say: one
// with a site of that host, and rather one that listens on the port.
func (c *replayConfig) serverOf(req *accesslog.Request) *replayServer {
	host, port := hostAndPort(req.Host)
	if port == "" && req.TLS {
		port = "443"
	}
	i := slices.IndexFunc(c.servers, func(s *replayServer) bool { return s.takes(host) && slices.Contains(s.ports, port) })
	if i < 0 {
		i = slices.IndexFunc(c.servers, func(s *replayServer) bool { return s.takes(host) })
	}
	if i < 0 && !slices.ContainsFunc(c.servers, func(s *replayServer) bool { return strings.Contains(strings.Join(s.hosts, ""), "{") }) {
		c.elsewhere, c.stranger = c.elsewhere+1, cmp.Or(c.stranger, strings.Clone(host))
	}
	return c.servers[max(0, i)]
}

// hostAndPort splits what a client has sent as Host.
func hostAndPort(sent string) (host, port string) {
	host, port, err := net.SplitHostPort(sent)
	if err != nil {
		host = sent
	}
	return strings.ToLower(host), port
}

// A routeHandler is a handler of a route that Caddy has not provisioned yet.
type routeHandler struct {
	Name string `json:"handler"` // of its module, such as throttle

	Routes    caddyhttp.RouteList `json:"routes"`          // of a subroute
	Request   *headers.HeaderOps  `json:"request"`         // what headers changes in requests
	Responses []any               `json:"handle_response"` // with which a proxy lets requests go on, as forward_auth does
	PassThru  bool                `json:"pass_thru"`       // of a file_server
}

// handlerOf reads a handler. What is none has no name: Caddy says so.
func handlerOf(raw json.RawMessage) (h routeHandler) {
	_ = json.Unmarshal(raw, &h) // other modules may have fields of these names and of other types
	return h
}

// answers reports whether a handler answers every request, or fails it.
func answers(raw json.RawMessage) bool {
	switch h := handlerOf(raw); h.Name {
	case "static_response", "error", "metrics", "throttle_inspector", "throttle_seen":
		return true
	case "reverse_proxy":
		return len(h.Responses) == 0
	case "file_server":
		return !h.PassThru
	}
	return false
}

// limits reports whether a throttle handler is in a compact part of a config.
func limits(raw json.RawMessage) bool { return bytes.Contains(raw, []byte(`"handler":"throttle"`)) }

// stripRoutes returns routes with nothing in them but throttle handlers and what leads
// requests there or changes them on the way. A handler that answers every request makes its
// route terminal. What comes after the last throttle handler goes, too, unless another one is later:
// it can change nothing.
func stripRoutes(routes caddyhttp.RouteList, later bool) (kept caddyhttp.RouteList) {
	for _, route := range slices.Backward(routes) {
		handlers := route.HandlersRaw
		route.HandlersRaw = nil
		if end := slices.IndexFunc(handlers, answers); end >= 0 {
			handlers, route.Terminal = handlers[:end], true
		}
		before := later && !route.Terminal
		for _, raw := range slices.Backward(handlers) {
			if raw = stripHandler(raw, before); raw != nil {
				route.HandlersRaw, before = append(route.HandlersRaw, raw), before || limits(raw)
			}
		}
		slices.Reverse(route.HandlersRaw)
		if later = later || slices.ContainsFunc(route.HandlersRaw, limits); later {
			kept = append(kept, route)
		}
	}
	slices.Reverse(kept)
	return kept
}

// stripHandler returns what is kept of a handler, which may be nothing.
func stripHandler(raw json.RawMessage, later bool) json.RawMessage {
	h := handlerOf(raw)
	switch {
	case h.Name == "throttle":
		return raw
	case h.Name == "subroute":
		if routes := stripRoutes(h.Routes, later); len(routes) > 0 {
			return caddyconfig.JSONModuleObject(&caddyhttp.Subroute{Routes: routes}, "handler", "subroute", nil)
		}
	case !later:
	case h.Name == "vars" || h.Name == "map" || h.Name == "rewrite":
		return raw
	case h.Name == "headers" && h.Request != nil:
		return caddyconfig.JSONModuleObject(&headers.Handler{Request: h.Request}, "handler", "headers", nil)
	case h.Name == "reverse_proxy": // for Record.Asked: what is refused later keeps its charge
		return json.RawMessage(`{"handler": "map", "destinations": ["{http.reverse_proxy.upstream.latency}"], "defaults": ["asked"]}`)
	}
	return nil
}

// linkRoutes links provisioned routes that were stripped. Terminal ones, which Caddy would end with
// an empty answer, end at the upstream. A limiter is in the place of each throttle handler.
func (rp *player) linkRoutes(ctx caddy.Context, routes caddyhttp.RouteList) error {
	for n := range routes {
		route := &routes[n]
		for i, handler := range route.Handlers {
			switch h := handler.(type) {
			case *caddyhttp.Subroute:
				if err := rp.linkRoutes(ctx, h.Routes); err != nil {
					return err
				}
			case *caddymodule.Handler:
				rp.handlers = append(rp.handlers, h.Running())
				route.Handlers[i] = limiter{h.Running(), rp}
			}
		}
		if route.Terminal {
			route.Handlers = append(route.Handlers, lastHandler{rp})
		}
		if err := route.ProvisionHandlers(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// lastHandler is the upstream as the last handler of a route.
type lastHandler struct{ *player }

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h lastHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	return h.upstream(w, r)
}
