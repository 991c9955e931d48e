package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// Configuration that is accepted and limits nothing is worse than an error: its
// owner finds out when the limit is needed. This file refuses it, or warns of it.

// checkPaths refuses paths that no request has, in any matcher `path` of a set.
func checkPaths(set caddy.ModuleMap) error {
	if raw := set["path"]; raw != nil {
		var paths caddyhttp.MatchPath
		if err := json.Unmarshal(raw, &paths); err != nil {
			return fmt.Errorf("reading the matcher path: %w", err)
		}
		if err := checkPathList(paths); err != nil {
			return err
		}
	}
	for _, excluded := range excludedBy(set) {
		if err := checkPaths(excluded); err != nil {
			return err
		}
	}
	return nil
}

// checkPathList refuses paths that no request has, as the matcher `path` takes them.
func checkPathList(paths []string) error {
	if len(paths) == 0 {
		return errors.New("path has no paths: want at least one, such as path /wp-login.php*")
	}
	for _, path := range paths {
		switch {
		case strings.HasSuffix(path, ",") || strings.Contains(path, ",/"):
			return fmt.Errorf("path %q has a comma in it: want spaces between paths", path)
		case path == "" || !strings.ContainsAny(path[:1], `/*{[\`):
			return fmt.Errorf("path %q never matches, since paths begin with a slash: did you mean /%s?", path, path)
		}
	}
	return nil
}

// checkMatchers checks each set of matchers.
func checkMatchers(sets caddyhttp.RawMatcherSets) error {
	for _, set := range sets {
		if err := checkSet(set); err != nil {
			return err
		}
	}
	return nil
}

// checkSet refuses matchers that match nothing because of a path, and those that look
// at the method as the client sent it.
func checkSet(set caddy.ModuleMap) error {
	if err := checkPaths(set); err != nil {
		return err
	}
	return checkMethods(set)
}

// twinZones are the names of one handler's zones by the rest of their definitions.
type twinZones map[string]string

// add refuses a zone that differs from an earlier one only in its name, because it
// would charge each request twice. The definition is the zone's JSON.
func (t twinZones) add(name, definition string) error {
	var fields map[string]any
	if err := json.Unmarshal([]byte(definition), &fields); err != nil {
		return err
	}
	delete(fields, "name")
	nameless, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if twin, found := t[string(nameless)]; found {
		return fmt.Errorf("zones %q and %q of one throttle directive are the same but for their names, and would refuse the same requests: remove one", twin, name)
	}
	t[string(nameless)] = name
	return nil
}

// A zonePlace is a zone and the place in the config that names it. The path is that
// of Caddy's API: config/apps/http/servers/<name>/routes/<n>/handle/<n>...
type zonePlace struct{ zone, path string }

// A serversConfig holds the uses of zones in the config of all HTTP servers. It must
// be read when the first module of throttle is provisioned, because Caddy drops the
// raw config of each route that it has provisioned.
type serversConfig struct {
	defined, referred map[string]bool // zones in handlers
	asked             []zonePlace     // named by the matcher throttle_blocked
	static            []zonePlace     // zones that exempt static files without a root
	bare              []zonePlace     // uses of global zones without a root
	named             map[string]any  // the named routes of the server
	rooted            bool            // something has set the site's root

	sites map[string]string // the hosts of a server's routes, by the path of the route
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

// hostsOf returns the hosts that a route of a server matches, or "". Caddy has
// provisioned its matchers by now.
func hostsOf(route *caddyhttp.Route) string {
	for _, set := range route.MatcherSets {
		for _, matcher := range set {
			switch hosts := matcher.(type) {
			case *caddyhttp.MatchHost:
				return strings.Join(*hosts, ", ")
			case caddyhttp.MatchHost:
				return strings.Join(hosts, ", ")
			}
		}
	}
	return ""
}

// readServers reads the config of all servers of the HTTP app in which a module is
// provisioned. It returns nil if the module is in no HTTP app.
func readServers(ctx caddy.Context) (*serversConfig, error) {
	modules := ctx.Modules()
	if len(modules) == 0 {
		return nil, nil
	}
	app, ok := modules[0].(*caddyhttp.App)
	if !ok {
		return nil, nil
	}
	raw, err := json.Marshal(app.Servers)
	if err != nil {
		return nil, fmt.Errorf("reading the config of all servers: %w", err)
	}
	var servers map[string]map[string]any
	if err := json.Unmarshal(raw, &servers); err != nil {
		return nil, fmt.Errorf("reading the config of all servers: %w", err)
	}
	c := &serversConfig{defined: make(map[string]bool), referred: make(map[string]bool), sites: make(map[string]string)}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		server, path := servers[name], "apps/http/servers/"+name
		c.named, _ = server["named_routes"].(map[string]any)
		c.rooted = false
		for i := range app.Servers[name].Routes {
			if site := hostsOf(&app.Servers[name].Routes[i]); site != "" {
				c.sites[path+"/routes/"+strconv.Itoa(i)] = site
			}
		}
		c.walk(server["routes"], path+"/routes")
		delete(server, "routes")
		c.rooted = true // error routes and others: assume that something sets it
		c.walk(server, path)
	}
	return c, nil
}

// walk looks for zones below a value, in the order of requests.
func (c *serversConfig) walk(value any, path string) {
	switch value := value.(type) {
	case []any:
		for i, element := range value {
			before := c.rooted
			c.walk(element, path+"/"+strconv.Itoa(i))
			if route, _ := element.(map[string]any); route["terminal"] == true || route["group"] != nil {
				c.rooted = before // its requests do not reach the next route
			}
		}
	case map[string]any:
		c.walkHandler(value, path)
		if asked, ok := value["throttle_blocked"].(map[string]any); ok {
			zone, _ := asked["zone"].(string)
			c.asked = append(c.asked, zonePlace{zone, path})
		}
		if handled := strings.HasSuffix(path[:strings.LastIndex(path, "/")], "/routes"); handled && value["handle"] == nil {
			c.rooted = true // a route that is provisioned already may set it
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			c.walk(value[key], path+"/"+key)
		}
	}
}

func (c *serversConfig) walkHandler(handler map[string]any, path string) {
	switch handler["handler"] {
	case "vars":
		c.rooted = c.rooted || handler["root"] != nil
	case "invoke":
		name, _ := handler["name"].(string)
		route := c.named[name]
		delete(c.named, name) // named routes may invoke each other endlessly
		c.walk(route, path)
	case "throttle":
		zones, _ := handler["zone"].([]any)
		for _, zone := range zones {
			fields, _ := zone.(map[string]any)
			name, _ := fields["name"].(string)
			if len(fields) == 1 {
				c.referred[name] = true
				if !c.rooted {
					c.bare = append(c.bare, zonePlace{name, path})
				}
				continue
			}
			c.defined[name] = true
			if static, exempt := fields["exempt_static_files"].(map[string]any); exempt && static["root"] == nil && !c.rooted {
				c.static = append(c.static, zonePlace{name, path})
			}
		}
	}
}

// check returns the names of global zones that no handler uses. It fails if
// throttle_blocked names an unknown zone, or if static files are exempt without a
// root.
func (c *serversConfig) check(global []*Zone) (unused []string, err error) {
	known := slices.Sorted(maps.Keys(c.defined))
	for _, z := range global {
		if z == nil {
			continue
		}
		known = append(known, z.Name)
		if z.ExemptStaticFiles != nil && z.ExemptStaticFiles.Root == "" {
			for _, bare := range c.bare {
				if bare.zone == z.Name {
					c.static = append(c.static, bare)
				}
			}
		}
		if !c.referred[z.Name] && !c.defined[z.Name] {
			unused = append(unused, z.Name)
		}
	}
	for _, asked := range c.asked {
		switch meant := nearest(asked.zone, known); {
		case asked.zone == "" || slices.Contains(known, asked.zone):
		case meant != "":
			return nil, fmt.Errorf("throttle_blocked asks about zone %q, which is not defined: did you mean %s?, in %s", asked.zone, meant, c.name(asked))
		default:
			return nil, fmt.Errorf("throttle_blocked asks about zone %q, which is not defined: want a zone of this config, or no name for any of them, in %s", asked.zone, c.name(asked))
		}
	}
	if len(c.static) > 0 {
		static := c.static[0]
		return nil, fmt.Errorf("zone %q exempts static files, and nothing sets the site's root before it: want root * <folder> in the site, or exempt static_files <folder>, in %s", static.zone, c.name(static))
	}
	return unused, nil
}

// checkServers checks the config of all servers, once. An unused global zone is only a
// warning, because it may be meant for later.
func (a *App) checkServers(ctx caddy.Context) error {
	if a.checked {
		return nil
	}
	servers, err := readServers(ctx)
	if err != nil || servers == nil {
		return err
	}
	a.checked = true
	unused, err := servers.check(a.Zone)
	for _, zone := range unused {
		a.warnUnused(zone)
	}
	return err
}

func (a *App) warnUnused(zone string) {
	a.logger.Warn("zone is defined in the global options and limits nothing, because no site uses it: write throttle <zone> in a site",
		zap.String("zone", zone))
}
