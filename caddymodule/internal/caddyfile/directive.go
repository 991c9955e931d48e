// Package caddyfile turns the Caddyfile into the JSON of config. Begin with [ParseHandler],
// and with the table of options in zone.go. It imports config, and nothing that runs.
package caddyfile

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// ParseGlobal sets up the app from the global option. Syntax:
//
//	throttle {
//	    store <name> { ... }
//	    store_timeout <duration>
//	    on_store_error local|allow|deny
//	    nodes <n>
//	    signing_key <secret>
//	    exempt <request matchers>|static_files [<root>]
//	    plan <name> <capacity> <leak>
//	    buffer <request> [<in all>]
//	    zone <name> { ... }
//	    in_flight <name> <slots> [<key>...] { ... }
//	    shadow
//	    <option>
//	}
//
// exempt, shadow and on_store_error hold for all zones of all sites, and the first two for
// in_flight, too. Any other <option> is an option of a zone, and the default of the zones in
// this block; refusal is that of in_flight, too.
func ParseGlobal(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // the option's name
	if existing != nil {
		return nil, d.Err("throttle is given twice in the global options: put both into one block")
	}
	if d.NextArg() {
		return nil, d.Errf("unexpected %q after the global option throttle: want a block; the line throttle %[1]s ... belongs in a site", d.Val())
	}
	segment := d.NextSegment()
	httpcaddyfile.NewShorthandReplacer().ApplyToSegment(&segment) // as Caddy does for sites
	app, h := &config.App{Plan: make(map[string]string)}, httpcaddyfile.Helper{Dispenser: caddyfile.NewDispenser(segment)}
	h.Next()
	var limits []*inFlightReader
	defaults, names := newZoneReader(h), make(config.Names)
	zones, err := readZones(defaults, "the global option throttle", option.Fields{
		"store":         func() error { return parseStore(app, h.Dispenser) },
		"store_timeout": &app.StoreTimeout, "on_store_error": &app.OnStoreError, "nodes": &app.Nodes, "signing_key": &app.SigningKey,
		"exempt": option.Repeated(func() error { return defaults.parseExempt(&app.Exempt, &app.ExemptStaticFiles) }),
		"plan":   option.Repeated(func() error { return parsePlan(app, h.Dispenser) }),
		"buffer": func() error { return parseBuffer(app, h.Dispenser) },
		"in_flight": option.Repeated(func() error {
			limit, err := parseInFlight(h)
			limits = append(limits, limit)
			return err
		}),
		"shadow": &app.Shadow,
	})
	if err = cmp.Or(err, defaults.about(app.Check()), defaults.about(option.Refuse("refusal", defaults.zone.Refusal != nil && len(zones)+len(limits) == 0, "refusal holds for what the global options define, which is nothing: want it beside the zones of the sites, or in an in_flight"))); err != nil {
		return nil, err
	}
	plans, _ := config.ParsePlans(app.Plan) // which have been checked
	for _, zone := range zones {
		if err := zone.define(names, plans); err != nil {
			return nil, err
		}
		app.Zone = append(app.Zone, zone.zone)
	}
	for _, limit := range limits {
		limit.inherit(defaults)
		if err := limit.define(names, app.Buffer); err != nil {
			return nil, err
		}
		app.InFlight = append(app.InFlight, &limit.InFlight)
	}
	return httpcaddyfile.App{Name: "throttle", Value: caddyconfig.JSON(app, nil)}, nil
}

// readZones reads a block of zones and of their defaults. The other known words are fields.
func readZones(defaults *zoneReader, where string, fields option.Fields) (zones []*zoneReader, err error) {
	for name, field := range defaults.options() {
		if optionNamed(name).Beside && fields[name] == nil {
			fields[name] = field
		}
	}
	fields["zone"] = option.Repeated(func() error {
		zone, err := parseZone(defaults.Helper)
		if err == nil {
			zones = append(zones, zone)
		}
		return err
	})
	err = option.Read(defaults.Dispenser, where, fields, defaults.places)
	for _, zone := range zones {
		err = cmp.Or(err, zone.about(option.Refuse("", zone.State != nil && zone.zone.Reference() && !defaults.zone.Reference(), "zone %q is only a name here, so the options beside it do not apply to it: want exempt, refusal, on_store_error and shadow where it is defined", zone.zone.Name)))
		zone.inherit(defaults)
	}
	return zones, err
}

func parseStore(a *config.App, d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.Err("store has no name: want store memory, or one that this Caddy was built with")
	}
	name := d.Val()
	if _, err := caddy.GetModule("throttle.stores." + name); err != nil {
		if strings.Contains(name, "://") { // with a password, perhaps
			return d.Err("store has no name before the URL: want it as in store redis <url>")
		}
		var known []string
		for _, module := range caddy.GetModules("throttle.stores") {
			known = append(known, module.ID.Name())
		}
		return d.Errf("%w; others must be built into Caddy, as by xcaddy --with github.com/caddy-throttle/caddy-throttle/caddymodule/<redis|postgres|memcached>", option.Unknown("store", name, "", known))
	}
	unmarshaler, err := caddyfile.UnmarshalModule(d, "throttle.stores."+name)
	if err != nil {
		return err
	}
	a.StoreRaw = caddyconfig.JSONModuleObject(unmarshaler, "module", name, nil)
	return nil
}

func parsePlan(a *config.App, d *caddyfile.Dispenser) error {
	var name, capacity, leak string
	if !d.AllArgs(&name, &capacity, &leak) {
		return d.Err("wrong number of words after plan: want plan <name> <capacity> <leak>, such as plan partner 100 10/s")
	}
	if a.Plan[name] != "" {
		return d.Errf("plan %q is given twice", name)
	}
	a.Plan[name] = capacity + " " + leak
	_, err := config.ParsePlans(a.Plan)
	return option.At(nil, option.Place(d), err)
}

// ParseHandler reads a directive with its matcher: both addresses of a request count for
// that. It refuses matchers that never match. Syntax:
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
// An option of a zone beside the zones is the default of all zones, which the block then
// defines itself.
func ParseHandler(h httpcaddyfile.Helper) (*config.Handler, error) {
	match, err := outerMatchers(h)
	if err != nil {
		return nil, err
	}
	handler := &config.Handler{Match: match}
	here := option.Place(h.Dispenser)
	zones, err := parseZones(handler, h)
	if err != nil {
		return nil, err
	}
	if len(zones) == 0 {
		return nil, fmt.Errorf("no zone given: want throttle <zone>, throttle <zone> <key>... <capacity> <leak>, or a block with zones, %s", here)
	}
	app, defined := definedIn(h)
	plans, _ := config.ParsePlans(app.Plan)
	duplicates := make(config.Duplicates)
	for _, zone := range zones { // each is compiled, since errors of loading the config have no line
		name := zone.zone.Name
		if zone.zone.Reference() {
			err = zone.about(defined.CheckMeant("zone", name))
		} else {
			err = zone.define(defined, plans)
		}
		if err = cmp.Or(err, zone.about(duplicates.Add(name, defined[name].Text))); err != nil {
			return nil, err
		}
		handler.Zone = append(handler.Zone, zone.zone)
	}
	return handler, nil
}

func parseZones(handler *config.Handler, h httpcaddyfile.Helper) ([]*zoneReader, error) {
	words := h.RemainingArgsAsTokens()
	if len(words) == 0 {
		return readZones(newZoneReader(h), "the directive throttle", option.Fields{"ratelimit_headers": &handler.RateLimitHeaders})
	}
	zone, err := parseLine(h, words)
	if err == nil && len(words) == 1 && h.NextBlock(0) {
		err = h.Errf("throttle %s and a block exclude each other: want throttle <zone> <key>... <capacity> <leak> before the block, or the zone in it", zone.zone.Name)
	}
	if err != nil || len(words) == 1 {
		return []*zoneReader{zone}, err
	}
	fields := zone.options()
	fields["ratelimit_headers"] = &handler.RateLimitHeaders
	fields["zone"] = func() error {
		return h.Errf("zone %q is on the line of throttle already: put both zones into the block", zone.zone.Name)
	}
	return []*zoneReader{zone}, option.Read(h.Dispenser, fmt.Sprintf("zone %q", zone.zone.Name), fields, zone.places)
}

// parseLine reads a whole zone from one line.
func parseLine(h httpcaddyfile.Helper, words []caddyfile.Token) (*zoneReader, error) {
	r, end := newZoneReader(h), len(words)-2
	r.zone.Name = words[0].Text
	if err := option.CheckName("zone", r.zone.Name); err != nil {
		return nil, h.WrapErr(err)
	}
	if len(words) == 1 {
		return r, nil
	}
	const want = "want throttle <zone> [<key>...] <capacity> <leak>, such as throttle pages 120 2/s"
	if end == 0 {
		return nil, h.Errf("unexpected %q after %s: %s", words[1].Text, words[0].Text, want)
	}
	r.zone.LimitRaw = words[end].Text + " " + words[end+1].Text
	r.places["limit"] = []string{r.place}
	if _, err := leakybucket.ParseLimit(r.zone.LimitRaw); err != nil {
		return nil, h.Errf("parsing limit: %w; %s", err, want)
	}
	if end == 1 {
		return r, nil
	}
	key := *r
	key.Dispenser = caddyfile.NewDispenser(words[:end])
	key.Next() // the zone's name, where that of the option stands elsewhere
	r.places["key"] = []string{r.place}
	return r, key.parse(optionNamed("key"))
}

// definedIn returns the app as ParseGlobal has made and checked it, and the definitions so far in
// this Caddyfile.
func definedIn(h httpcaddyfile.Helper) (*config.App, config.Names) {
	app := new(config.App)
	if global, ok := h.Option("throttle").(httpcaddyfile.App); ok {
		_ = json.Unmarshal(global.Value, app)
	}
	defined, ok := h.State["throttle"].(config.Names)
	if !ok {
		defined = make(config.Names)
		for _, z := range app.Zone {
			defined[z.Name] = config.Definition{Kind: "zone", Text: z.Definition(), Place: "in the global options", Global: true}
		}
		for _, f := range app.InFlight {
			defined[f.Name] = config.Definition{Kind: "in_flight", Text: f.Definition(), Place: "in the global options", Global: true}
		}
		h.State["throttle"] = defined
	}
	return app, defined
}
