package caddymodule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
)

// A zone that stands where it limits nothing is worse than an error: its owner finds out
// when the limit is needed. This file refuses it, or warns of it.

// A zonePlace is a zone and the place in the config that names it. The path is that
// of Caddy's API: config/apps/http/servers/<name>/routes/<n>/handle/<n>...
type zonePlace struct{ zone, path string }

// A zoneUse is a zone in a throttle directive.
type zoneUse struct {
	zonePlace
	byName     bool   // the global options define it
	rootless   bool   // nothing has set the site's root before it
	everywhere bool   // it gets all requests of a site
	behind     string // the handler before it that answers all requests; empty if none does
	behindPHP  bool   // php_fastcgi before it answers all requests that run PHP
	plain      bool   // its server speaks plain HTTP, and no proxy speaks HTTPS for it
	leak       string // the server's error routes, if they show clients what the upstream tells of users
}

// zoneTraits are what a zone needs of the place where it is used.
type zoneTraits struct {
	keyedByForm bool // a match of its own
	ofAnything  bool // that requests that run PHP get there, because it has no match
	siteRoot    bool // the site's root, for static files
	sendsPasses bool // HTTPS
	told        bool // that error routes do not answer with the upstream's headers
}

// A serversConfig holds the uses of zones in the config of all HTTP servers. It must
// be read when the first module of throttle is provisioned, because Caddy drops the
// raw config of each route that it has provisioned.
type serversConfig struct {
	uses   []zoneUse // in the order of requests
	asked  []zonePlace
	traits map[string]zoneTraits // of zones, by name

	outermost map[string]*caddyhttp.Route // the servers' own routes, by their path
	sites     map[string]string           // the hosts of these routes

	// What walk knows of the place that it has come to.
	named    map[string]any // the named routes of the server
	rooted   bool           // something has set the site's root
	answered string         // the handler that answers all requests before they get here
	ranPHP   bool           // php_fastcgi answers all requests that run PHP before they get here
	matched  bool           // a route has matchers other than host
	plain    bool           // the server speaks plain HTTP, and no proxy speaks HTTPS for it
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
	c := &serversConfig{
		traits: make(map[string]zoneTraits), outermost: make(map[string]*caddyhttp.Route), sites: make(map[string]string),
	}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		server, path := servers[name], "apps/http/servers/"+name
		c.named, _ = server["named_routes"].(map[string]any)
		c.rooted, c.plain = false, speaksPlain(app.Servers[name])
		for i := range app.Servers[name].Routes {
			route, at := &app.Servers[name].Routes[i], path+"/routes/"+strconv.Itoa(i)
			c.outermost[at] = route
			if site := hostsOf(route); site != "" {
				c.sites[at] = site
			}
		}
		before := len(c.uses)
		c.walk(server["routes"], path+"/routes")
		if asksUpstream(server["errors"]) {
			for i := range c.uses[before:] {
				c.uses[before+i].leak = path + "/errors"
			}
		}
		delete(server, "routes")
		c.rooted = true // error routes and others: assume that something sets it
		c.walk(server, path)
	}
	return c, nil
}

// speaksPlain reports whether clients of a server use plain HTTP, as far as is known when a
// config is loaded. A trusted proxy may speak HTTPS for it.
func speaksPlain(server *caddyhttp.Server) bool {
	proxies := reflect.ValueOf(server).Elem().FieldByName("trustedProxies") // once Caddy has dropped its raw config
	return len(server.TLSConnPolicies) == 0 && len(server.TrustedProxiesRaw) == 0 && !server.TrustedProxiesUnix &&
		proxies.Kind() == reflect.Interface && proxies.IsNil()
}

// asksUpstream reports whether a value has a handler that proxies, and no throttle.
func asksUpstream(value any) bool {
	found := make(map[string]bool) // handlers
	var look func(any)
	look = func(value any) {
		switch value := value.(type) {
		case []any:
			for _, element := range value {
				look(element)
			}
		case map[string]any:
			if name, ok := value["handler"].(string); ok {
				found[name] = true
			}
			for _, element := range value {
				look(element)
			}
		}
	}
	look(value)
	return found["reverse_proxy"] && !found["throttle"]
}

// walk looks for zones below a value, in the order of requests.
func (c *serversConfig) walk(value any, path string) {
	switch value := value.(type) {
	case []any:
		answered, ranPHP := c.answered, c.ranPHP
		alternative := false // a route of the group has set the site's root
		for i, element := range value {
			route, _ := element.(map[string]any)
			rooted, matched := c.rooted, c.matched
			at := path + "/" + strconv.Itoa(i)
			c.matched = matched || c.narrows(route, at)
			c.walk(element, at)
			c.matched = matched
			switch {
			case route["terminal"] == true:
				c.rooted = rooted // its requests do not reach the next route
			case route["group"] != nil && i+1 < len(value) && sameGroup(route, value[i+1]):
				alternative = alternative || c.rooted
				c.rooted = rooted
			case route["group"] != nil:
				c.rooted, alternative = c.rooted || alternative, false
			}
			if outermost := c.outermost[at]; outermost == nil || len(outermost.MatcherSets) == 0 {
				c.answered = cmp.Or(c.answered, answersAll(route), answers(route))
				c.ranPHP = c.ranPHP || answersPHP(route)
			}
		}
		c.answered, c.ranPHP = answered, ranPHP
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

// sameGroup reports whether requests reach one of two routes at most.
func sameGroup(route map[string]any, next any) bool {
	other, _ := next.(map[string]any)
	return other["group"] == route["group"]
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
			use := zoneUse{
				zonePlace: zonePlace{name, path}, byName: len(fields) == 1,
				rootless: !c.rooted, everywhere: !c.matched, behind: c.answered, behindPHP: c.ranPHP, plain: c.plain,
			}
			c.uses = append(c.uses, use)
			if use.byName {
				continue
			}
			if z, err := json.Marshal(fields); err == nil {
				c.note(z)
			}
		}
	}
}

// narrows reports whether a route has matchers other than host. Those of a server's own
// routes are no longer in the raw config.
func (c *serversConfig) narrows(route map[string]any, path string) bool {
	if outermost := c.outermost[path]; outermost != nil {
		for _, set := range outermost.MatcherSets {
			if len(set) > 1 || hostsOf(&caddyhttp.Route{MatcherSets: caddyhttp.MatcherSets{set}}) == "" {
				return true
			}
		}
	}
	sets, _ := route["match"].([]any)
	for _, set := range sets {
		matchers, _ := set.(map[string]any)
		if _, host := matchers["host"]; !host || len(matchers) > 1 {
			return true
		}
	}
	return false
}

// answersAll returns the handler of a route that answers every request that gets
// there, or "".
func answersAll(route map[string]any) string {
	handlers, _ := route["handle"].([]any)
	if route["match"] != nil {
		return ""
	}
	for _, handler := range handlers {
		fields, _ := handler.(map[string]any)
		if name := answers(fields); name != "" {
			return name
		}
	}
	return ""
}

// answers returns the name of a handler that answers every request, or of one in it, or
// "".
func answers(handler map[string]any) string {
	switch name, _ := handler["handler"].(string); name {
	case "static_response":
		return name
	case "reverse_proxy":
		if handler["handle_response"] == nil { // forward_auth lets through what the service allows
			return name
		}
	case "file_server":
		if handler["pass_thru"] != true {
			return name
		}
	case "subroute":
		routes, _ := handler["routes"].([]any)
		for _, inner := range routes {
			inner, _ := inner.(map[string]any)
			if name := answersAll(inner); name != "" {
				return name
			}
		}
	}
	return ""
}

// answersPHP reports whether a route, or a handler of one, answers all requests that run
// PHP and lets others through, as php_fastcgi does.
func answersPHP(route map[string]any) bool {
	inner, _ := route["routes"].([]any)
	handlers, _ := route["handle"].([]any)
	if route["match"] == nil {
		inner = slices.Concat(inner, handlers)
	}
	if slices.ContainsFunc(inner, func(element any) bool {
		fields, _ := element.(map[string]any)
		return answersPHP(fields)
	}) {
		return true
	}
	scripts := []any{map[string]any{"path": []any{"*.php"}}}
	return reflect.DeepEqual(route["match"], any(scripts)) && slices.ContainsFunc(handlers, func(handler any) bool {
		fields, _ := handler.(map[string]any)
		transport, _ := fields["transport"].(map[string]any)
		return transport["protocol"] == "fastcgi"
	})
}

// note remembers what a zone needs of its place.
func (c *serversConfig) note(raw []byte) {
	var z Zone
	if json.Unmarshal(raw, &z) != nil {
		return
	}
	c.traits[z.Name] = zoneTraits{
		keyedByForm: len(z.Match) == 0 && z.MissingKey != string(decision.Skip) && slices.ContainsFunc(z.Key, func(k KeySource) bool { return k.Source == "form" }),
		ofAnything:  len(z.Match) == 0,
		siteRoot:    z.ExemptStaticFiles != nil && z.ExemptStaticFiles.Root == "",
		sendsPasses: len(z.Share) > 0 && z.Pass != passOff && !z.Shadow,
		told:        slices.ContainsFunc(z.Rank, func(r Rank) bool { return r.Told != "" }),
	}
}

// check returns the names of global zones that no handler uses. It fails if
// throttle_blocked names an unknown zone, if a zone never sees a request, or if static
// files are exempt without a root.
func (c *serversConfig) check(global []*Zone) (unused []string, err error) {
	used := make(map[string]bool)
	var known []string
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
	for _, asked := range c.asked {
		switch meant := nearest(asked.zone, known); {
		case asked.zone == "" || slices.Contains(known, asked.zone):
		case meant != "":
			return nil, fmt.Errorf("throttle_blocked asks about zone %q, which is not defined: did you mean %s?, in %s", asked.zone, meant, c.name(asked))
		default:
			return nil, fmt.Errorf("throttle_blocked asks about zone %q, which is not defined: want a zone of this config, or no name for any of them, in %s", asked.zone, c.name(asked))
		}
	}
	for i := range c.uses {
		if use := &c.uses[i]; use.behind != "" {
			return nil, fmt.Errorf("zone %q never sees a request, because a handler before it (%s) answers all of them: put throttle first, in %s", use.zone, use.behind, c.name(use.zonePlace))
		}
	}
	for i := range c.uses {
		if use := &c.uses[i]; use.rootless && c.traits[use.zone].siteRoot {
			return nil, fmt.Errorf("zone %q exempts static files, and nothing sets the site's root before it: want root * <folder> in the site, or exempt static_files <folder>, in %s", use.zone, c.name(use.zonePlace))
		}
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
	behindPHP, overHTTP, leaks := make(map[string]bool), make(map[string]bool), make(map[string]bool) // that were warned of
	for i := range servers.uses {
		use := &servers.uses[i]
		needs, zone, place := servers.traits[use.zone], zap.String("zone", use.zone), zap.String("place", servers.name(use.zonePlace))
		if use.everywhere && needs.keyedByForm {
			a.warner.Warn("zone is keyed by a form field and has no match, so all other forms of the site share one bucket: write match path <path of the form>* into the zone",
				zone, place)
		}
		if use.behindPHP && needs.ofAnything && !behindPHP[use.zone] {
			behindPHP[use.zone] = true
			a.warner.Warn("zone sees no request that runs PHP, because php_fastcgi before it answers them: put throttle before php_fastcgi",
				zone, place)
		}
		if use.plain && needs.sendsPasses && !overHTTP[use.zone] {
			overHTTP[use.zone] = true
			a.warner.Warn("zone with share is on a site over plain HTTP, where no passes are sent, so nobody who comes back is served sooner and nobody is a member by issued or told: serve the site over HTTPS, list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto, or write pass off",
				zone, place)
		}
		if use.leak != "" && needs.told && !leaks[use.zone] {
			leaks[use.zone] = true
			a.warner.Warn("an error route asks an upstream without throttle, so the response header that names users to this zone reaches clients there: write throttle with the zone into the error route, too",
				zone, zap.String("place", servers.name(zonePlace{use.zone, use.leak})))
		}
	}
	return err
}

func (a *App) warnUnused(zone string) {
	a.warner.Warn("zone is defined in the global options and limits nothing, because no site uses it: write throttle <zone> in a site",
		zap.String("zone", zone))
}
