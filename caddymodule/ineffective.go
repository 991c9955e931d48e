package caddymodule

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
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
		bare := strings.TrimLeft(path, "~*^")
		switch {
		case strings.HasPrefix(path, "~") || strings.HasPrefix(path, "^"):
			return fmt.Errorf("path %q never matches, since path takes no regular expression: did you mean path_regexp ^%s?", path, bare)
		case strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://"):
			return fmt.Errorf("path %q never matches, since paths have no host: did you mean %s?", path, pathOf(path))
		case strings.Contains(path, "?") && !strings.Contains(path, "{"):
			before, _, _ := strings.Cut(path, "?")
			return fmt.Errorf("path %q never matches, since paths end before the question mark: want path %s, and query <name>=<value> for the rest", path, before)
		case slices.Contains(matcherWords, path):
			return errTwoMatchers("path", path)
		case strings.HasSuffix(path, ",") || strings.Contains(path, ",/"):
			return fmt.Errorf("path %q has a comma in it: want spaces between paths", path)
		case path == "" || !strings.ContainsAny(path[:1], `/*{[\`):
			return fmt.Errorf("path %q never matches, since paths begin with a slash: did you mean /%s?", path, path)
		}
	}
	return nil
}

// matcherWords are matchers that owners put behind another one on the same line.
var matcherWords = []string{"path", "method", "header", "host", "client_ip", "remote_ip", "query", "not", "path_regexp", "header_regexp"}

func errTwoMatchers(matcher, word string) error {
	return fmt.Errorf("%s %q never matches: for two matchers at once, want a block, and each on a line of its own", matcher, word)
}

// pathOf returns the path of an URL.
func pathOf(location string) string {
	parsed, err := url.Parse(location)
	if err != nil || parsed.Path == "" {
		return "/"
	}
	return parsed.Path
}

// checkTails refuses matchers for limits that name a PHP script without a star at its
// end: PHP runs the script for /script.php/x, too, so clients would evade the limit.
func checkTails(set caddy.ModuleMap) error {
	var paths caddyhttp.MatchPath
	if raw := set["path"]; raw == nil || json.Unmarshal(raw, &paths) != nil {
		return nil
	}
	return checkTailsOf(paths)
}

func checkTailsOf(paths []string) error {
	for _, path := range paths {
		if strings.HasSuffix(path, ".php") && !strings.ContainsAny(path, "*{[") && !slices.Contains(paths, path+"*") && !slices.Contains(paths, path+"/*") {
			return fmt.Errorf("path %q leaves out %s/x, for which PHP runs the same script: did you mean %[1]s*?", path, path)
		}
	}
	return nil
}

// checkSyntax refuses matchers that Caddy would refuse only when it loads the config,
// where the error has no line, and methods and hosts that no request has.
func checkSyntax(set caddy.ModuleMap) error {
	for _, matcher := range []string{"method", "host"} {
		var words []string
		if raw := set[matcher]; raw == nil || json.Unmarshal(raw, &words) != nil {
			continue
		}
		for i, word := range words {
			if i > 0 && slices.Contains(matcherWords, word) {
				return errTwoMatchers(matcher, word)
			}
			if strings.Contains(word, ",") {
				return fmt.Errorf("%s %q has a comma in it: want blanks between %[1]ss", matcher, word)
			}
		}
	}
	for _, matcher := range []string{"client_ip", "remote_ip"} {
		if err := checkRanges(matcher, set[matcher]); err != nil {
			return err
		}
	}
	type expression struct {
		Pattern string `json:"pattern"`
	}
	var ofPath expression
	if raw := set["path_regexp"]; raw != nil && json.Unmarshal(raw, &ofPath) == nil {
		if _, err := regexp.Compile(ofPath.Pattern); err != nil {
			return fmt.Errorf("path_regexp %q: %w", ofPath.Pattern, err)
		}
	}
	var ofHeaders map[string]expression
	if raw := set["header_regexp"]; raw != nil && json.Unmarshal(raw, &ofHeaders) == nil {
		for _, header := range slices.Sorted(maps.Keys(ofHeaders)) {
			if _, err := regexp.Compile(ofHeaders[header].Pattern); err != nil {
				return fmt.Errorf("header_regexp %q: %w", ofHeaders[header].Pattern, err)
			}
		}
	}
	for _, excluded := range excludedBy(set) {
		if err := checkSyntax(excluded); err != nil {
			return err
		}
	}
	return nil
}

// checkRanges refuses addresses that a matcher of addresses cannot read.
func checkRanges(matcher string, raw json.RawMessage) error {
	var addresses struct {
		Ranges []string `json:"ranges"`
	}
	if raw == nil || json.Unmarshal(raw, &addresses) != nil {
		return nil
	}
	for _, word := range addresses.Ranges {
		if slices.Contains(matcherWords, word) {
			return errTwoMatchers(matcher, word)
		}
		_, notAddress := netip.ParseAddr(word)
		_, notNetwork := netip.ParsePrefix(word)
		if notAddress != nil && notNetwork != nil && !strings.ContainsAny(word, "%{") {
			return fmt.Errorf("invalid address %q after %s: want an IP address or a network such as 203.0.113.0/24", word, matcher)
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
	if err := checkSyntax(set); err != nil {
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
	defined, referred map[string]bool      // zones in handlers
	placed            []zonePlace          // uses of zones
	asked             []zonePlace          // named by the matcher throttle_blocked
	static            []zonePlace          // zones that exempt static files without a root
	bare              []zonePlace          // uses of global zones without a root
	named             map[string]any       // the named routes of the server
	rooted            bool                 // something has set the site's root
	answered          string               // the handler that answers all requests before they get here
	behind            []zonePlace          // zones behind such a handler, which it answers
	answers           map[zonePlace]string // which handlers these are
	ranPHP            bool                 // php_fastcgi answers all requests that run PHP before they get here
	behindPHP         []zonePlace          // zones without match behind it
	matched           bool                 // a route has matchers other than host
	everywhere        []zonePlace          // zones whose handlers get all requests of a site
	keyedByForm       map[string]bool      // zones that need a match of their own then
	plain             bool                 // the server speaks plain HTTP, and no proxy speaks HTTPS for it
	overHTTP          []zonePlace          // zones in such servers
	sendsPasses       map[string]bool      // zones that need HTTPS for it
	toldTo            map[string]bool      // zones to which the upstream names users
	leaks             []zonePlace          // zones of servers with error routes that would let these names out

	outermost map[string]*caddyhttp.Route // the servers' own routes, by their path
	sites     map[string]string           // the hosts of these routes
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
	c := &serversConfig{defined: make(map[string]bool), referred: make(map[string]bool), keyedByForm: make(map[string]bool), sendsPasses: make(map[string]bool), toldTo: make(map[string]bool), answers: make(map[zonePlace]string), outermost: make(map[string]*caddyhttp.Route), sites: make(map[string]string)}
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
		zones := len(c.placed)
		c.walk(server["routes"], path+"/routes")
		if asksUpstream(server["errors"]) {
			for _, place := range c.placed[zones:] {
				c.leaks = append(c.leaks, zonePlace{place.zone, path + "/errors"})
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
			if c.answered != "" {
				c.behind = append(c.behind, zonePlace{name, path})
				c.answers[zonePlace{name, path}] = c.answered
			}
			if c.ranPHP && c.answered == "" && fields["match"] == nil {
				c.behindPHP = append(c.behindPHP, zonePlace{name, path})
			}
			if !c.matched {
				c.everywhere = append(c.everywhere, zonePlace{name, path})
			}
			c.placed = append(c.placed, zonePlace{name, path})
			if c.plain {
				c.overHTTP = append(c.overHTTP, zonePlace{name, path})
			}
			if len(fields) == 1 {
				c.referred[name] = true
				if !c.rooted {
					c.bare = append(c.bare, zonePlace{name, path})
				}
				continue
			}
			c.defined[name] = true
			if z, err := json.Marshal(fields); err == nil {
				c.note(z)
			}
			if static, exempt := fields["exempt_static_files"].(map[string]any); exempt && static["root"] == nil && !c.rooted {
				c.static = append(c.static, zonePlace{name, path})
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
	if route["match"] == nil {
		handlers, _ := route["handle"].([]any)
		inner = slices.Concat(inner, handlers)
	}
	if slices.ContainsFunc(inner, func(element any) bool {
		fields, _ := element.(map[string]any)
		return answersPHP(fields)
	}) {
		return true
	}
	scripts := []any{map[string]any{"path": []any{"*.php"}}}
	handlers, _ := route["handle"].([]any)
	return reflect.DeepEqual(route["match"], any(scripts)) && slices.ContainsFunc(handlers, func(handler any) bool {
		fields, _ := handler.(map[string]any)
		transport, _ := fields["transport"].(map[string]any)
		return transport["protocol"] == "fastcgi"
	})
}

// note remembers a zone that is keyed by a form field and would charge requests without
// the field, too, and one that sends passes.
func (c *serversConfig) note(raw []byte) {
	var z Zone
	if json.Unmarshal(raw, &z) != nil {
		return
	}
	if len(z.Share) > 0 && z.Pass != passOff && !z.Shadow {
		c.sendsPasses[z.Name] = true
	}
	if slices.ContainsFunc(z.Rank, func(r Rank) bool { return r.Told != "" }) {
		c.toldTo[z.Name] = true
	}
	if len(z.Match) == 0 && z.MissingKey != string(decision.Skip) &&
		slices.ContainsFunc(z.Key, func(k KeySource) bool { return k.Source == "form" }) {
		c.keyedByForm[z.Name] = true
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
		if raw, err := json.Marshal(z); err == nil {
			c.note(raw)
		}
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
	if len(c.behind) > 0 {
		behind := c.behind[0]
		return nil, fmt.Errorf("zone %q never sees a request, because a handler before it (%s) answers all of them: put throttle first, in %s", behind.zone, c.answers[behind], c.name(behind))
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
	for _, place := range servers.everywhere {
		if servers.keyedByForm[place.zone] {
			a.warner.Warn("zone is keyed by a form field and has no match, so it charges every request of the site, those without the field by their address: write match path <path of the form>* into the zone",
				zap.String("zone", place.zone), zap.String("place", servers.name(place)))
		}
	}
	warned := make(map[string]bool)
	for _, place := range servers.behindPHP {
		if !warned[place.zone] {
			warned[place.zone] = true
			a.warner.Warn("zone sees no request that runs PHP, because php_fastcgi before it answers them: put throttle before php_fastcgi",
				zap.String("zone", place.zone), zap.String("place", servers.name(place)))
		}
	}
	clear(warned)
	for _, place := range servers.overHTTP {
		if servers.sendsPasses[place.zone] && !warned[place.zone] {
			warned[place.zone] = true
			a.warner.Warn("zone with share is on a site over plain HTTP, where no passes are sent, so nobody who comes back is served sooner and nobody is a member by issued or told: serve the site over HTTPS, list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto, or write pass off",
				zap.String("zone", place.zone), zap.String("place", servers.name(place)))
		}
	}
	clear(warned)
	for _, place := range servers.leaks {
		if servers.toldTo[place.zone] && !warned[place.zone] {
			warned[place.zone] = true
			a.warner.Warn("an error route asks an upstream without throttle, so the response header that names users to this zone reaches clients there: write throttle with the zone into the error route, too",
				zap.String("zone", place.zone), zap.String("place", servers.name(place)))
		}
	}
	return err
}

func (a *App) warnUnused(zone string) {
	a.warner.Warn("zone is defined in the global options and limits nothing, because no site uses it: write throttle <zone> in a site",
		zap.String("zone", zone))
}
