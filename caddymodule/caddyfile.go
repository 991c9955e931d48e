package caddymodule

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// parseGlobal sets up the app from the global option. Syntax:
//
//	throttle {
//	    store <name> { ... }
//	    store_timeout <duration>
//	    on_store_error local|allow|deny
//	    nodes <n>
//	    exempt <request matchers>|static_files [<root>]
//	    plan <name> <capacity> <leak>
//	    zone <name> { ... }
//	    shadow
//	    <option>
//	}
//
// exempt, shadow and on_store_error hold for all zones of all sites. Any other
// <option> is an option of a zone, and the default of the zones in this block.
func parseGlobal(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // the option's name
	if existing != nil {
		return nil, d.Err("throttle is given twice in the global options: put both into one block")
	}
	if d.NextArg() {
		return nil, d.Errf("unexpected %q after the global option throttle: want a block; the line throttle %[1]s ... stands in a site", d.Val())
	}
	d = expanded(d)
	app, seen := new(appConfig), make(map[string]bool)
	matcher := noNamedMatchers(d)
	defaults := newZoneReader(d, matcher)
	var zones []*zoneReader
	d.Next()
	for d.NextBlock(0) {
		if d.Val() == "zone" {
			zone, err := parseZone(d, matcher)
			if err != nil {
				return nil, err
			}
			zones = append(zones, zone)
			continue
		}
		if known, err := app.parseOption(d, seen, matcher); err != nil {
			return nil, err
		} else if known {
			continue
		}
		if known, err := defaults.parseDefault(); err != nil {
			return nil, err
		} else if !known {
			return nil, misplacedOption(d, "the global option throttle", slices.Concat(globalWords, besideWords()), zones)
		}
	}
	for _, zone := range zones {
		zone.inherit(defaults)
		app.Zone = append(app.Zone, zone.zone)
	}
	if err := app.checkZones(d, zones); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "throttle", Value: caddyconfig.JSON(app, nil)}, nil
}

// expanded returns a dispenser of the same segment with the shorthands for
// placeholders expanded, as Caddy does for sites.
func expanded(d *caddyfile.Dispenser) *caddyfile.Dispenser {
	segment := d.NextSegment()
	httpcaddyfile.NewShorthandReplacer().ApplyToSegment(&segment)
	return caddyfile.NewDispenser(segment)
}

// globalWords are the options of the global block that hold for all zones.
var globalWords = []string{"store", "store_timeout", "on_store_error", "nodes", "exempt", "plan", "zone", "shadow"}

// besideWords are the options of a zone that may stand beside zones.
func besideWords() []string { return optionNames(func(o zoneOption) bool { return o.beside }) }

// misplacedOption reports a word that is no option in a block of zones.
func misplacedOption(d *caddyfile.Dispenser, where string, known []string, zones []*zoneReader) error {
	if optionNamed(d.Val()) >= 0 {
		if last := len(zones) - 1; last >= 0 && zones[last].zone.reference() {
			return d.Errf("%s cannot stand beside the zones in %s: is a { missing after zone %s?", d.Val(), where, zones[last].zone.Name)
		}
		return d.Errf("%s cannot stand beside the zones in %s: put it into the block of a zone", d.Val(), where)
	}
	if line := zoneLines(nil).translate(d); line != "" {
		return d.Errf("unknown option %q in %s: want %s, in a zone", d.Val(), where, line)
	}
	slices.Sort(known)
	return unknownOption(d, where, slices.Compact(known))
}

// parseOption reads an option that holds for all zones of all sites. It returns
// false if the word is no such option.
func (a *appConfig) parseOption(d *caddyfile.Dispenser, seen map[string]bool, matcher matcherToken) (bool, error) {
	option := d.Val()
	if option == "exempt" {
		here := place(d)
		err := parseExempt(d, matcher, &a.Exempt, &a.ExemptStaticFiles)
		for _, set := range a.Exempt {
			if wrong := checkExempt(set); err == nil && wrong != nil {
				err = fmt.Errorf("%w, %s", wrong, here)
			}
		}
		return true, err
	}
	if option == "plan" {
		return true, a.parsePlan(d)
	}
	if !slices.Contains(globalWords, option) {
		return false, nil
	}
	if err := once(d, seen, option); err != nil {
		return true, err
	}
	switch option {
	case "store":
		return true, a.parseStore(d)
	case "store_timeout":
		return true, parseArg(d, &a.StoreTimeout, parseDuration)
	case "on_store_error":
		return true, parseArg(d, &a.OnStoreError, oneOf(storePolicies...))
	case "nodes":
		return true, parseArg(d, &a.Nodes, parseWhole(1, mostNodes))
	default: // shadow
		return true, parseFlag(d, &a.Shadow)
	}
}

func (a *appConfig) parseStore(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.Err("store has no name: want store memory, or one that this Caddy was built with")
	}
	name := d.Val()
	if scheme, _, isURL := strings.Cut(name, "://"); isURL {
		return unnamedStore(d, scheme)
	}
	if _, err := caddy.GetModule("throttle.stores." + name); err != nil {
		var known []string
		for _, module := range caddy.GetModules("throttle.stores") {
			known = append(known, module.ID.Name())
		}
		if meant := nearest(name, known); meant != "" {
			return d.Errf("unknown store %q: did you mean %s?", name, meant)
		}
		if name == "redis" || name == "postgres" {
			return d.Errf("unknown store %q: this Caddy was built without it; build it with xcaddy --with github.com/caddy-throttle/caddy-throttle/caddymodule/%[1]s", name)
		}
		return d.Errf("unknown store %q: want memory, or one that this Caddy was built with", name)
	}
	unmarshaler, err := caddyfile.UnmarshalModule(d, "throttle.stores."+name)
	if err != nil {
		return err
	}
	a.StoreRaw = caddyconfig.JSONModuleObject(unmarshaler, "module", name, nil)
	return nil
}

// unnamedStore reports an URL in place of a store's name. It shows no password.
func unnamedStore(d *caddyfile.Dispenser, scheme string) error {
	shown := scheme + "://..."
	if location, err := url.Parse(d.Val()); err == nil {
		shown = location.Redacted()
	}
	for _, name := range []string{"redis", "postgres"} {
		if strings.HasPrefix(scheme, name) {
			return d.Errf("unknown store %q: did you mean store %s %s?", shown, name, shown)
		}
	}
	return d.Errf("unknown store %q: want the name of a store before the URL", shown)
}

func (a *appConfig) parsePlan(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) != 3 {
		return d.Err("wrong number of words after plan: want plan <name> <capacity> <leak>, such as plan partner 100 10/s")
	}
	name := words[0]
	if _, twice := a.Plan[name]; twice {
		return d.Errf("plan %q is given twice", name)
	}
	plan := map[string]string{name: words[1] + " " + words[2]}
	if _, err := parsePlans(plan); err != nil {
		return d.WrapErr(err)
	}
	if a.Plan == nil {
		a.Plan = make(map[string]string)
	}
	maps.Copy(a.Plan, plan)
	return nil
}

// checkZones compiles the zones, so that the adapter reports their errors with a
// line. Loading the config would report them without one.
func (a *appConfig) checkZones(d *caddyfile.Dispenser, zones []*zoneReader) error {
	plans, err := parsePlans(a.Plan)
	if err != nil {
		return d.WrapErr(err)
	}
	places := make(map[string]string)
	for _, zone := range zones {
		name := zone.zone.Name
		if place, twice := places[name]; twice {
			return fmt.Errorf("zone %q is defined twice in the global options, %s and %s", name, place, zone.place)
		}
		places[name] = zone.place
		if err := zone.check(plans); err != nil {
			return err
		}
	}
	return nil
}

// parseHandler reads a directive with its matcher: both addresses of a request count for
// that. It refuses matchers that never match.
func parseHandler(h httpcaddyfile.Helper) (*handlerConfig, error) {
	h.Next()
	set, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, h.WrapErr(errUnknownMatcherName(err))
	}
	for _, check := range []func(caddy.ModuleMap) error{checkPaths, checkTails, checkSyntax, checkOuterMethods} {
		if err = check(set); err != nil {
			break
		}
	}
	if err != nil {
		h.Next()
		return nil, h.WrapErr(err)
	}
	handler, err := parseDirective(h)
	if err != nil {
		return nil, err
	}
	if set != nil {
		handler.Match = caddyhttp.RawMatcherSets{set}
	}
	return handler, nil
}

// parseDirective reads a directive without its matcher from Caddyfile tokens. Syntax:
//
//	throttle [<matcher>] <zone>
//	throttle [<matcher>] <zone> <key>... <capacity> <leak>
//	throttle [<matcher>] <zone> <key>... <capacity> <leak> {
//	    <option>
//	}
//	throttle [<matcher>] {
//	    <option>
//	    zone <name>
//	    zone <name> { ... }
//	    ratelimit_headers
//	}
//
// An option of a zone beside the zones is the default of all zones that the block
// defines.
func parseDirective(h httpcaddyfile.Helper) (*handlerConfig, error) {
	h.Next() // the directive's name
	handler := new(handlerConfig)
	here := place(h.Dispenser)
	zones, err := handler.parse(h)
	if err != nil {
		return nil, err
	}
	if len(zones) == 0 {
		return nil, fmt.Errorf("no zone given: want throttle <zone>, throttle <zone> <key>... <capacity> <leak>, or a block with zones, %s", here)
	}
	for _, zone := range zones {
		handler.Zone = append(handler.Zone, zone.zone)
	}
	return handler, handler.check(h, zones)
}

func (handler *handlerConfig) parse(h httpcaddyfile.Helper) ([]*zoneReader, error) {
	matcher := namedMatchers(h)
	if words := h.RemainingArgs(); len(words) > 0 {
		zone, err := parseLine(h.Dispenser, matcher, words)
		if err != nil {
			return nil, err
		}
		for h.NextBlock(0) {
			if len(words) == 1 {
				return nil, h.Errf("throttle %s and a block exclude each other: want throttle <zone> <key>... <capacity> <leak> before the block, or the zone in it", words[0])
			}
			if err := handler.parseLineOption(h, zone); err != nil {
				return nil, err
			}
		}
		return []*zoneReader{zone}, nil
	}
	var zones []*zoneReader
	defaults := newZoneReader(h.Dispenser, matcher)
	for h.NextBlock(0) {
		switch h.Val() {
		case "zone":
			zone, err := parseZone(h.Dispenser, matcher)
			if err != nil {
				return nil, err
			}
			zones = append(zones, zone)
		case "ratelimit_headers":
			if err := handler.parseHeaders(h.Dispenser); err != nil {
				return nil, err
			}
		default:
			if known, err := defaults.parseDefault(); err != nil {
				return nil, err
			} else if !known {
				return nil, misplacedOption(h.Dispenser, "the directive throttle", append(besideWords(), "zone", "ratelimit_headers"), zones)
			}
		}
	}
	for _, zone := range zones {
		zone.inherit(defaults)
	}
	return zones, nil
}

// parseLineOption reads an option in the block behind a zone on one line.
func (handler *handlerConfig) parseLineOption(h httpcaddyfile.Helper, zone *zoneReader) error {
	switch h.Val() {
	case "ratelimit_headers":
		return handler.parseHeaders(h.Dispenser)
	case "zone":
		return h.Errf("zone %q stands on the line of throttle already: put both zones into the block", zone.zone.Name)
	}
	return zone.parseOption()
}

func (handler *handlerConfig) parseHeaders(d *caddyfile.Dispenser) error {
	if handler.RateLimitHeaders {
		return d.Err("ratelimit_headers is given twice")
	}
	return parseFlag(d, &handler.RateLimitHeaders)
}

const wantLine = "want throttle <zone> [<key>...] <capacity> <leak>"

// parseLine reads a whole zone from one line.
func parseLine(d *caddyfile.Dispenser, matcher matcherToken, words []string) (*zoneReader, error) {
	if err := checkLine(words); err != nil {
		return nil, d.WrapErr(err)
	}
	r := newZoneReader(d, matcher)
	z := r.zone
	z.Name = words[0]
	if len(words) == 1 {
		return r, nil
	}
	last := len(words) - 2
	limit, err := parseLimit(words[last:])
	if err != nil {
		return nil, d.WrapErr(err)
	}
	z.Limit = limit
	r.places["limit"] = []string{r.place}
	if last == 1 {
		return r, nil
	}
	sources, used, err := parseKey(words[1:last])
	if err != nil {
		return nil, d.WrapErr(err)
	}
	key := &zoneOptions[optionNamed("key")]
	z.key().Sources, r.places["key"] = sources, []string{r.place}
	return r, r.parseDetails(key, words[1+used:last])
}

// checkLine says what is missing on a line after throttle.
func checkLine(words []string) error {
	number := func(word string) bool { _, plain := leakybucket.ParseCost(word); return plain }
	rate := func(word string) bool { _, err := leakybucket.ParseRate(word); return err == nil }
	first, last := words[0], words[len(words)-1]
	if slices.Contains(sourceWords, first) || len(words) > 1 && strings.Contains(first, "{") {
		return fmt.Errorf("no zone name before %s: %s", first, wantLine)
	}
	if len(words) == 1 {
		return nil
	}
	if words[1] == "key" {
		return fmt.Errorf("unexpected \"key\" after the zone: want throttle %s", strings.Join(slices.Delete(slices.Clone(words), 1, 2), " "))
	}
	if slices.Contains(matcherWords, first) && strings.HasPrefix(words[1], "/") {
		return fmt.Errorf("no zone name before %s, which is a matcher: want throttle %s", first, strings.Join(words[1:], " "))
	}
	previous := words[len(words)-2]
	at := 1 + max(0, slices.IndexFunc(words[1:], rate)) // the first leak, if there is one
	switch {
	case len(words) == 2 && first == "zone":
		return fmt.Errorf("zone %s stands on the line of throttle: want throttle %[1]s <key>... <capacity> <leak>, or the zone in the block", last)
	case strings.HasPrefix(first, "zone="):
		return fmt.Errorf("unexpected %q: %s", first, wantLine)
	case len(words) > 2 && number(first) && rate(words[1]):
		return fmt.Errorf("no zone name before %s %s: %s", first, words[1], wantLine)
	case len(words) > 2 && rate(previous) && number(last):
		return fmt.Errorf("leak %s stands before capacity %s: did you mean throttle %s %[2]s %[1]s?", previous, last, strings.Join(words[:len(words)-2], " "))
	case len(words) > 3 && number(words[at-1]) && at < len(words)-1:
		return fmt.Errorf("unexpected %q after leak %s: %s", words[at+1], words[at], wantLine)
	case len(words) == 2 && number(first) && rate(last):
		return fmt.Errorf("no zone name before %s %s: %s", first, last, wantLine)
	case number(last) && (len(words) == 2 || !number(previous)):
		return fmt.Errorf("no leak after capacity %s: %s", last, wantLine)
	case rate(last) && (len(words) == 2 || slices.Contains(sourceWords, previous)):
		return fmt.Errorf("no capacity before leak %s: %s", last, wantLine)
	case len(words) == 2:
		return fmt.Errorf("%q stands alone after the zone: want throttle <zone>, or throttle <zone> <key>... <capacity> <leak>", last)
	}
	return nil
}

// A definedZone is a zone that this Caddyfile has defined so far.
type definedZone struct{ definition, place string }

// check compiles the zones, so that the adapter reports their errors with a line.
// Loading the config would report them without one.
func (handler *handlerConfig) check(h httpcaddyfile.Helper, zones []*zoneReader) error {
	app := new(appConfig)
	if global, ok := h.Option("throttle").(httpcaddyfile.App); ok {
		if err := caddy.StrictUnmarshalJSON(global.Value, app); err != nil {
			return h.WrapErr(err)
		}
	}
	plans, err := parsePlans(app.Plan)
	if err != nil {
		return h.WrapErr(err)
	}
	defined, err := definedZones(h, app)
	if err != nil {
		return err
	}
	places := make(map[string]string)
	twins := make(twinZones)
	for _, zone := range zones {
		name := zone.zone.Name
		if place, twice := places[name]; twice {
			return fmt.Errorf("zone %q is given twice in one throttle directive, %s and %s", name, place, zone.place)
		}
		places[name] = zone.place
		full := app.zoneNamed(name)
		if !zone.zone.reference() {
			full = zone.zone
			if err := zone.check(plans); err != nil {
				return err
			}
		} else if full == nil {
			return zone.unknown(app, defined)
		}
		definition, err := full.definition()
		if err != nil {
			return zone.about(err)
		}
		if other, before := defined[name]; !before {
			defined[name] = definedZone{definition, zone.place}
		} else if other.definition != definition {
			return fmt.Errorf("zone %q is defined twice, and differently: a name is one budget, so give one of them another name, %s and %s", name, other.place, zone.place)
		}
		if err := twins.add(name, definition); err != nil {
			return zone.about(err)
		}
	}
	return nil
}

// definedZones returns the zones that are defined so far in this Caddyfile.
func definedZones(h httpcaddyfile.Helper, app *appConfig) (map[string]definedZone, error) {
	if defined, ok := h.State["throttle"].(map[string]definedZone); ok {
		return defined, nil
	}
	defined := make(map[string]definedZone)
	for _, z := range app.Zone {
		definition, err := z.definition()
		if err != nil {
			return nil, h.WrapErr(err)
		}
		defined[z.Name] = definedZone{definition, "in the global options"}
	}
	h.State["throttle"] = defined
	return defined, nil
}

// zoneNamed returns one of the app's own zones, or nil.
func (a *appConfig) zoneNamed(name string) *Zone {
	for _, z := range a.Zone {
		if z.Name == name {
			return z
		}
	}
	return nil
}

// unknown reports a zone that is nothing but a name, which the global options do
// not define.
func (r *zoneReader) unknown(app *appConfig, defined map[string]definedZone) error {
	name := r.zone.Name
	if other, found := defined[name]; found {
		return fmt.Errorf("zone %q is defined in a site, and only zones in the global options can be used by name: move it there, defined %s, used %s", name, other.place, r.place)
	}
	var known []string
	for _, z := range app.Zone {
		known = append(known, z.Name)
	}
	return r.about(errUnknownZone(name, known))
}
