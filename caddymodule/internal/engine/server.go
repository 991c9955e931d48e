package engine

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// ReadServers looks at the servers of the HTTP app in which a module is provisioned, once. It
// must be called when the first module of throttle is provisioned, because Caddy drops the raw
// config of each route that it has provisioned.
func (e *Engine) ReadServers(ctx caddy.Context) {
	modules := ctx.Modules()
	if e.servers != nil || len(modules) == 0 {
		return
	}
	e.servers = make(map[*caddyhttp.Server]*limit.Server)
	app, ok := modules[0].(*caddyhttp.App)
	if !ok {
		return
	}
	for _, server := range app.Servers {
		e.servers[server] = look(server)
		e.servers[server].Shown = e.servers[server].Shown || e.showsAll
	}
}

// look finds out whether the config of a server names our placeholders, as templates may, and
// whether a request may pass one handler twice. Routes whose config is gone may do both.
func look(server *caddyhttp.Server) *limit.Server {
	seen := &limit.Server{Server: server}
	// Caddy has provisioned the matchers of these routes, and dropped what they were made of.
	matchers := make([]caddyhttp.MatcherSets, len(server.Routes))
	for i := range server.Routes {
		route := &server.Routes[i]
		matchers[i] = route.MatcherSets
		seen.Shown = seen.Shown || slices.ContainsFunc(matchers[i], func(set caddyhttp.MatcherSet) bool { return slices.ContainsFunc(set, negates) })
		if route.HandlersRaw == nil && len(route.Handlers) > 0 {
			seen.Shown, seen.Guards = true, 2
		}
	}
	raw, err := json.Marshal([]any{server, matchers})
	if err != nil {
		seen.Shown, seen.Guards = true, 2
	}
	text := string(raw)
	for _, name := range []string{"http.throttle.", `"templates"`, `"template_file"`} {
		seen.Shown = seen.Shown || strings.Contains(text, name)
	}
	if strings.Contains(text, `"invoke"`) {
		seen.Guards = 2
	}
	seen.ErrorRoutes = err != nil || seen.Guards > 0 || strings.Contains(text, `"errors"`)
	return seen
}

// negates reports whether a matcher is `not`, which does not tell what it negates.
func negates(matcher any) bool {
	switch matcher.(type) {
	case caddyhttp.MatchNot, *caddyhttp.MatchNot:
		return true
	}
	return false
}

// Guard counts a handler of throttle or in_flight, and returns its server, or nil outside of the
// HTTP app.
func (e *Engine) Guard(ctx caddy.Context) *limit.Server {
	server := e.serverOf(ctx)
	if server != nil {
		server.Guards++
	}
	return server
}

// Show makes the verdicts about requests of the server in which a module is provisioned readable
// by [limit.VerdictsOf].
func (e *Engine) Show(ctx caddy.Context) {
	if server := e.serverOf(ctx); server != nil {
		server.Shown = true
	}
}

func (e *Engine) serverOf(ctx caddy.Context) *limit.Server {
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return e.servers[server]
}
