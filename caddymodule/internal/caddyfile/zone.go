package caddyfile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/overridefile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A zoneReader reads the options of a zone, or those beside zones, which are their
// defaults. It remembers the line of each.
type zoneReader struct {
	*caddyfile.Dispenser
	matcher matcherToken
	zone    *config.Zone
	place   string              // of the zone
	places  map[string][]string // of its options, and of their details as in "in_flight wait"
	lines   zoneLines           // for translations of words that are no options
}

func newZoneReader(d *caddyfile.Dispenser, matcher matcherToken) *zoneReader {
	return &zoneReader{Dispenser: d, matcher: matcher, zone: new(config.Zone), place: tokens.Place(d), places: make(map[string][]string)}
}

// A ZoneOption is a word of a zone. It has parse, which reads all that follows, or
// details.
type ZoneOption struct {
	Name    string
	syntax  string // of what follows the name, without details
	parse   func(*zoneReader) error
	Repeats bool

	// head reads the words between the name and the details, and returns their number.
	head    func(z *config.Zone, words []string) (int, error)
	Details []detail

	Beside bool // it may stand beside zones, as their default
}

// Usage returns the syntax of the option with its details.
func (o *ZoneOption) Usage() string {
	words, inBlock := []string{o.Name}, []string(nil)
	if o.syntax != "" {
		words = append(words, o.syntax)
	}
	for _, d := range o.Details {
		one := strings.TrimSpace(d.Name + " " + d.Syntax)
		if d.Block == nil {
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
	Name   string
	Syntax string // of the word after it; empty for a flag
	set    func(z *config.Zone, word string) error

	// Block, instead of set, reads a detail that stands in the block only.
	Block   func(*zoneReader) error
	Repeats bool
}

// plain adapts a parser that needs only the zone and the tokens.
func plain(parse func(*config.Zone, *caddyfile.Dispenser) error) func(*zoneReader) error {
	return func(r *zoneReader) error { return parse(r.zone, r.Dispenser) }
}

// word returns a detail with one word after it.
func word[T any](name, syntax string, field func(*config.Zone) *T, parse func(string) (T, error)) detail {
	return detail{Name: name, Syntax: syntax, set: func(z *config.Zone, word string) (err error) { *field(z), err = parse(word); return err }}
}

// flag returns a detail with no word after it.
func flag(name string, field func(*config.Zone) *bool) detail {
	return detail{Name: name, set: func(z *config.Zone, _ string) error { *field(z) = true; return nil }}
}

// asText returns a parser of a word that JSON has as it was written.
func asText[T any](parse func(string) (T, error)) func(string) (string, error) {
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

func keyIn(z *config.Zone) *config.Key { return made(&z.Key) }

func readBodyIn(z *config.Zone) *config.ReadBody { return made(&z.ReadBody) }

func settleIn(z *config.Zone) *config.Settle { return made(&z.Settle) }

func delayIn(z *config.Zone) *config.Delay { return made(&z.Delay) }

func inFlightIn(z *config.Zone) *config.InFlight { return made(&z.InFlight) }

func blockIn(z *config.Zone) *config.Block { return made(&z.Block) }

func refusalIn(z *config.Zone) *config.Refusal { return made(&z.Refusal) }

func shadowIn(z *config.Zone) *config.Shadow { return made(&z.Shadow) }

var keyDetails = []detail{
	word("missing", "client_ip|share|skip|refuse", func(z *config.Zone) *string { return &keyIn(z).Missing }, tokens.OneOf(config.KeyPolicies...)),
	word("unlisted", "client_ip|share|skip|refuse", func(z *config.Zone) *string { return &keyIn(z).Unlisted }, tokens.OneOf(config.KeyPolicies...)),
	flag("plain", func(z *config.Zone) *bool { return &keyIn(z).Plain }),
	word("ipv4", "<bits>", func(z *config.Zone) *int { return &keyIn(z).IPv4 }, tokens.ParseWhole(1, 32)),
	word("ipv6", "<bits>", func(z *config.Zone) *int { return &keyIn(z).IPv6 }, tokens.ParseWhole(1, 128)),
}

var settleDetails = []detail{
	flag("after", func(z *config.Zone) *bool { return &settleIn(z).After }),
	word("debt", "<n>", func(z *config.Zone) **float64 { return &settleIn(z).Debt }, config.ParseUnits),
}

var delayDetails = []detail{
	word("wait", "<duration>", func(z *config.Zone) *caddy.Duration { return &delayIn(z).Wait }, tokens.ParseDuration),
	word("queue", "<n>", func(z *config.Zone) *int { return &delayIn(z).Queue }, tokens.ParseWhole(1, config.MostAtOnce)),
}

var inFlightDetails = []detail{
	word("wait", "<duration>", func(z *config.Zone) *caddy.Duration { return &inFlightIn(z).Wait }, tokens.ParseDuration),
	word("queue", "<n>", func(z *config.Zone) *int { return &inFlightIn(z).Queue }, tokens.ParseWhole(1, config.MostAtOnce)),
	{Name: "share", Syntax: "[<source>...]", Block: plain(parseShare)},
	{Name: "rank", Syntax: rankSyntax, Block: parseRank, Repeats: true},
	word("pass", "off", func(z *config.Zone) *string { return &inFlightIn(z).Pass }, tokens.OneOf(config.PassOff)),
	word("warm_up", "<duration>", func(z *config.Zone) *caddy.Duration { return &inFlightIn(z).WarmUp }, tokens.ParseDuration),
	word("buffer", "<size>", func(z *config.Zone) *string { return &inFlightIn(z).Buffer }, asText(config.ParseSize(config.MostBuffered))),
}

var refusalDetails = []detail{
	word("status", "<code>", func(z *config.Zone) *int { return &refusalIn(z).Status }, tokens.ParseWhole(400, 599)),
	word("message", "<text>", func(z *config.Zone) *string { return &refusalIn(z).Message }, func(word string) (string, error) { return word, config.CheckMessage(word) }),
	{Name: "page", Syntax: "<file>|{ title <text>; accent <colour>; text <text> }", Block: parsePage},
	flag("error", func(z *config.Zone) *bool { return &refusalIn(z).Error }),
	word("retry_after", "empty|fit|<duration>", func(z *config.Zone) *string { return &refusalIn(z).RetryAfter }, asText(config.ParseRetryAfter)),
	word("jitter", "<percent>", func(z *config.Zone) *int { return &refusalIn(z).Jitter }, tokens.ParseWhole(1, 100)),
	word("code", "off", func(z *config.Zone) *string { return &refusalIn(z).Code }, tokens.OneOf(config.SwitchOff)),
	flag("zone_header", func(z *config.Zone) *bool { return &refusalIn(z).ZoneHeader }),
	word("log", "all|<n>/<s|m|h|d>|off", func(z *config.Zone) *string { return &refusalIn(z).Log }, asText(config.ParseLogRefused)),
}

// ZoneOptions are all options of a zone, in the order of the documentation.
var ZoneOptions = []ZoneOption{
	{Name: "match", syntax: "<request matchers>|@<name>", Repeats: true, parse: func(r *zoneReader) error {
		return parseMatchers(r.Dispenser, r.Val(), r.matcher, &r.zone.Match)
	}},
	{Name: "exempt", syntax: "<request matchers>|@<name>|static_files [<root>]", Repeats: true, Beside: true, parse: func(r *zoneReader) error {
		return parseExempt(r.Dispenser, r.matcher, &r.zone.Exempt, &r.zone.ExemptStaticFiles)
	}},
	{Name: "key", syntax: "<source>...", head: parseKeyWords, Details: keyDetails},
	{Name: "route", syntax: "<name> <path>...", Repeats: true, parse: plain(parseRoute)},
	{Name: "limit", syntax: "<capacity> <leak>", parse: parseZoneLimit},
	{Name: "override", syntax: overridefile.Syntax, Repeats: true, parse: plain(parseOverride)},
	{Name: "override_file", syntax: "<file>", parse: plain(parseOverrideFile)},
	{Name: "cost", syntax: "[<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit> { <request matchers> }", Repeats: true, parse: func(r *zoneReader) error {
		return parseCost(r.zone, r.Dispenser, r.matcher)
	}},
	{Name: "read_body", syntax: "<size>", head: parseReadBody, Details: []detail{
		word("else", "<cost>", func(z *config.Zone) *string { return &readBodyIn(z).Else }, asText(config.ParseUnits)),
	}},
	{Name: "settle", syntax: "seconds [<workers>]|bytes <unit>|header <Name>|status <code|class>... <n>", head: parseSettle, Details: settleDetails},
	{Name: "trust_devices", syntax: "<cookie-glob> [<duration>]", parse: plain(parseTrustDevices)},
	{Name: "delay", syntax: "[<undelayed>]", head: parseDelay, Details: delayDetails},
	{Name: "in_flight", syntax: "<n>", head: parseInFlight, Details: inFlightDetails},
	{Name: "block", syntax: "[<duration>...]", head: parseBlock, Details: []detail{
		flag("everywhere", func(z *config.Zone) *bool { return &blockIn(z).Everywhere }),
	}},
	{Name: "refusal", head: noHead, Details: refusalDetails, Beside: true},
	{Name: "on_store_error", syntax: "local|allow|deny", Beside: true, parse: func(r *zoneReader) error {
		return tokens.ParseArg(r.Dispenser, &r.zone.OnStoreError, tokens.OneOf(config.StorePolicies...))
	}},
	{Name: "shadow", head: func(z *config.Zone, _ []string) (int, error) { shadowIn(z); return 0, nil }, Beside: true, Details: []detail{
		flag("server_timing", func(z *config.Zone) *bool { return &shadowIn(z).ServerTiming }),
	}},
	{Name: "enforce", syntax: "<percent of keys>", parse: func(r *zoneReader) error {
		return tokens.ParseArg(r.Dispenser, &r.zone.Enforce, tokens.ParseWhole(1, 100))
	}},
}

func noHead(*config.Zone, []string) (int, error) { return 0, nil }

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
	if err := tokens.ParseArg(d, &r.zone.Name, tokens.ParseWord); err != nil {
		return nil, err
	}
	if err := config.CheckZoneName(r.zone.Name); err != nil {
		return nil, d.WrapErr(err)
	}
	r.place, r.lines = tokens.Place(d), zoneBlock(d)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := r.parseOption(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *zoneReader) parseOption() error {
	i := OptionNamed(r.Val())
	if i < 0 {
		return r.unknownOption()
	}
	return r.parse(&ZoneOptions[i])
}

func (r *zoneReader) unknownOption() error {
	where := fmt.Sprintf("zone %q", r.zone.Name)
	word, rest := lineHere(r.Dispenser)
	if meant := r.lines.translate(r.File(), word, rest); meant != "" {
		return r.Errf("unknown option %q in %s: %s", r.Val(), where, meant)
	}
	return tokens.UnknownOption(r.Dispenser, where, OptionNames(func(ZoneOption) bool { return true }))
}

// parseDefault reads an option beside zones. It returns false if the word is no
// option that may be there.
func (r *zoneReader) parseDefault() (bool, error) {
	i := OptionNamed(r.Val())
	if i < 0 || !ZoneOptions[i].Beside {
		return false, nil
	}
	return true, r.parse(&ZoneOptions[i])
}

func (r *zoneReader) parse(o *ZoneOption) error {
	if len(r.places[o.Name]) > 0 && !o.Repeats {
		return r.Errf("%s is given twice", o.Name)
	}
	here := tokens.Place(r.Dispenser)
	read := o.parse
	if read == nil {
		read = func(r *zoneReader) error { return r.parseDetailed(o) }
	}
	if err := read(r); err != nil {
		return err
	}
	r.places[o.Name] = append(r.places[o.Name], here)
	return nil
}

// parseDetailed reads an option with details: those on its line, and those in its block.
func (r *zoneReader) parseDetailed(o *ZoneOption) error {
	words := r.RemainingArgs()
	used, err := o.head(r.zone, words)
	if err != nil {
		return r.WrapErr(err)
	}
	if err := r.parseDetails(o, words[used:]); err != nil {
		return err
	}
	none, here := len(words) == 0, tokens.Place(r.Dispenser)
	for nesting := r.Nesting(); r.NextBlock(nesting); none = false {
		if i := DetailNamed(o, r.Val()); i >= 0 && o.Details[i].Block != nil {
			if err := r.once(o, &o.Details[i]); err != nil {
				return err
			}
			if err := o.Details[i].Block(r); err != nil {
				return err
			}
			continue
		}
		if err := r.parseDetails(o, append([]string{r.Val()}, r.RemainingArgs()...)); err != nil {
			return err
		}
	}
	if none && o.Name == "refusal" {
		return fmt.Errorf("refusal has no option: want one of %s, %s", strings.Join(detailNames(o), ", "), here)
	}
	return nil
}

// parseDetails reads details that follow each other on a line.
func (r *zoneReader) parseDetails(o *ZoneOption, words []string) error {
	for len(words) > 0 {
		i := DetailNamed(o, words[0])
		if i < 0 {
			return r.unknownDetail(o, words)
		}
		d, value := &o.Details[i], ""
		if d.Block != nil {
			return r.Errf("%s stands in the block of %s only: want\n%s", d.Name, o.Name, block(r.lineBefore(o, d), strings.Join(quoted(words), " ")))
		}
		if err := r.once(o, d); err != nil {
			return err
		}
		words = words[1:]
		if d.Syntax != "" {
			if len(words) == 0 {
				return r.Errf("%s has no value: want %s %s", d.Name, d.Name, d.Syntax)
			}
			value, words = words[0], words[1:]
		}
		if d.Name == "message" && len(words) > 0 && DetailNamed(o, words[0]) < 0 {
			return r.Errf("message has several words: put them in quotes, as in message %q", value+" "+strings.Join(words, " "))
		}
		if err := d.set(r.zone, value); err != nil {
			return r.Errf("parsing %s: %w", d.Name, err)
		}
	}
	return nil
}

// lineBefore returns the line of an option up to one of its details.
func (r *zoneReader) lineBefore(o *ZoneOption, d *detail) string {
	line := r.lines.find(o.Name)
	if line == nil {
		return o.Name
	}
	return strings.Join(quoted(line.words[:slices.Index(append(line.words, d.Name), d.Name)]), " ")
}

// once refuses a second detail of one name, and remembers its place.
func (r *zoneReader) once(o *ZoneOption, d *detail) error {
	name := o.Name + " " + d.Name
	if len(r.places[name]) > 0 && !d.Repeats {
		return r.Errf("%s is given twice in %s", d.Name, o.Name)
	}
	r.places[name] = append(r.places[name], tokens.Place(r.Dispenser))
	return nil
}

func (r *zoneReader) unknownDetail(o *ZoneOption, words []string) error {
	if OptionNamed(words[0]) >= 0 {
		return r.Errf("unexpected %q after %s: want a line for each option", words[0], o.Name)
	}
	if o.Name == "shadow" && slices.Contains([]string{"on", "off", "true", "false", "yes", "no"}, words[0]) {
		return r.Errf("unexpected %q after shadow, which stands alone: the zone refuses nobody with it, and enforces its limits without it", words[0])
	}
	names := detailNames(o)
	if meant := otherDetails[words[0]]; slices.Contains(names, meant) {
		return r.Errf("unknown option %q in %s: did you mean %s?", words[0], o.Name, meant)
	}
	return r.WrapErr(text.Unknown("option", words[0], " in "+o.Name, names))
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

func OptionNamed(name string) int {
	return slices.IndexFunc(ZoneOptions, func(o ZoneOption) bool { return o.Name == name })
}

func DetailNamed(o *ZoneOption, name string) int {
	return slices.IndexFunc(o.Details, func(d detail) bool { return d.Name == name })
}

func detailNames(o *ZoneOption) (names []string) {
	for _, d := range o.Details {
		names = append(names, d.Name)
	}
	return names
}

func OptionNames(which func(ZoneOption) bool) (names []string) {
	for _, o := range ZoneOptions {
		if which(o) {
			names = append(names, o.Name)
		}
	}
	return names
}

func init() {
	for _, o := range ZoneOptions {
		tokens.WantedAfter[o.Name] = o.Usage()
	}
}
