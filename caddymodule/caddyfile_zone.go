package caddymodule

import (
	"errors"
	"fmt"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A zoneReader reads the options of a zone, or those beside zones, which are their
// defaults. It remembers the line of each.
type zoneReader struct {
	*caddyfile.Dispenser
	matcher matcherToken
	zone    *Zone
	place   string              // of the zone
	places  map[string][]string // of its options
}

func newZoneReader(d *caddyfile.Dispenser, matcher matcherToken) *zoneReader {
	return &zoneReader{Dispenser: d, matcher: matcher, zone: new(Zone), place: place(d), places: make(map[string][]string)}
}

// A zoneOption is an option of a zone.
type zoneOption struct {
	name    string
	syntax  string // of the words after the name
	parse   func(*zoneReader) error
	repeats bool

	// Other options that this one gives, as a short form of them.
	gives []string

	// beside allows the option beside zones, as their default; inherit copies it to
	// a zone.
	beside  bool
	inherit func(zone, defaults *Zone)
}

// plain adapts a method of Zone to a parser.
func plain(parse func(*Zone, *caddyfile.Dispenser) error) func(*zoneReader) error {
	return func(r *zoneReader) error { return parse(r.zone, r.Dispenser) }
}

// word returns an option with one word after it.
func word[T any](name, syntax string, field func(*Zone) *T, parse func(string) (T, error)) zoneOption {
	return zoneOption{
		name: name, syntax: syntax,
		parse:   func(r *zoneReader) error { return parseArg(r.Dispenser, field(r.zone), parse) },
		inherit: func(z, defaults *Zone) { *field(z) = *field(defaults) },
	}
}

// flag returns an option with no word after it.
func flag(name string, field func(*Zone) *bool) zoneOption {
	return zoneOption{
		name:    name,
		parse:   func(r *zoneReader) error { return parseFlag(r.Dispenser, field(r.zone)) },
		inherit: func(z, defaults *Zone) { *field(z) = *field(defaults) },
	}
}

// number returns an option with one whole number, in the range that JSON has, too.
func number(name, syntax string) zoneOption {
	n := zoneNumbers[slices.IndexFunc(zoneNumbers, func(n zoneNumber) bool { return n.option == name })]
	return word(name, syntax, n.of, parseWhole(max(1, n.min), n.most))
}

// besideZones returns the option, allowed beside zones.
func (o zoneOption) besideZones() zoneOption {
	o.beside = true
	return o
}

// zoneOptions are all options of a zone, in the order of the documentation.
var zoneOptions = []zoneOption{
	{name: "match", syntax: "<request matchers>|@<name>", repeats: true, parse: func(r *zoneReader) error {
		return parseMatchers(r.Dispenser, r.Val(), r.matcher, &r.zone.Match)
	}},
	{name: "exempt", syntax: "<request matchers>|@<name>|static_files [<root>]", repeats: true, parse: (*zoneReader).parseExempt, beside: true, inherit: inheritExempt},
	{name: "key", syntax: "<source>...", parse: plain((*Zone).parseKey)},
	word("missing_key", "client_ip|share|skip|refuse", func(z *Zone) *string { return &z.MissingKey }, oneOf(keyPolicies...)).besideZones(),
	word("unlisted_key", "client_ip|share|skip|refuse", func(z *Zone) *string { return &z.UnlistedKey }, oneOf(keyPolicies...)),
	flag("plain_keys", func(z *Zone) *bool { return &z.PlainKeys }),
	number("ipv4_prefix", "<bits>").besideZones(),
	number("ipv6_prefix", "<bits>").besideZones(),
	{name: "route", syntax: "<name> <path>...", repeats: true, parse: plain((*Zone).parseRoute)},
	{name: "limit", syntax: "<capacity> <leak>", gives: []string{"capacity", "leak"}, parse: plain((*Zone).parseLimit)},
	word("capacity", "<n>", func(z *Zone) *float64 { return &z.Capacity }, leakybucket.ParseCapacity),
	word("leak", "<n>/<s|m|h|d>", func(z *Zone) *string { return &z.Leak }, parseLeak),
	{name: "override", syntax: overridefile.Syntax, repeats: true, parse: plain((*Zone).parseOverride)},
	{name: "override_file", syntax: "<file>", parse: plain((*Zone).parseOverrideFile)},
	{name: "cost", syntax: "[<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit> { <request matchers> }", repeats: true, parse: func(r *zoneReader) error {
		return r.zone.parseCost(r.Dispenser, r.matcher)
	}},
	word("max_body", "<size>", func(z *Zone) *int64 { return &z.MaxBody }, parseSize(largestMaxBody)),
	word("unread_body_cost", "<n>", func(z *Zone) **float64 { return &z.UnreadBodyCost }, parseUnits),
	{name: "settle", syntax: "seconds [<workers>]|bytes <unit>|header <Name>|status <code|class>... <n> [after]", parse: plain((*Zone).parseSettle)},
	{name: "count_only", syntax: "status <code|class>...", gives: []string{"settle"}, parse: plain((*Zone).parseCountOnly)},
	word("debt", "<n>", func(z *Zone) **float64 { return &z.Debt }, parseUnits),
	{name: "trust_devices", syntax: "<cookie-glob> [<duration>]", parse: plain((*Zone).parseTrustDevices)},
	{name: "delay", syntax: "[<undelayed>]", parse: plain((*Zone).parseDelay)},
	word("max_wait", "<duration>", func(z *Zone) *caddy.Duration { return &z.MaxWait }, parseDuration),
	number("max_waiting", "<n>"),
	number("in_flight", "<n>"),
	{name: "share", syntax: "[<source>...]", parse: plain((*Zone).parseShare)},
	{name: "rank", syntax: "member issued <cookie-glob>...|member told <Response-Header>|member|crawler <request matchers>", repeats: true, parse: parseRank},
	word("pass", "off", func(z *Zone) *string { return &z.Pass }, oneOf(passOff)),
	word("warm_up", "<duration>", func(z *Zone) *caddy.Duration { return &z.WarmUp }, parseDuration),
	word("request_buffer", "<size>", func(z *Zone) *int64 { return &z.RequestBuffer }, parseSize(mostBuffered)),
	{name: "block", syntax: "[<duration>...] [everywhere]", parse: plain((*Zone).parseBlock)},
	word("on_store_error", "local|allow|deny", func(z *Zone) *string { return &z.OnStoreError }, oneOf(storePolicies...)).besideZones(),
	word("retry_after", "empty|fit|<duration>", func(z *Zone) *string { return &z.RetryAfter }, parseWord).besideZones(),
	number("retry_jitter", "<percent>").besideZones(),
	number("status", "<code>").besideZones(),
	{name: "message", syntax: "<text>", parse: plain((*Zone).parseMessage)},
	{name: "page", syntax: "<file>|{ title <text>; accent <colour>; text <text> }", parse: plain((*Zone).parsePage), beside: true, inherit: func(z, defaults *Zone) {
		z.PageHTML, z.PageStyle = defaults.PageHTML, defaults.PageStyle
	}},
	word("refuse", "page|error", func(z *Zone) *string { return &z.Refuse }, oneOf(refusePage, refuseError)).besideZones(),
	word("support_code", "on|off", func(z *Zone) *string { return &z.SupportCode }, oneOf(switchOn, switchOff)).besideZones(),
	flag("zone_header", func(z *Zone) *bool { return &z.ZoneHeader }).besideZones(),
	word("log_refused", "all|<n>/<s|m|h|d>|off", func(z *Zone) *string { return &z.LogRefused }, parseWord).besideZones(),
	{name: "shadow", parse: func(r *zoneReader) error { return parseFlag(r.Dispenser, &r.zone.Shadow) }, beside: true, inherit: func(z, _ *Zone) {
		z.Shadow, z.ShadowTogether = true, true
	}},
	number("enforce", "<percent of keys>"),
	flag("server_timing", func(z *Zone) *bool { return &z.ServerTiming }).besideZones(),
}

// parseZone sets up a zone from Caddyfile tokens. Syntax:
//
//	zone <name> {
//	    match <request matchers>|@<name>
//	    exempt <request matchers>|@<name>|static_files [<root>]
//	    key <source>...
//	    missing_key client_ip|share|skip|refuse
//	    unlisted_key client_ip|share|skip|refuse
//	    plain_keys
//	    ipv4_prefix <bits>
//	    ipv6_prefix <bits>
//	    route <name> <path>...
//	    limit <capacity> <leak>
//	    capacity <n>
//	    leak <n>/<s|m|h|d>
//	    override <part>... <plan>|<capacity> <leak>|unlimited|deny [as <name>]
//	    override_file <file>
//	    cost [<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit> { <request matchers> }
//	    max_body <size>
//	    unread_body_cost <n>
//	    settle seconds [<workers>]|bytes <unit>|header <Name>|status <code|class>... <n> [after]
//	    count_only status <code|class>...
//	    debt <n>
//	    trust_devices <cookie-glob> [<duration>]
//	    delay [<undelayed>]
//	    max_wait <duration>
//	    max_waiting <n>
//	    in_flight <n>
//	    share [<source>...]
//	    rank member issued <cookie-glob>...|member told <Response-Header>|member|crawler <request matchers>
//	    pass off
//	    warm_up <duration>
//	    request_buffer <size>
//	    block [<duration>...] [everywhere]
//	    on_store_error local|allow|deny
//	    retry_after empty|fit|<duration>
//	    retry_jitter <percent>
//	    status <code>
//	    message <text>
//	    page <file>|{ title <text>; accent <colour>; text <text> }
//	    refuse page|error
//	    support_code on|off
//	    zone_header
//	    log_refused all|<n>/<s|m|h|d>|off
//	    shadow
//	    enforce <percent of keys>
//	    server_timing
//	}
func parseZone(d *caddyfile.Dispenser, matcher matcherToken) (*zoneReader, error) {
	r := newZoneReader(d, matcher)
	if d.CountRemainingArgs() == 0 {
		return nil, d.Err("zone has no name: want zone <name>, such as zone pages")
	}
	if err := parseArg(d, &r.zone.Name, parseWord); err != nil {
		return nil, err
	}
	if err := checkZoneName(r.zone.Name); err != nil {
		return nil, d.WrapErr(err)
	}
	r.place = place(d)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := r.parseOption(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *zoneReader) parseOption() error {
	i := optionNamed(r.Val())
	if i < 0 {
		return unknownOption(r.Dispenser, fmt.Sprintf("zone %q", r.zone.Name), optionNames(func(zoneOption) bool { return true }))
	}
	return r.parse(&zoneOptions[i])
}

// parseDefault reads an option beside zones. It returns false if the word is no
// option that may be there.
func (r *zoneReader) parseDefault() (bool, error) {
	i := optionNamed(r.Val())
	if i < 0 || !zoneOptions[i].beside {
		return false, nil
	}
	return true, r.parse(&zoneOptions[i])
}

func (r *zoneReader) parse(o *zoneOption) error {
	for _, name := range append([]string{o.name}, o.gives...) {
		switch places := r.places[name]; {
		case len(places) == 0 || o.repeats:
		case len(o.gives) > 0 && len(r.places[o.name]) == 0:
			return r.Errf("%s gives %s, which is given already: remove one", o.name, name)
		case r.giver(name) != "":
			return r.Errf("%s is given already, by %s: remove one", name, r.giver(name))
		default:
			return r.Errf("%s is given twice", name)
		}
	}
	here := place(r.Dispenser)
	if err := o.parse(r); err != nil {
		return err
	}
	for _, name := range append([]string{o.name}, o.gives...) {
		r.places[name] = append(r.places[name], here)
	}
	return nil
}

// giver returns the option of the zone that has given another one as its short form, or "".
func (r *zoneReader) giver(name string) string {
	for _, o := range zoneOptions {
		if slices.Contains(o.gives, name) && len(r.places[o.name]) > 0 {
			return o.name
		}
	}
	return ""
}

func (r *zoneReader) parseExempt() error {
	return parseExempt(r.Dispenser, r.matcher, &r.zone.Exempt, &r.zone.ExemptStaticFiles)
}

// inheritExempt adds the exemptions beside the zones to those of the zone.
func inheritExempt(z, defaults *Zone) {
	z.Exempt = slices.Concat(defaults.Exempt, z.Exempt)
	if z.ExemptStaticFiles == nil {
		z.ExemptStaticFiles = defaults.ExemptStaticFiles
	}
}

// inherit applies the defaults beside the zones, except where the zone has options
// of its own. A zone that is only a name is defined elsewhere and inherits nothing.
func (r *zoneReader) inherit(defaults *zoneReader) {
	if r.zone.reference() {
		return
	}
	own := *r.zone
	for i := range zoneOptions {
		o := &zoneOptions[i]
		inherited, given := defaults.places[o.name], r.places[o.name]
		if len(inherited) == 0 || len(given) > 0 && !o.repeats || contradicts(o.name, &own) {
			continue
		}
		o.inherit(r.zone, defaults.zone)
		r.places[o.name] = slices.Concat(inherited, given)
	}
}

// contradicts reports whether an inherited option would be an error beside the
// zone's own options.
func contradicts(option string, own *Zone) bool {
	switch option {
	case "page":
		return own.Refuse == refuseError
	case "refuse":
		return own.PageHTML != nil || own.PageStyle != nil
	case "retry_after", "retry_jitter":
		return own.InFlight > 0 && own.Capacity == 0 && own.Leak == ""
	}
	return false
}

// about adds the place to an error of the zone: the line of the option that is wrong,
// or of the zone.
func (r *zoneReader) about(err error) error {
	where := r.place
	var option *optionError
	if errors.As(err, &option) {
		if places := r.places[option.option]; option.at < len(places) {
			where = places[option.at]
		}
	}
	return fmt.Errorf("%w, %s", err, where)
}

func optionNamed(name string) int {
	return slices.IndexFunc(zoneOptions, func(o zoneOption) bool { return o.name == name })
}

func optionNames(which func(zoneOption) bool) (names []string) {
	for _, o := range zoneOptions {
		if which(o) {
			names = append(names, o.name)
		}
	}
	return names
}
