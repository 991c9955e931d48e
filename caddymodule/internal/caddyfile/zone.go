package caddyfile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A zoneReader reads the options of a zone, or those beside zones, which are their
// defaults. It remembers the line of each.
type zoneReader struct {
	httpcaddyfile.Helper
	zone   *config.Zone
	place  string              // of the zone
	places map[string][]string // of its options, and of their details as in "in_flight wait"
}

func newZoneReader(h httpcaddyfile.Helper) *zoneReader {
	return &zoneReader{Helper: h, zone: new(config.Zone), place: tokens.Place(h.Dispenser), places: make(map[string][]string)}
}

// A ZoneOption is a word of a zone, or a detail of one. Its name is that of the field in JSON.
type ZoneOption struct {
	Name    string
	Syntax  string // of what follows the name, without details; empty for a flag
	Repeats bool

	// Parse reads all that follows. An option without it may have details. A detail without
	// it stands behind the option on its line, with at most one word after it, or in the
	// option's block; one with it stands in the block only.
	Parse func(*zoneReader) error

	// first is the field in JSON of the one word that follows the name. head, instead, reads
	// the words between the name and the details, and returns their number.
	first   string
	head    func(z *config.Zone, words []string) (int, error)
	Details []ZoneOption

	Beside bool // it may stand beside zones, as their default
}

// Usage returns the syntax of the option with its details.
func (o *ZoneOption) Usage() string {
	words, inBlock := []string{o.Name}, []string(nil)
	if o.Syntax != "" {
		words = append(words, o.Syntax)
	}
	for _, d := range o.Details {
		one := strings.TrimSpace(d.Name + " " + d.Syntax)
		if d.Parse == nil {
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

// partOf returns a pointer to the part of a zone that an option is about, which is made when
// the first word about it is read. Options of one word have none.
func partOf(z *config.Zone, option string) any {
	part := reflect.ValueOf(tokens.Field(z, option)).Elem()
	if part.Kind() != reflect.Pointer {
		return z
	}
	if part.IsNil() {
		part.Set(reflect.New(part.Type().Elem()))
	}
	return part.Interface()
}

func inFlightOf(z *config.Zone) *config.InFlight { return partOf(z, "in_flight").(*config.InFlight) }

const policies = "client_ip|share|skip|refuse"

var (
	keyDetails    = []ZoneOption{{Name: "missing", Syntax: policies}, {Name: "unlisted", Syntax: policies}, {Name: "plain"}, {Name: "ipv4", Syntax: "<bits>"}, {Name: "ipv6", Syntax: "<bits>"}}
	settleDetails = []ZoneOption{{Name: "after"}, {Name: "debt", Syntax: "<n>"}}
)

// ZoneOptions are all options of a zone, in the order of the documentation.
var ZoneOptions = []ZoneOption{
	{Name: "match", Syntax: "<request matchers>|@<name>", Repeats: true, Parse: func(r *zoneReader) error {
		return parseMatchers(r.Helper, r.Val(), &r.zone.Match)
	}},
	{Name: "exempt", Syntax: "<request matchers>|@<name>|static_files [<root>]", Repeats: true, Beside: true, Parse: func(r *zoneReader) error {
		sets := len(r.zone.Exempt)
		err := parseExempt(r.Helper, &r.zone.Exempt, &r.zone.ExemptStaticFiles)
		if places := r.places["exempt"]; err == nil && len(r.zone.Exempt) == sets {
			r.places["exempt"] = places[:len(places)-1] // each set has one
		}
		return err
	}},
	{Name: "key", Syntax: "<source>...", head: parseKeyWords, Details: keyDetails},
	{Name: "route", Syntax: "<name> <path>...", Repeats: true, Parse: parseRoute},
	{Name: "limit", Syntax: "<capacity> <leak>", Parse: parseLimit},
	{Name: "override", Syntax: overridefile.Syntax, Repeats: true, Parse: parseOverride},
	{Name: "override_file", Syntax: "<file>", Parse: parseOverrideFile},
	{Name: "cost", Syntax: "[<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit> { <request matchers> }", Repeats: true, Parse: parseCost},
	{Name: "read_body", Syntax: "<size>", first: "most", Details: []ZoneOption{{Name: "else", Syntax: "<cost>"}}},
	{Name: "settle", Syntax: "seconds [<workers>]|bytes <unit>|header <Name>|status <code|class>... <n>", head: parseSettle, Details: settleDetails},
	{Name: "refund", Syntax: "status <code|class>...|header <Field> <value>|cookie <glob> { status <code|class>...; header <Field> <value> }", Repeats: true, Parse: parseRefund},
	{Name: "trust_devices", Syntax: "<cookie-glob> [<duration>]", head: parseTrust},
	{Name: "delay", Syntax: "[<undelayed>]", first: "undelayed", Details: []ZoneOption{{Name: "wait", Syntax: "<duration>"}, {Name: "queue", Syntax: "<n>"}}},
	{Name: "in_flight", Syntax: "<n>", first: "slots", Details: []ZoneOption{
		{Name: "wait", Syntax: "<duration>"},
		{Name: "queue", Syntax: "<n>"},
		{Name: "share", Syntax: "[<source>...]", Parse: parseShare},
		{Name: "rank", Syntax: rankSyntax, Parse: parseRank, Repeats: true},
		{Name: "pass", Syntax: "off"},
		{Name: "warm_up", Syntax: "<duration>"},
		{Name: "buffer", Syntax: "<size>"},
	}},
	{Name: "block", Syntax: "[<duration>...]", head: parseBlock, Details: []ZoneOption{{Name: "everywhere"}}},
	{Name: "refusal", Beside: true, Details: []ZoneOption{
		{Name: "status", Syntax: "<code>"},
		{Name: "message", Syntax: "<text>"},
		{Name: "page", Syntax: "<file>|{ title <text>; accent <colour>; text <text> }", Parse: parsePage},
		{Name: "error"},
		{Name: "retry_after", Syntax: "empty|fit|<duration>"},
		{Name: "jitter", Syntax: "<percent>"},
		{Name: "code", Syntax: "off"},
		{Name: "zone_header"},
		{Name: "log", Syntax: "all|<n>/<s|m|h|d>|off"},
	}},
	{Name: "on_store_error", Syntax: "local|allow|deny", first: "on_store_error", Beside: true},
	{Name: "shadow", Beside: true, Details: []ZoneOption{{Name: "server_timing"}}},
	{Name: "enforce", Syntax: "<percent of keys>", first: "enforce"},
}

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
//	    refund status <code|class>...|header <Field> <value>|cookie <glob> { status <code|class>...; header <Field> <value> }
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
func parseZone(h httpcaddyfile.Helper) (*zoneReader, error) {
	r := newZoneReader(h)
	if h.CountRemainingArgs() == 0 {
		return nil, h.Err("zone has no name: want zone <name>, such as zone pages")
	}
	if err := tokens.ParseArg(h.Dispenser, &r.zone.Name); err != nil {
		return nil, err
	}
	if err := config.CheckZoneName(r.zone.Name); err != nil {
		return nil, h.WrapErr(err)
	}
	r.place = tokens.Place(h.Dispenser)
	for nesting := h.Nesting(); h.NextBlock(nesting); {
		if err := r.parseOption(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *zoneReader) parseOption() error {
	if o := Named(ZoneOptions, r.Val()); o != nil {
		return r.parse(o)
	}
	where := fmt.Sprintf("zone %q", r.zone.Name)
	if meant := translate(lineHere(r.Dispenser)); meant != "" {
		return r.Errf("unknown option %q in %s: %s", r.Val(), where, meant)
	}
	return tokens.UnknownOption(r.Dispenser, where, Names(ZoneOptions))
}

func (r *zoneReader) parse(o *ZoneOption) error {
	if err := r.once(o.Name, o, ""); err != nil {
		return err
	}
	if o.Parse != nil {
		return o.Parse(r)
	}
	return r.parseDetailed(o)
}

// parseDetailed reads an option with details: those on its line, and those in its block.
func (r *zoneReader) parseDetailed(o *ZoneOption) error {
	line := append([]string{o.Name}, r.RemainingArgs()...)
	used, err := r.parseHead(o, line[1:])
	if err != nil {
		return r.Errf("parsing %s: %w", o.Name, err)
	}
	if err := r.parseDetails(o, line, 1+used); err != nil {
		return err
	}
	for nesting := r.Nesting(); len(o.Details) > 0 && r.NextBlock(nesting); {
		if d := Named(o.Details, r.Val()); d == nil || d.Parse == nil {
			err = r.parseDetails(o, append([]string{r.Val()}, r.RemainingArgs()...), 0)
		} else if err = r.onceIn(o, d); err == nil {
			err = d.Parse(r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parseHead reads the words of an option before its details, and returns their number.
func (r *zoneReader) parseHead(o *ZoneOption, words []string) (used int, err error) {
	part := partOf(r.zone, o.Name)
	switch {
	case o.head != nil:
		return o.head(r.zone, words)
	case o.first == "" || o.Syntax[0] == '[' && before(o.Details, words) == 0:
		return 0, nil
	case before(o.Details, words) == 0:
		return 0, fmt.Errorf("no value: want %s %s", o.Name, o.Syntax)
	}
	if err = tokens.Set(tokens.Field(part, o.first), words[0]); err != nil {
		usage, _, _ := strings.Cut(o.Usage(), " {")
		err = fmt.Errorf("%w; the syntax is %s", err, usage)
	}
	return 1, err
}

// parseDetails reads details that follow each other on a line, from a word on.
func (r *zoneReader) parseDetails(o *ZoneOption, line []string, next int) error {
	for next < len(line) {
		d, value := Named(o.Details, line[next]), ""
		if d == nil {
			return r.unknownDetail(o, line[next])
		}
		if d.Parse != nil {
			want := quoted(line[next:])
			if words := line[next+1:]; d.Name == "page" && len(words) > 1 {
				want = pageLines(words)
			}
			return r.Errf("%s stands in the block of %s only: want\n%s", d.Name, o.Name, block(quoted(line[:next]), want))
		}
		if err := r.onceIn(o, d); err != nil {
			return err
		}
		if next++; d.Syntax != "" {
			if next == len(line) {
				return r.Errf("%s has no value: want %s %s", d.Name, d.Name, d.Syntax)
			}
			value = line[next]
			next++
		}
		if d.Name == "message" && next < len(line) && Named(o.Details, line[next]) == nil {
			return r.Errf("message has several words: put them in quotes, as in message %q", strings.Join(line[next-1:], " "))
		}
		if err := tokens.Set(tokens.Field(partOf(r.zone, o.Name), d.Name), value); err != nil {
			return r.Errf("parsing %s: %w", d.Name, err)
		}
	}
	return nil
}

// once refuses a second option of one name, and remembers its place.
func (r *zoneReader) once(name string, o *ZoneOption, where string) error {
	if len(r.places[name]) > 0 && !o.Repeats {
		return r.Errf("%s is given twice%s", o.Name, where)
	}
	r.places[name] = append(r.places[name], tokens.Place(r.Dispenser))
	return nil
}

func (r *zoneReader) onceIn(o, d *ZoneOption) error {
	return r.once(o.Name+" "+d.Name, d, " in "+o.Name)
}

func (r *zoneReader) unknownDetail(o *ZoneOption, word string) error {
	if names := Names(o.Details); Named(ZoneOptions, word) == nil && len(names) > 1 {
		if meant := otherDetails[word]; slices.Contains(names, meant) {
			return r.Errf("unknown option %q in %s: did you mean %s?", word, o.Name, meant)
		}
		return r.WrapErr(text.Unknown("option", word, " in "+o.Name, names))
	}
	return r.Errf("unexpected %q after %s: want %s, and a line for each option", word, o.Name, o.Usage())
}

// otherDetails are other words for details.
var otherDetails = map[string]string{
	"missing_key": "missing", "unlisted_key": "unlisted", "plain_keys": "plain", "ipv4_prefix": "ipv4", "ipv6_prefix": "ipv6",
	"max_wait": "wait", "timeout": "wait", "max_waiting": "queue", "most": "queue", "request_buffer": "buffer", "body": "buffer",
	"retry_jitter": "jitter", "support_code": "code", "log_refused": "log", "text": "message", "html": "page", "code": "status",
}

// inherit applies the defaults beside the zones, except where the zone has options
// of its own. A zone that is only a name is defined elsewhere and inherits nothing.
func (r *zoneReader) inherit(defaults *zoneReader) {
	z, d := r.zone, defaults.zone
	if z.Reference() {
		return
	}
	z.Exempt = slices.Concat(d.Exempt, z.Exempt)
	z.ExemptStaticFiles = slices.Concat(d.ExemptStaticFiles, z.ExemptStaticFiles)
	z.OnStoreError = cmp.Or(z.OnStoreError, d.OnStoreError)
	if d.Shadow != nil && z.Shadow == nil && z.Enforce == 0 { // which is a shadow of its own
		z.Shadow = &config.Shadow{Together: true, ServerTiming: d.Shadow.ServerTiming}
	}
	if d.Refusal != nil {
		z.Refusal = inheritRefusal(*d.Refusal, z.Refusal, z.Limit != "")
	}
	for name, places := range defaults.places {
		if name == "exempt" || len(r.places[name]) == 0 {
			r.places[name] = slices.Concat(places, r.places[name])
		}
	}
}

// inheritRefusal returns a zone's own refusal over the default, without what would be an
// error beside it.
func inheritRefusal(refusal config.Refusal, own *config.Refusal, limited bool) *config.Refusal {
	if !limited {
		refusal.RetryAfter, refusal.Jitter = "", 0
	}
	if own != nil {
		if own.Error || own.PageHTML != nil || own.PageStyle != nil {
			refusal.Error, refusal.PageHTML, refusal.PageStyle = false, nil, nil
		}
		raw, _ := json.Marshal(own) // of texts and numbers
		_ = json.Unmarshal(raw, &refusal)
	} else if refusal == (config.Refusal{}) {
		return nil
	}
	return &refusal
}

// check compiles the zone and reads its override_file, as loading the config does.
func (r *zoneReader) check(plans map[string]leakybucket.Limit) error {
	z := r.zone
	rule, err := z.Compile(plans)
	if err == nil && z.OverrideFile != "" {
		file := overridefile.File{Path: z.OverrideFile, Use: func(lines []overridefile.Line) error {
			_, err := rule.Key.Overrides.Compile(z.OverrideFile, lines)
			return err
		}}
		err = file.Load()
		if errors.Is(err, fs.ErrPermission) { // the Caddy that runs may be another user
			return nil
		}
		if err != nil {
			err = config.About("override_file", 0, fmt.Errorf("zone %q: reading override_file: %w", z.Name, err))
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
	var wrong *config.OptionError
	if errors.As(err, &wrong) {
		option, _, _ := strings.Cut(wrong.Option, " ")
		for _, name := range []string{option, wrong.Option} {
			if places := r.places[name]; wrong.At < len(places) {
				where = places[wrong.At]
			}
		}
	}
	return fmt.Errorf("%w, %s", err, where)
}

// Named returns the option of a name, or nil.
func Named(options []ZoneOption, name string) *ZoneOption {
	if i := slices.IndexFunc(options, func(o ZoneOption) bool { return o.Name == name }); i >= 0 {
		return &options[i]
	}
	return nil
}

// Names returns the names of options.
func Names(options []ZoneOption) (names []string) {
	for _, o := range options {
		names = append(names, o.Name)
	}
	return names
}

func init() {
	for _, o := range ZoneOptions {
		tokens.WantedAfter[o.Name] = o.Usage()
	}
}
