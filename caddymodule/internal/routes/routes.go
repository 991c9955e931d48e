// Package routes walks the routes of Caddy's HTTP servers, before and after Caddy has
// provisioned them. It alone knows which handlers answer every request, so that a handler
// behind them sees none. Walk visits all handlers, and Strip returns the routes that
// matter to throttle, which Link lets requests go through. Begin with [Walk].
package routes

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
)

// ServersOf returns the servers of the HTTP app in which a module is provisioned, or nil if it
// is in none.
func ServersOf(ctx caddy.Context) map[string]*caddyhttp.Server {
	if modules := ctx.Modules(); len(modules) > 0 {
		if app, ok := modules[0].(*caddyhttp.App); ok {
			return app.Servers
		}
	}
	return nil
}

// A Handler is a handler of a route.
type Handler struct {
	Name   string                      `json:"handler"` // of its module, such as throttle
	Raw    json.RawMessage             `json:"-"`       // its config; nil once Caddy has provisioned it
	Module caddyhttp.MiddlewareHandler `json:"-"`       // nil before

	Routes    caddyhttp.RouteList `json:"routes"`          // of a subroute
	Invoked   string              `json:"name"`            // the named route of an invoke
	Root      any                 `json:"root"`            // of the site; set by vars
	Request   *headers.HeaderOps  `json:"request"`         // what headers changes in requests
	Responses []any               `json:"handle_response"` // with which a proxy lets requests go on, as forward_auth does
	PassThru  bool                `json:"pass_thru"`       // of a file_server
}

// handlersOf returns the handlers of a route. What is none has no name: Caddy says so.
func handlersOf(route *caddyhttp.Route) (handlers []Handler) {
	for _, raw := range route.HandlersRaw {
		h := Handler{Raw: raw}
		_ = json.Unmarshal(raw, &h) // other modules may have fields of these names and of other types
		handlers = append(handlers, h)
	}
	for _, module := range route.Handlers {
		h := Handler{Module: module}
		if m, ok := module.(caddy.Module); ok {
			h.Name = m.CaddyModule().ID.Name()
		}
		switch m := module.(type) {
		case *caddyhttp.Subroute:
			h.Routes = m.Routes // whose handlers are in no JSON any more
		case *headers.Handler:
			h.Request = m.Request
		default:
			raw, _ := json.Marshal(module) // one of another kind says nothing here
			name := h.Name
			_ = json.Unmarshal(raw, &h)
			h.Name = name
		}
		handlers = append(handlers, h)
	}
	return handlers
}

// matchersOf returns the sets of matchers of a route as in its config.
func matchersOf(route *caddyhttp.Route) []caddy.ModuleMap {
	sets := slices.Clone(route.MatcherSetsRaw)
	for _, provisioned := range route.MatcherSets {
		set := make(caddy.ModuleMap)
		for _, matcher := range provisioned {
			if m, ok := matcher.(caddy.Module); ok {
				set[m.CaddyModule().ID.Name()], _ = json.Marshal(matcher) // one of another kind says nothing here
			}
		}
		sets = append(sets, set)
	}
	return sets
}

// Answers reports whether the handler answers every request, or fails it.
func (h *Handler) Answers() bool {
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

// Hosts returns the hosts that a route matches, whether each of its sets of matchers has some,
// and whether they match nothing else of a request. Placeholders in hosts are as they were
// written.
func Hosts(route *caddyhttp.Route) (hosts []string, each, alone bool) {
	each, alone = true, true
	for _, set := range matchersOf(route) {
		var match []string
		_ = json.Unmarshal(set["host"], &match) // a set without host
		hosts = append(hosts, match...)
		each = each && len(match) > 0
		alone = alone && len(set) == 1 && len(match) > 0
	}
	return hosts, each, alone
}

// certain reports whether hosts are certain names only.
func certain(hosts []string) bool {
	return len(hosts) > 0 && !slices.ContainsFunc(hosts, func(host string) bool {
		// A star for a whole name, or for all of a top level domain, names nobody.
		parent, wild := strings.CutPrefix(host, "*.")
		return strings.Contains(parent, "*") || wild && !strings.Contains(parent, ".")
	})
}

// Matched reports whether a route has matchers.
func Matched(route *caddyhttp.Route) bool {
	return len(route.MatcherSetsRaw) > 0 || len(route.MatcherSets) > 0
}

// matchesPHP reports whether a route matches all requests that run PHP, as the last one of
// php_fastcgi does.
func matchesPHP(route *caddyhttp.Route) bool {
	var paths []string
	if sets := matchersOf(route); len(sets) == 1 && len(sets[0]) == 1 {
		_ = json.Unmarshal(sets[0]["path"], &paths) // another matcher
	}
	return slices.Equal(paths, []string{"*.php"})
}
