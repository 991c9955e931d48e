package engine

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// A server is what is known of a server's routes. A request that one of the terminal routes at the
// top takes passes the handlers of no other one.
type server struct {
	all    *limit.Server   // for handlers in other routes than those
	routes []*limit.Server // for those in each route at the top: all, unless it is terminal
	each   []*limit.Server // all of these, once
}

// serverOf returns what is known of the server in which a module is provisioned, or nil outside of
// the HTTP app.
func (e *Engine) serverOf(ctx caddy.Context) *server {
	of, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if of == nil {
		return nil
	}
	s := e.servers[of]
	if s == nil {
		s = newServer(of)
		// Until a server shuts down it serves as ever: with shutdown_delay, for long after Caddy's event
		// that it is stopping.
		of.RegisterOnShutdown(func() {
			if caddy.Exiting() {
				exit()
				e.Memory.Memory.Save() // while it waits for the last requests, Caddy may be killed
			}
		})
		e.servers[of] = s
	}
	return s
}

// newServer finds out what the routes are.
func newServer(of *caddyhttp.Server) *server {
	s := &server{all: &limit.Server{Server: of}}
	open := featuresOf(of.NamedRoutes) // of any request, whatever route it takes
	open.ErrorRoutes = open.ErrorRoutes || len(of.NamedRoutes) > 0
	if of.Errors != nil {
		for i := range of.Errors.Routes {
			open.Add(featuresOf(&of.Errors.Routes[i]))
		}
		raw, err := json.Marshal(of.Errors)
		open.Add(limit.Features{ErrorRoutes: true, ErrorsAsk: err != nil || bytes.Contains(noUpstream.ReplaceAll(raw, nil), []byte(`"handler":`))})
	}
	for i := range of.Routes {
		if r := &of.Routes[i]; !r.Terminal {
			open.Add(featuresOf(r)) // error routes within go on to the routes after this one
		}
	}
	s.all.Add(open)
	s.each = append(s.each, s.all)
	for i := range of.Routes {
		r, route := &of.Routes[i], s.all
		if r.Terminal {
			route = &limit.Server{Server: of, Features: open}
			route.Add(featuresOf(r))
			s.all.Add(route.Features)
			s.each = append(s.each, route)
		}
		s.routes = append(s.routes, route)
		s.all.Add(featuresOf(r.MatcherSets)) // Caddy has dropped what these were made of
		s.all.ReadsVerdicts = s.all.ReadsVerdicts || negates(r.MatcherSets)
	}
	return s
}

// noUpstream matches the names of handlers, in JSON, that ask no upstream.
var noUpstream = regexp.MustCompile(`"handler":"(file_server|static_response|headers|rewrite|vars|encode|subroute)"`)

// featuresOf looks in a part of the config for placeholders of ours, for templates, which may name some, and
// for error routes. The config of a route whose handlers were provisioned is gone: it may have had all.
func featuresOf(part any) limit.Features {
	r, is := part.(*caddyhttp.Route)
	gone := is && r.HandlersRaw == nil && len(r.Handlers) > 0
	raw, err := json.Marshal(part)
	has := func(name string) bool { return gone || err != nil || bytes.Contains(raw, []byte(name)) }
	errors := has(`"errors"`)
	return limit.Features{ReadsVerdicts: has("http.throttle.") || has(`"templates"`) || has(`"template_file"`), ErrorRoutes: errors, ErrorsAsk: errors}
}

// negates reports whether one of the matchers is `not`, which does not tell what it negates.
func negates(sets caddyhttp.MatcherSets) bool {
	return slices.ContainsFunc(sets, func(set caddyhttp.MatcherSet) bool {
		return slices.ContainsFunc(set, func(matcher any) bool { _, is := matcher.(*caddyhttp.MatchNot); return is })
	})
}

// JoinServer counts a handler of throttle or in_flight that is being provisioned, and returns what it
// is to know of its server, or nil outside of the HTTP app, and whether it is in an error route of the server.
func (e *Engine) JoinServer(ctx caddy.Context) (of *limit.Server, forErrors bool) {
	s := e.serverOf(ctx)
	if s == nil {
		return nil, false
	}
	// The handlers of routes before this one were provisioned. One request may pass a named route twice.
	raw := func(r caddyhttp.Route) bool { return r.HandlersRaw != nil }
	of, times := s.all, 2
	if i := slices.IndexFunc(s.all.Routes, raw); i >= 0 {
		of, times = s.routes[i], 1
	} else {
		forErrors = s.all.Errors != nil && slices.ContainsFunc(s.all.Errors.Routes, raw)
	}
	for _, one := range s.each {
		if of == s.all || one == s.all || one == of {
			one.Limiters += times
		}
	}
	return of, forErrors
}

// ReadVerdicts makes the verdicts about requests of the server in which a module is provisioned readable
// by [limit.VerdictsOf].
func (e *Engine) ReadVerdicts(ctx caddy.Context) {
	if s := e.serverOf(ctx); s != nil {
		for _, of := range s.each {
			of.ReadsVerdicts = true
		}
	}
}
