package caddymodule

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

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
	places  map[string][]string // of its options, and of their details as in "in_flight wait"
	lines   zoneLines           // for translations of words that are no options
}

func newZoneReader(d *caddyfile.Dispenser, matcher matcherToken) *zoneReader {
	return &zoneReader{Dispenser: d, matcher: matcher, zone: new(Zone), place: place(d), places: make(map[string][]string)}
}

// A zoneOption is a word of a zone. It has parse, which reads all that follows, or
// details.
type zoneOption struct {
	name    string
	syntax  string // of what follows the name, without details
	parse   func(*zoneReader) error
	repeats bool

	// head reads the words between the name and the details, and returns their number.
	head    func(z *Zone, words []string) (int, error)
	details []detail

	// beside allows the option beside zones, as their default; inherit copies it to
	// a zone. Options with details are copied detail by detail.
	beside  bool
	inherit func(zone, defaults *Zone)
}

// usage returns the syntax of the option with its details.
func (o *zoneOption) usage() string {
	words, inBlock := []string{o.name}, []string(nil)
	if o.syntax != "" {
		words = append(words, o.syntax)
	}
	for _, d := range o.details {
		one := strings.TrimSpace(d.name + " " + d.syntax)
		if d.block == nil {
			words = append(words, "["+one+"]")
		} else {
			inBlock = append(inBlock, one)
		}
	}
	if inBlock != nil {
		words = append(words, "{ "+strings.Join(inBlock, "; ")+" }")
	}
	return strings.Join(words, " ")
}

// A detail belongs to an option. It stands behind the option on its line, with at most one
// word after it, or in the option's block.
type detail struct {
	name    string
	syntax  string // of the word after it; empty for a flag
	set     func(z *Zone, word string) error
	inherit func(zone, defaults *Zone)

	// block, instead of set, reads a detail that stands in the block only.
	block   func(*zoneReader) error
	repeats bool
}

// plain adapts a method of Zone to a parser.
func plain(parse func(*Zone, *caddyfile.Dispenser) error) func(*zoneReader) error {
	return func(r *zoneReader) error { return parse(r.zone, r.Dispenser) }
}

// word returns a detail with one word after it.
func word[T any](name, syntax string, field func(*Zone) *T, parse func(string) (T, error)) detail {
	return detail{
		name: name, syntax: syntax,
		set:     func(z *Zone, word string) (err error) { *field(z), err = parse(word); return err },
		inherit: func(z, defaults *Zone) { *field(z) = *field(defaults) },
	}
}

// flag returns a detail with no word after it.
func flag(name string, field func(*Zone) *bool) detail {
	return detail{
		name:    name,
		set:     func(z *Zone, _ string) error { *field(z) = true; return nil },
		inherit: func(z, defaults *Zone) { *field(z) = *field(defaults) },
	}
}

// text returns a parser of a word that JSON has as it was written.
func text[T any](parse func(string) (T, error)) func(string) (string, error) {
	return func(word string) (string, error) {
		_, err := parse(word)
		return word, err
	}
}

// The parts of a zone, made when the first word about them is read.
func made[T any](part **T) *T {
	if *part == nil {
		*part = new(T)
	}
	return *part
}

func (z *Zone) key() *Key           { return made(&z.Key) }
func (z *Zone) readBody() *ReadBody { return made(&z.ReadBody) }
func (z *Zone) settle() *Settle     { return made(&z.Settle) }
func (z *Zone) delay() *Delay       { return made(&z.Delay) }
func (z *Zone) inFlight() *InFlight { return made(&z.InFlight) }
func (z *Zone) block() *Block       { return made(&z.Block) }
func (z *Zone) refusal() *Refusal   { return made(&z.Refusal) }
func (z *Zone) shadow() *Shadow     { return made(&z.Shadow) }

var keyDetails = []detail{
	word("missing", "client_ip|share|skip|refuse", func(z *Zone) *string { return &z.key().Missing }, oneOf(keyPolicies...)),
	word("unlisted", "client_ip|share|skip|refuse", func(z *Zone) *string { return &z.key().Unlisted }, oneOf(keyPolicies...)),
	flag("plain", func(z *Zone) *bool { return &z.key().Plain }),
	word("ipv4", "<bits>", func(z *Zone) *int { return &z.key().IPv4 }, parseWhole(1, 32)),
	word("ipv6", "<bits>", func(z *Zone) *int { return &z.key().IPv6 }, parseWhole(1, 128)),
}

var settleDetails = []detail{
	flag("after", func(z *Zone) *bool { return &z.settle().After }),
	word("debt", "<n>", func(z *Zone) **float64 { return &z.settle().Debt }, parseUnits),
}

var delayDetails = []detail{
	word("wait", "<duration>", func(z *Zone) *caddy.Duration { return &z.delay().Wait }, parseDuration),
	word("queue", "<n>", func(z *Zone) *int { return &z.delay().Queue }, parseWhole(1, mostAtOnce)),
}

var inFlightDetails = []detail{
	word("wait", "<duration>", func(z *Zone) *caddy.Duration { return &z.inFlight().Wait }, parseDuration),
	word("queue", "<n>", func(z *Zone) *int { return &z.inFlight().Queue }, parseWhole(1, mostAtOnce)),
	{name: "share", syntax: "[<source>...]", block: plain((*Zone).parseShare)},
	{name: "rank", syntax: rankSyntax, block: parseRank, repeats: true},
	word("pass", "off", func(z *Zone) *string { return &z.inFlight().Pass }, oneOf(passOff)),
	word("warm_up", "<duration>", func(z *Zone) *caddy.Duration { return &z.inFlight().WarmUp }, parseDuration),
	word("buffer", "<size>", func(z *Zone) *string { return &z.inFlight().Buffer }, text(parseSize(mostBuffered))),
}

var refusalDetails = []detail{
	word("status", "<code>", func(z *Zone) *int { return &z.refusal().Status }, parseWhole(400, 599)),
	word("message", "<text>", func(z *Zone) *string { return &z.refusal().Message }, func(word string) (string, error) { return word, checkMessage(word) }),
	{name: "page", syntax: "<file>|{ title <text>; accent <colour>; text <text> }", block: parsePage, inherit: func(z, defaults *Zone) {
		z.refusal().PageHTML, z.refusal().PageStyle = defaults.Refusal.PageHTML, defaults.Refusal.PageStyle
	}},
	flag("error", func(z *Zone) *bool { return &z.refusal().Error }),
	word("retry_after", "empty|fit|<duration>", func(z *Zone) *string { return &z.refusal().RetryAfter }, text(parseRetryAfter)),
	word("jitter", "<percent>", func(z *Zone) *int { return &z.refusal().Jitter }, parseWhole(1, 100)),
	word("code", "off", func(z *Zone) *string { return &z.refusal().Code }, oneOf(switchOff)),
	flag("zone_header", func(z *Zone) *bool { return &z.refusal().ZoneHeader }),
	word("log", "all|<n>/<s|m|h|d>|off", func(z *Zone) *string { return &z.refusal().Log }, text(parseLogRefused)),
}

// zoneOptions are all options of a zone, in the order of the documentation.
var zoneOptions = []zoneOption{
	{name: "match", syntax: "<request matchers>|@<name>", repeats: true, parse: func(r *zoneReader) error {
		return parseMatchers(r.Dispenser, r.Val(), r.matcher, &r.zone.Match)
	}},
	{name: "exempt", syntax: "<request matchers>|@<name>|static_files [<root>]", repeats: true, beside: true, inherit: inheritExempt, parse: func(r *zoneReader) error {
		return parseExempt(r.Dispenser, r.matcher, &r.zone.Exempt, &r.zone.ExemptStaticFiles)
	}},
	{name: "key", syntax: "<source>...", head: (*Zone).parseKey, details: keyDetails},
	{name: "route", syntax: "<name> <path>...", repeats: true, parse: plain((*Zone).parseRoute)},
	{name: "limit", syntax: "<capacity> <leak>", parse: plain((*Zone).parseLimit)},
	{name: "override", syntax: overridefile.Syntax, repeats: true, parse: plain((*Zone).parseOverride)},
	{name: "override_file", syntax: "<file>", parse: plain((*Zone).parseOverrideFile)},
	{name: "cost", syntax: "[<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit> { <request matchers> }", repeats: true, parse: func(r *zoneReader) error {
		return r.zone.parseCost(r.Dispenser, r.matcher)
	}},
	{name: "read_body", syntax: "<size>", head: (*Zone).parseReadBody, details: []detail{
		word("else", "<cost>", func(z *Zone) *string { return &z.readBody().Else }, text(parseUnits)),
	}},
	{name: "settle", syntax: "seconds [<workers>]|bytes <unit>|header <Name>|status <code|class>... <n>", head: (*Zone).parseSettle, details: settleDetails},
	{name: "trust_devices", syntax: "<cookie-glob> [<duration>]", parse: plain((*Zone).parseTrustDevices)},
	{name: "delay", syntax: "[<undelayed>]", head: (*Zone).parseDelay, details: delayDetails},
	{name: "in_flight", syntax: "<n>", head: (*Zone).parseInFlight, details: inFlightDetails},
	{name: "block", syntax: "[<duration>...]", head: (*Zone).parseBlock, details: []detail{
		flag("everywhere", func(z *Zone) *bool { return &z.block().Everywhere }),
	}},
	{name: "refusal", head: noHead, details: refusalDetails, beside: true},
	{name: "on_store_error", syntax: "local|allow|deny", beside: true, inherit: func(z, defaults *Zone) { z.OnStoreError = defaults.OnStoreError }, parse: func(r *zoneReader) error {
		return parseArg(r.Dispenser, &r.zone.OnStoreError, oneOf(storePolicies...))
	}},
	{name: "shadow", head: func(z *Zone, _ []string) (int, error) { z.shadow(); return 0, nil }, beside: true, inherit: func(z, defaults *Zone) {
		z.Shadow = &Shadow{Together: true, ServerTiming: defaults.Shadow.ServerTiming}
	}, details: []detail{
		flag("server_timing", func(z *Zone) *bool { return &z.shadow().ServerTiming }),
	}},
	{name: "enforce", syntax: "<percent of keys>", parse: func(r *zoneReader) error {
		return parseArg(r.Dispenser, &r.zone.Enforce, parseWhole(1, 100))
	}},
}

func noHead(*Zone, []string) (int, error) { return 0, nil }

// parseZone sets up a zone from Caddyfile tokens. Syntax:
//
//	zone <name> {
//	    match <request matchers>|@<name>
//	    exempt <request matchers>|@<name>|static_files [<root>]
//	    key <source>... [missing client_ip|share|skip|refuse] [unlisted ...] [plain] [ipv4 <bits>] [ipv6 <bits>]
//	    route <name> <path>...
//	    limit <capacity> <leak>
//	    override <part>... <plan>|<capacity> <leak>|unlimited|deny [as <name>]
//	    override_file <file>
//	    cost [<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit> { <request matchers> }
//	    read_body <size> [else <cost>]
//	    settle seconds [<workers>]|bytes <unit>|header <Name>|status <code|class>... <n> [after] [debt <n>]
//	    trust_devices <cookie-glob> [<duration>]
//	    delay [<undelayed>] [wait <duration>] [queue <n>]
//	    in_flight <n> [wait <duration>] [queue <n>] [warm_up <duration>] [buffer <size>] [pass off] {
//	        share [<source>...]
//	        rank member issued <cookie-glob>...|member told <Header> <cookie-glob>|member|crawler <request matchers>
//	    }
//	    block [<duration>...] [everywhere]
//	    refusal [status <code>] [message <text>] [error] [retry_after empty|fit|<duration>] [jitter <percent>] [code off] [zone_header] [log all|<n>/<s|m|h|d>|off] {
//	        page <file>|{ title <text>; accent <colour>; text <text> }
//	    }
//	    on_store_error local|allow|deny
//	    shadow [server_timing]
//	    enforce <percent of keys>
//	}
//
// What stands behind key, read_body, settle, delay, in_flight, block, refusal and shadow
// may stand in a block of theirs, too.
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
	r.place, r.lines = place(d), zoneBlock(d)
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
		return r.unknownOption()
	}
	return r.parse(&zoneOptions[i])
}

func (r *zoneReader) unknownOption() error {
	where := fmt.Sprintf("zone %q", r.zone.Name)
	if line := r.lines.translate(r.Dispenser); line != "" {
		return r.Errf("unknown option %q in %s: want %s", r.Val(), where, line)
	}
	return unknownOption(r.Dispenser, where, optionNames(func(zoneOption) bool { return true }))
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
	if len(r.places[o.name]) > 0 && !o.repeats {
		return r.Errf("%s is given twice", o.name)
	}
	here := place(r.Dispenser)
	read := o.parse
	if read == nil {
		read = func(r *zoneReader) error { return r.parseDetailed(o) }
	}
	if err := read(r); err != nil {
		return err
	}
	r.places[o.name] = append(r.places[o.name], here)
	return nil
}

// parseDetailed reads an option with details: those on its line, and those in its block.
func (r *zoneReader) parseDetailed(o *zoneOption) error {
	words := r.RemainingArgs()
	used, err := o.head(r.zone, words)
	if err != nil {
		return r.WrapErr(err)
	}
	if err := r.parseDetails(o, words[used:]); err != nil {
		return err
	}
	none, here := len(words) == 0, place(r.Dispenser)
	for nesting := r.Nesting(); r.NextBlock(nesting); none = false {
		if i := detailNamed(o, r.Val()); i >= 0 && o.details[i].block != nil {
			if err := r.once(o, &o.details[i]); err != nil {
				return err
			}
			if err := o.details[i].block(r); err != nil {
				return err
			}
			continue
		}
		if err := r.parseDetails(o, append([]string{r.Val()}, r.RemainingArgs()...)); err != nil {
			return err
		}
	}
	if none && o.name == "refusal" {
		return fmt.Errorf("refusal has no option: want one of %s, %s", strings.Join(detailNames(o), ", "), here)
	}
	return nil
}

// parseDetails reads details that follow each other on a line.
func (r *zoneReader) parseDetails(o *zoneOption, words []string) error {
	for len(words) > 0 {
		i := detailNamed(o, words[0])
		if i < 0 {
			return r.unknownDetail(o, words)
		}
		d, value := &o.details[i], ""
		if d.block != nil {
			return r.Errf("%s stands in the block of %s only: want\n%s", d.name, o.name, block(r.lineBefore(o, d), strings.Join(quoted(words), " ")))
		}
		if err := r.once(o, d); err != nil {
			return err
		}
		words = words[1:]
		if d.syntax != "" {
			if len(words) == 0 {
				return r.Errf("%s has no value: want %s %s", d.name, d.name, d.syntax)
			}
			value, words = words[0], words[1:]
		}
		if d.name == "message" && len(words) > 0 && detailNamed(o, words[0]) < 0 {
			return r.Errf("message has several words: put them in quotes, as in message %q", value+" "+strings.Join(words, " "))
		}
		if err := d.set(r.zone, value); err != nil {
			return r.Errf("parsing %s: %w", d.name, err)
		}
	}
	return nil
}

// lineBefore returns the line of an option up to one of its details.
func (r *zoneReader) lineBefore(o *zoneOption, d *detail) string {
	words, _ := r.lines.after(o.name)
	if i := slices.Index(words, d.name); i >= 0 {
		words = words[:i]
	}
	return strings.Join(append([]string{o.name}, quoted(words)...), " ")
}

// once refuses a second detail of one name, and remembers its place.
func (r *zoneReader) once(o *zoneOption, d *detail) error {
	name := o.name + " " + d.name
	if len(r.places[name]) > 0 && !d.repeats {
		return r.Errf("%s is given twice in %s", d.name, o.name)
	}
	r.places[name] = append(r.places[name], place(r.Dispenser))
	return nil
}

func (r *zoneReader) unknownDetail(o *zoneOption, words []string) error {
	if optionNamed(words[0]) >= 0 {
		return r.Errf("unexpected %q after %s: want a line for each option", words[0], o.name)
	}
	names := detailNames(o)
	if meant := otherDetails[words[0]]; slices.Contains(names, meant) {
		return r.Errf("unknown option %q in %s: did you mean %s?", words[0], o.name, meant)
	}
	return r.WrapErr(unknown("option", words[0], " in "+o.name, names))
}

// otherDetails are other words for details.
var otherDetails = map[string]string{
	"missing_key": "missing", "unlisted_key": "unlisted", "plain_keys": "plain", "ipv4_prefix": "ipv4", "ipv6_prefix": "ipv6",
	"max_wait": "wait", "timeout": "wait", "max_waiting": "queue", "most": "queue", "request_buffer": "buffer", "body": "buffer",
	"retry_jitter": "jitter", "support_code": "code", "log_refused": "log", "text": "message", "html": "page", "code": "status",
}

// inheritExempt adds the exemptions beside the zones to those of the zone.
func inheritExempt(z, defaults *Zone) {
	z.Exempt = slices.Concat(defaults.Exempt, z.Exempt)
	z.ExemptStaticFiles = slices.Concat(defaults.ExemptStaticFiles, z.ExemptStaticFiles)
}

// inherit applies the defaults beside the zones, except where the zone has options
// of its own. A zone that is only a name is defined elsewhere and inherits nothing.
func (r *zoneReader) inherit(defaults *zoneReader) {
	if r.zone.reference() {
		return
	}
	for i := range zoneOptions {
		o := &zoneOptions[i]
		inherited, given := defaults.places[o.name], r.places[o.name]
		switch {
		case len(inherited) == 0:
			continue
		case o.name == "shadow" && r.zone.Enforce != 0: // which is a shadow of its own
			continue
		case o.inherit == nil:
			r.inheritDetails(o, defaults)
		case len(given) == 0 || o.repeats:
			o.inherit(r.zone, defaults.zone)
		}
		r.places[o.name] = slices.Concat(inherited, given)
	}
}

func (r *zoneReader) inheritDetails(o *zoneOption, defaults *zoneReader) {
	own := make(map[string]bool)
	for i := range o.details {
		own[o.details[i].name] = len(r.places[o.name+" "+o.details[i].name]) > 0
	}
	for i := range o.details {
		d := &o.details[i]
		name := o.name + " " + d.name
		if inherited := defaults.places[name]; len(inherited) > 0 && !own[d.name] && !r.contradicts(d.name, own) {
			d.inherit(r.zone, defaults.zone)
			r.places[name] = inherited
		}
	}
}

// contradicts reports whether an inherited detail of a refusal would be an error beside
// the zone's own.
func (r *zoneReader) contradicts(detail string, own map[string]bool) bool {
	switch detail {
	case "page":
		return own["error"]
	case "error":
		return own["page"]
	case "retry_after", "jitter":
		return r.zone.Limit == ""
	}
	return false
}

// check compiles the zone and reads its override_file, as loading the config does.
func (r *zoneReader) check(plans map[string]leakybucket.Limit) error {
	z := r.zone
	rule, err := z.compile(plans)
	if err == nil && z.OverrideFile != "" {
		err = new(overrideFiles).add(z.OverrideFile, rule)
		if errors.Is(err, fs.ErrPermission) { // the Caddy that runs may be another user
			return nil
		}
		if err != nil {
			err = about("override_file", 0, fmt.Errorf("zone %q: reading override_file: %w", z.Name, err))
		}
	}
	if err != nil {
		return r.about(err)
	}
	return nil
}

// about adds the place to an error of the zone: the line of the option that is wrong,
// or of the zone.
func (r *zoneReader) about(err error) error {
	where := r.place
	var wrong *optionError
	if errors.As(err, &wrong) {
		option, _, _ := strings.Cut(wrong.option, " ")
		for _, name := range []string{option, wrong.option} {
			if places := r.places[name]; wrong.at < len(places) {
				where = places[wrong.at]
			}
		}
	}
	return fmt.Errorf("%w, %s", err, where)
}

func optionNamed(name string) int {
	return slices.IndexFunc(zoneOptions, func(o zoneOption) bool { return o.name == name })
}

func detailNamed(o *zoneOption, name string) int {
	return slices.IndexFunc(o.details, func(d detail) bool { return d.name == name })
}

func detailNames(o *zoneOption) (names []string) {
	for _, d := range o.details {
		names = append(names, d.name)
	}
	return names
}

func optionNames(which func(zoneOption) bool) (names []string) {
	for _, o := range zoneOptions {
		if which(o) {
			names = append(names, o.name)
		}
	}
	return names
}
