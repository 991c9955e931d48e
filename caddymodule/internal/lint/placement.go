// Package lint says what is wrong with the config of a server: zones that nobody uses, that
// see nothing of what they match, or whose budget is everybody's. Begin with [CheckServers].
// It reads configs and runs nothing.
package lint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/routes"
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

// A zoneUse is a zone in a throttle directive.
type zoneUse struct {
	routes.Way
	zone    string
	path    string // of Caddy's API: config/apps/http/servers/<name>/routes/<n>/handle/<n>...
	inError bool   // of an error route

	errors *errorProxy // of the site's error routes, one that the zone does not stand before; or nil
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

// A serversConfig holds the uses of zones in the config of all HTTP servers. It must
// be read when the first module of throttle is provisioned, because Caddy drops the
// raw config of each route that it has provisioned.
type serversConfig struct {
	uses  []zoneUse               // in the order of requests
	serve map[string]servers      // what answers in each of the servers' routes
	zones map[string]*config.Zone // the definitions, by name
}

// nameOf returns the path of a place, and its site if that has names. Users of a Caddyfile
// know the path only by its site.
func nameOf(path string, hosts []string) string {
	if len(hosts) > 0 {
		return "the site " + strings.Join(hosts, ", ") + ", " + path
	}
	return path
}

// zoneOf returns the definition of a zone that is used. Caddy says if there is none.
func (c *serversConfig) zoneOf(use *zoneUse) *config.Zone {
	return cmp.Or(c.zones[use.zone], new(config.Zone))
}

// readServers reads the config of all servers of the HTTP app in which a module is
// provisioned. It returns nil if the module is in no HTTP app.
func readServers(ctx caddy.Context) *serversConfig {
	all := routes.ServersOf(ctx)
	if all == nil {
		return nil
	}
	c := &serversConfig{zones: make(map[string]*config.Zone), serve: make(map[string]servers)}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c.read(all[name], "apps/http/servers/"+name)
	}
	return c
}

// read reads the config of one server.
func (c *serversConfig) read(server *caddyhttp.Server, path string) {
	before := len(c.uses)
	walk := routes.Walk{Named: server.NamedRoutes, Visit: c.visit}
	walk.Routes(server.Routes, path+"/routes", routes.Way{})
	uses := len(c.uses)
	elsewhere := routes.Way{Rooted: true} // assume that something sets it
	if server.Errors != nil {
		proxies := c.readErrors(&walk, server.Errors.Routes, path+"/errors/routes", elsewhere)
		for i := range c.uses[before:uses] {
			use := &c.uses[before+i]
			if n := slices.IndexFunc(proxies, func(p errorProxy) bool { return p.of(use.Site) && !slices.Contains(p.zones, use.zone) }); n >= 0 {
				use.errors = &proxies[n]
			}
		}
	}
	walk.Visit = c.visit
	walk.Rest(path+"/named_routes", elsewhere)
}

// readErrors reads the error routes of a server, and returns what in them asks an upstream.
func (c *serversConfig) readErrors(walk *routes.Walk, list caddyhttp.RouteList, path string, way routes.Way) (proxies []errorProxy) {
	walk.Visit = func(h *routes.Handler, place string, way routes.Way) (zones []string) {
		if h.Name == "reverse_proxy" && way.Answered == "" {
			proxies = append(proxies, errorProxy{place, way.Site, way.Zones})
		}
		first := len(c.uses)
		zones = c.visit(h, place, way)
		for i := range c.uses[first:] {
			c.uses[first+i].inError = true
		}
		return zones
	}
	walk.Routes(list, path, way)
	return proxies
}

// visit remembers the zones of a throttle handler, and returns their names.
func (c *serversConfig) visit(h *routes.Handler, place string, way routes.Way) (zones []string) {
	switch of := ownRoute(place); h.Name {
	case "reverse_proxy", "php":
		c.serve[of] |= anUpstream
	case "file_server":
		c.serve[of] |= files
	}
	var handler config.Handler
	if h.Name != "throttle" || json.Unmarshal(h.Raw, &handler) != nil { // Caddy says what is wrong
		return nil
	}
	way.Narrowed = way.Narrowed || handler.Match != nil
	for _, z := range handler.Zone {
		if z == nil {
			continue
		}
		c.uses = append(c.uses, zoneUse{Way: way, zone: z.Name, path: place})
		if !z.Reference() {
			c.zones[z.Name] = z
		}
		zones = append(zones, z.Name)
	}
	return zones
}

// check returns the names of all zones, and warns of global zones that no handler uses. It
// fails if a zone never sees a request, or if static files are exempt without a root.
func (c *serversConfig) check(global []*config.Zone, warner *zap.Logger) (known []string, err error) {
	known = slices.AppendSeq([]string{}, maps.Keys(c.zones)) // not nil
	slices.Sort(known)
	for _, z := range global {
		if z == nil {
			continue
		}
		known = append(known, z.Name)
		c.zones[z.Name] = z
		if !slices.ContainsFunc(c.uses, func(use zoneUse) bool { return use.zone == z.Name }) {
			WarnUnused(warner, z.Name)
		}
	}
	for i := range c.uses {
		if err := c.misplaced(&c.uses[i]); err != nil {
			return nil, err
		}
	}
	return known, nil
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
	z, place, why := c.zoneOf(use), nameOf(use.path, use.Site), ""
	switch {
	case use.Answered != "":
		why = fmt.Sprintf("zone %q never sees a request, because a handler before it (%s) answers all of them: put throttle first", use.zone, use.Answered)
	case !use.Rooted && slices.Contains(z.ExemptStaticFiles, config.StaticFiles{}):
		why = fmt.Sprintf("zone %q exempts static files, and nothing sets the site's root before it: want root * <folder> in the site, or exempt static_files <folder>", use.zone)
	case use.errors != nil && len(use.errors.zones) == 0 && z.InFlight != nil && z.Refusal != nil && z.Refusal.Error && z.Shadow == nil:
		why = fmt.Sprintf("zone %q hands refusals to an error route that asks an upstream without a slot of in_flight: write throttle with the zone into the error route, or remove refusal error", use.zone)
		place = nameOf(use.errors.path, use.errors.hosts)
	default:
		return nil
	}
	return fmt.Errorf("%s, in %s", why, place)
}
