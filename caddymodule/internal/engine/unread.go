package engine

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
)

// ReadServers finds out what nobody reads of verdicts in each server of the HTTP app in which
// a module is provisioned, once. It must be called when the first module of throttle is provisioned,
// because Caddy drops the raw config of each route that it has provisioned.
func (e *Engine) ReadServers(ctx caddy.Context) {
	if e.unread != nil {
		return
	}
	e.unread = make(map[*caddyhttp.Server]decision.Unread)
	modules := ctx.Modules()
	if len(modules) == 0 {
		return
	}
	app, ok := modules[0].(*caddyhttp.App)
	if !ok {
		return
	}
	for _, server := range app.Servers {
		e.unread[server] = unreadIn(server)
	}
}

// unreadIn returns what nobody reads in a server. Routes whose config is gone and handlers of
// other modules are taken to read everything.
func unreadIn(server *caddyhttp.Server) decision.Unread {
	// A request may meet throttle twice; it and in_flight; after a route with throttle; and
	// after one with either.
	several, both, passed, guarded := false, false, false, false
	for i := range server.Routes {
		route := &server.Routes[i]
		if route.HandlersRaw == nil && len(route.Handlers) > 0 {
			return decision.Unread{}
		}
		throttles := strings.Count(plainJSON(route), `"handler":"throttle"`)
		several = several || throttles > 1 || throttles > 0 && passed
		passed = passed || throttles > 0 && !route.Terminal
		guards := throttles + strings.Count(plainJSON(route), `"handler":"in_flight"`)
		both = both || guards > 1 || guards > 0 && guarded
		guarded = guarded || guards > 0 && !route.Terminal
	}
	all := plainJSON(server)
	unknown := strings.Contains(all, ourPlaceholders) || strings.Contains(all, `"template_file":`)
	for _, found := range handlerName.FindAllStringSubmatch(all, -1) {
		unknown = unknown || !knownHandlers[found[1]]
	}
	return decision.Unread{
		Verdict: !several && !unknown && !strings.Contains(all, `"throttle_blocked":`), Placeholders: !unknown, Record: !both && !unknown,
	}
}

// handlerName finds the modules of handlers. In a text, quotes would be escaped.
var handlerName = regexp.MustCompile(`"handler":"([^"]*)"`)

// plainJSON returns a config as JSON in one spelling.
func plainJSON(config any) string {
	var value any
	raw, _ := json.Marshal(config) // it was JSON before
	_ = json.Unmarshal(raw, &value)
	raw, _ = json.Marshal(value)
	return string(raw)
}

// knownHandlers are those that read no placeholders but the ones that their config names.
var knownHandlers = map[string]bool{
	"acme_server": true, "authentication": true, "copy_response": true, "copy_response_headers": true, "encode": true,
	"error": true, "file_server": true, "headers": true, "in_flight": true, "intercept": true, "log_append": true, "map": true, "metrics": true,
	"php": true, "push": true, "request_body": true, "reverse_proxy": true, "rewrite": true, "static_response": true,
	"subroute": true, "throttle": true, "throttle_inspector": true, "throttle_seen": true, "tracing": true, "vars": true,
}

const ourPlaceholders = "http.throttle."

// namesPlaceholders reports whether the zone itself shows its verdicts, as in a page of its own.
func (z *Zone) namesPlaceholders() bool { return strings.Contains(z.Definition, ourPlaceholders) }
