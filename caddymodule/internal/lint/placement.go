// Package lint says what is wrong with the config of a server: zones that nobody uses, that
// see nothing of what they match, or whose budget is everybody's. Begin with [CheckServers].
// It reads configs and runs nothing.
package lint

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/routes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// A zone that stands where it limits nothing is worse than an error: its owner finds out
// when the limit is needed. This file refuses it, or warns of it.

// servers are kinds of what answers requests.
type servers uint8

const (
	anUpstream servers = 1 << iota
	files
)

// A zonePlace is a zone and the place in the config that names it. The path is that
// of Caddy's API: config/apps/http/servers/<name>/routes/<n>/handle/<n>...
type zonePlace struct{ zone, path string }

// A zoneUse is a zone in a throttle directive.
type zoneUse struct {
	zonePlace
	routes.Way
	byName  bool     // the global options define it
	hosts   []string // of its site; none means all
	inError bool     // of an error route

	errors *errorProxy              // of the site's error routes, one that the zone does not stand before; or nil
	match  caddyhttp.RawMatcherSets // of the directive
}

// An errorProxy is a place in the error routes that asks an upstream.
type errorProxy struct {
	path  string
	hosts []string // of its site; none means all
	zones []string // that stand before it
}

// of reports whether the requests of a site with these hosts may get there.
func (p *errorProxy) of(hosts []string) bool {
	return len(hosts) == 0 || len(p.hosts) == 0 ||
		slices.ContainsFunc(hosts, func(host string) bool { return slices.Contains(p.hosts, host) })
}

// zoneTraits are what a zone needs of the place where it is used.
type zoneTraits struct {
	keyedByHost bool                     // named hosts, by its site or its match: else clients make them up
	keyedByForm bool                     // a match of its own
	charges     bool                     // that requests are charged, as they are not in error routes
	ofAnything  bool                     // that requests that run PHP get there, because it has no match
	siteRoot    bool                     // the site's root, for static files
	static      bool                     // that files are served, because it exempts them
	told        bool                     // that error routes do not answer with the upstream's headers
	inFlight    bool                     // that error routes take slots
	refuses     bool                     // that error routes which get its refusals take slots
	match       caddyhttp.RawMatcherSets // that no rewrite behind it makes an address for these
}

// A serversConfig holds the uses of zones in the config of all HTTP servers. It must
// be read when the first module of throttle is provisioned, because Caddy drops the
// raw config of each route that it has provisioned.
type serversConfig struct {
	uses   []zoneUse             // in the order of requests
	behind []routes.Rewrite      // between zones and a proxy
	serve  map[string]servers    // what answers in each of the servers' routes
	traits map[string]zoneTraits // of zones, by name
	sites  map[string]string     // the hosts of the servers' own routes, by the path of these
}

// name returns the path of a place, and the site if it is in one. Users of a Caddyfile
// know the path only by its site.
func (c *serversConfig) name(place zonePlace) string {
	for route, site := range c.sites {
		if strings.HasPrefix(place.path, route+"/") {
			return "the site " + site + ", " + place.path
		}
	}
	return place.path
}

// readServers reads the config of all servers of the HTTP app in which a module is
// provisioned. It returns nil if the module is in no HTTP app.
func readServers(ctx caddy.Context) *serversConfig {
	modules := ctx.Modules()
	if len(modules) == 0 {
		return nil
	}
	app, ok := modules[0].(*caddyhttp.App)
	if !ok {
		return nil
	}
	c := &serversConfig{traits: make(map[string]zoneTraits), sites: make(map[string]string), serve: make(map[string]servers)}
	for _, name := range slices.Sorted(maps.Keys(app.Servers)) {
		c.read(app.Servers[name], "apps/http/servers/"+name)
	}
	return c
}

// read reads the config of one server.
func (c *serversConfig) read(server *caddyhttp.Server, path string) {
	for i := range server.Routes {
		if hosts, _ := routes.Hosts(&server.Routes[i]); len(hosts) > 0 {
			c.sites[path+"/routes/"+strconv.Itoa(i)] = strings.Join(hosts, ", ")
		}
	}
	before := len(c.uses)
	walk := routes.Walk{Named: server.NamedRoutes, Visit: c.visit}
	walk.Routes(server.Routes, path+"/routes", routes.Way{})
	uses := c.uses[before:]
	for i := range uses {
		if strings.HasPrefix(uses[i].path, path+"/routes/") { // else it is in a named route, of any site
			uses[i].hosts, _ = routes.Hosts(outermost(server.Routes, uses[i].path, path+"/routes"))
		}
	}
	elsewhere := routes.Way{Rooted: true} // assume that something sets it
	if server.Errors != nil {
		proxies := c.readErrors(&walk, server.Errors.Routes, path+"/errors/routes", elsewhere)
		for i := range uses {
			use := &c.uses[before+i] // reading the error routes has moved them
			if n := slices.IndexFunc(proxies, func(p errorProxy) bool { return p.of(use.hosts) && !slices.Contains(p.zones, use.zone) }); n >= 0 {
				use.errors = &proxies[n]
			}
		}
	}
	walk.Visit = c.visit
	walk.Rest(path+"/named_routes", elsewhere)
}

// readErrors reads the error routes of a server, and returns what in them asks an upstream.
func (c *serversConfig) readErrors(walk *routes.Walk, list caddyhttp.RouteList, path string, way routes.Way) (proxies []errorProxy) {
	walk.Visit = func(h *routes.Handler, place string, way routes.Way) {
		if h.Name == "reverse_proxy" && way.Answered == "" {
			hosts, _ := routes.Hosts(outermost(list, place, path))
			proxies = append(proxies, errorProxy{place, hosts, way.Zones})
		}
		first := len(c.uses)
		c.visit(h, place, way)
		for i := range c.uses[first:] {
			c.uses[first+i].inError = true
		}
	}
	walk.Routes(list, path, way)
	return proxies
}

// outermost returns the one of a server's routes that a place is in.
func outermost(all caddyhttp.RouteList, place, path string) *caddyhttp.Route {
	number, _, _ := strings.Cut(strings.TrimPrefix(place, path+"/"), "/")
	n, _ := strconv.Atoi(number)
	return &all[n]
}

// visit remembers the zones of a throttle handler.
func (c *serversConfig) visit(h *routes.Handler, place string, way routes.Way) {
	var config struct {
		Match caddyhttp.RawMatcherSets     `json:"match"`
		Zone  []map[string]json.RawMessage `json:"zone"`
	}
	switch of := ownRoute(place); h.Name {
	case "reverse_proxy", "php":
		c.behind = append(c.behind, way.Rewrites...)
		c.serve[of] |= anUpstream
	case "file_server":
		c.serve[of] |= files
	}
	if h.Name != "throttle" || json.Unmarshal(h.Raw, &config) != nil {
		return
	}
	way.Narrowed = way.Narrowed || config.Match != nil
	for _, fields := range config.Zone {
		var name string
		_ = json.Unmarshal(fields["name"], &name) // Caddy says what is wrong
		use := zoneUse{zonePlace: zonePlace{name, place}, Way: way, byName: len(fields) == 1, match: config.Match}
		c.uses = append(c.uses, use)
		if raw, err := json.Marshal(fields); err == nil && !use.byName {
			c.note(raw)
		}
	}
}

// note remembers what a zone needs of its place.
func (c *serversConfig) note(raw []byte) {
	var z config.Zone
	if json.Unmarshal(raw, &z) != nil {
		return
	}
	c.traits[z.Name] = zoneTraits{
		keyedByForm: len(z.Match) == 0 && (z.Key == nil || z.Key.Missing != string(rule.Skip)) && slices.ContainsFunc(z.Key.Given(), func(k config.KeySource) bool { return k.Source == "form" }),
		keyedByHost: slices.ContainsFunc(z.Key.Given(), func(k config.KeySource) bool { return k.Source == "host" }) &&
			!slices.ContainsFunc(z.Match, func(set caddy.ModuleMap) bool { return set["host"] != nil }),
		ofAnything: len(z.Match) == 0,
		static:     len(z.ExemptStaticFiles) > 0,
		siteRoot:   slices.Contains(z.ExemptStaticFiles, config.StaticFiles{}),
		told:       z.InFlight != nil && slices.ContainsFunc(z.InFlight.Rank, func(r config.Rank) bool { return r.Told != "" }),
		charges:    z.Limit != "",
		inFlight:   z.InFlight != nil,
		refuses:    z.InFlight != nil && z.Refusal != nil && z.Refusal.Error && z.Shadow == nil,
		match:      z.Match,
	}
}

// check returns the names of all zones, and of global zones that no handler uses. It fails
// if a zone never sees a request, or if static files are exempt without a root.
func (c *serversConfig) check(global []*config.Zone) (known, unused []string, err error) {
	used := make(map[string]bool)
	known = []string{} // not nil
	for i := range c.uses {
		used[c.uses[i].zone] = true
		if !c.uses[i].byName {
			known = append(known, c.uses[i].zone)
		}
	}
	slices.Sort(known)
	for _, z := range global {
		if z == nil {
			continue
		}
		known = append(known, z.Name)
		if raw, err := json.Marshal(z); err == nil {
			c.note(raw)
		}
		if !used[z.Name] {
			unused = append(unused, z.Name)
		}
	}
	for i := range c.uses {
		if err := c.misplaced(&c.uses[i]); err != nil {
			return nil, nil, err
		}
	}
	return known, unused, nil
}

// CheckAsked refuses a zone that throttle_blocked asks about and that is none of those that
// [CheckServers] knows. Nil are those of a config without servers.
func CheckAsked(zone string, known []string) error {
	if zone == "" || known == nil || slices.Contains(known, zone) {
		return nil
	}
	want := "want a zone of this config, or no name for any of them"
	if meant := text.Nearest(zone, known); meant != "" {
		want = "did you mean " + meant + "?"
	}
	return fmt.Errorf("throttle_blocked asks about zone %q, which is not defined: %s", zone, want)
}

// misplaced returns an error if a zone cannot do what it is for where it is used.
func (c *serversConfig) misplaced(use *zoneUse) error {
	traits, place := c.traits[use.zone], use.zonePlace
	why := ""
	switch {
	case use.Answered != "":
		why = fmt.Sprintf("zone %q never sees a request, because a handler before it (%s) answers all of them: put throttle first", use.zone, use.Answered)
	case !use.Rooted && traits.siteRoot:
		why = fmt.Sprintf("zone %q exempts static files, and nothing sets the site's root before it: want root * <folder> in the site, or exempt static_files <folder>", use.zone)
	case use.errors != nil && len(use.errors.zones) == 0 && traits.refuses:
		why = fmt.Sprintf("zone %q hands refusals to an error route that asks an upstream without a slot of in_flight: write throttle with the zone into the error route, or remove refusal error", use.zone)
		place.path = use.errors.path
	default:
		return nil
	}
	return fmt.Errorf("%s, in %s", why, c.name(place))
}
