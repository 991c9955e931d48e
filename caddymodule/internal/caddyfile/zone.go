package caddyfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A reader reads options, and remembers the line of each.
type reader struct {
	httpcaddyfile.Helper
	place  string              // of the whole
	places map[string][]string // of its options, and of their details as in "delay wait"
}

func newReader(h httpcaddyfile.Helper) reader {
	return reader{h, option.Place(h.Dispenser), make(map[string][]string)}
}

// about adds to an error the place of the option that is wrong, or of the whole.
func (r *reader) about(err error) error { return option.At(r.places, r.place, err) }

// A zoneReader reads the options of a zone, or those beside zones, which are their
// defaults.
type zoneReader struct {
	reader
	zone   *limit.Zone
	option *ZoneOption // that is read
}

func newZoneReader(h httpcaddyfile.Helper) *zoneReader {
	return &zoneReader{reader: newReader(h), zone: new(limit.Zone)}
}

// A ZoneOption is a word of a zone.
type ZoneOption struct {
	Name    string
	Syntax  string // of what follows the name; empty for a flag
	Repeats bool
	Beside  bool                    // it may stand beside zones, as their default
	Parse   func(*zoneReader) error // reads all that follows the name
}

// ZoneOptions are all options of a zone, in the order of the documentation.
var ZoneOptions = []ZoneOption{
	{Name: "match", Syntax: "<request matchers>|@<name>", Repeats: true, Parse: func(r *zoneReader) error {
		return parseMatchers(r.Helper, r.Val(), &r.zone.MatchRaw)
	}},
	{Name: "field", Syntax: "<name>...", Parse: func(r *zoneReader) error {
		if r.zone.Field = r.RemainingArgs(); len(r.zone.Field) == 0 {
			return r.Errf("field has no value: want %s, such as field pwd", r.syntax())
		}
		return nil
	}},
	{Name: "exempt", Syntax: "<request matchers>|@<name>|static_files [<root>]", Repeats: true, Beside: true, Parse: func(r *zoneReader) error {
		return r.parseExempt(&r.zone.ExemptRaw, &r.zone.ExemptStaticFiles)
	}},
	{Name: "key", Syntax: "<source>... [missing client_ip|share|skip|refuse] [unlisted client_ip|share|skip|refuse] [plain] [ipv4 <bits>] [ipv6 <bits>]", Parse: parseKey},
	{Name: "route", Syntax: "<name> <path>...", Repeats: true, Parse: func(r *zoneReader) error {
		words := r.RemainingArgs()
		if len(words) < 2 {
			return r.Errf("too few words after route: want %s", r.syntax())
		}
		r.zone.Route = append(r.zone.Route, limit.Route{Name: words[0], Path: words[1:]})
		return nil
	}},
	{Name: "limit", Syntax: "<capacity> <leak>", Parse: func(r *zoneReader) error {
		words := r.RemainingArgs()
		r.zone.LimitRaw = strings.Join(words, " ")
		if _, err := leakybucket.ParseLimit(r.zone.LimitRaw); err != nil && len(words) != 2 {
			return r.Errf("wrong number of words after limit: want %s, such as limit 120 2/s", r.syntax())
		}
		return nil
	}},
	{Name: "override", Syntax: "<part>... <plan>|<capacity> <leak>|unlimited|deny [as <name>]", Repeats: true, Parse: parseOverride},
	{Name: "cost", Syntax: "[<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit> { <request matchers> }", Repeats: true, Parse: parseCost},
	{Name: "read_body", Syntax: "<size> [else <cost>]", Parse: func(r *zoneReader) error {
		b := made(&r.zone.ReadBody)
		return r.detailed(option.Fields{"else": &b.Else}, 1, &b.Most)
	}},
	{Name: "settle", Syntax: "seconds|bytes <unit>|header <Name>|status <code|class>... <n> [after] [debt <n>]", Parse: parseSettle},
	{Name: "refund", Syntax: "status <code|class>...|header <Field> <value>|cookie <glob> { status <code|class>...; header <Field> <value> }", Repeats: true, Parse: parseRefund},
	{Name: "trust_devices", Syntax: "<cookie-glob> [<duration>]", Parse: func(r *zoneReader) error {
		t := made(&r.zone.TrustDevices)
		return r.detailed(nil, 1, &t.Cookie, &t.For)
	}},
	{Name: "delay", Syntax: "[<undelayed>] [wait <duration>] [queue <n>]", Parse: func(r *zoneReader) error {
		d := made(&r.zone.Delay)
		return r.detailed(option.Fields{"wait": &d.Wait, "queue": &d.Queue}, 0, &d.Undelayed)
	}},
	{Name: "block", Syntax: "[<duration>...] [everywhere]", Parse: func(r *zoneReader) error {
		b := made(&r.zone.Block)
		details := option.Fields{"everywhere": &b.Everywhere}
		words := r.words(details)
		b.For = make([]caddy.Duration, len(words))
		for i, word := range words {
			if err := option.Set(&b.For[i], word); err != nil {
				return r.Errf("parsing block: %w", err)
			}
		}
		return r.details(details)
	}},
	{Name: "refusal", Syntax: "[status <code>] [message <text>] [error] [retry_after empty|fit|<duration>] [code off] [log all|<n>/<s|m|h|d>|off] { page <file>|{ title <text>; accent <colour>; text <text> } }", Beside: true, Parse: func(r *zoneReader) error {
		f := made(&r.zone.Refusal)
		return r.details(option.Fields{
			"status": &f.Status, "message": &f.Message, "error": &f.Error, "retry_after": &f.RetryAfter, "code": &f.Code, "log": &f.Log,
			"page": func() error { return parsePage(r.Helper, f) },
		})
	}},
	{Name: "on_store_error", Syntax: "local|allow|deny", Beside: true, Parse: func(r *zoneReader) error {
		return r.detailed(nil, 1, &r.zone.OnStoreError)
	}},
	{Name: "shadow", Syntax: "[server_timing]", Beside: true, Parse: func(r *zoneReader) error {
		return r.detailed(option.Fields{"server_timing": &made(&r.zone.Shadow).ServerTiming}, 0)
	}},
	{Name: "enforce", Syntax: "<percent of keys>", Parse: func(r *zoneReader) error {
		return r.detailed(nil, 1, &r.zone.Enforce)
	}},
}

// parseZone sets up a zone from Caddyfile tokens. Syntax:
//
//	zone <name> {
//	    <option>
//	}
//
// [ZoneOptions] has the options. What stands in brackets behind one may stand in a block of
// its, too.
func parseZone(h httpcaddyfile.Helper) (*zoneReader, error) {
	r := newZoneReader(h)
	if !h.NextArg() {
		return nil, h.Err("zone has no name: want zone <name>, such as zone pages")
	}
	if r.zone.Name = h.Val(); h.NextArg() {
		return nil, h.Errf("unexpected %q after zone %s: want its options in a block, each on a line, such as limit 120 2/s", h.Val(), r.zone.Name)
	}
	if err := option.CheckName("zone", r.zone.Name); err != nil {
		return nil, h.WrapErr(err)
	}
	return r, option.Read(h.Dispenser, fmt.Sprintf("zone %q", r.zone.Name), r.options(), r.places)
}

// options are all that it reads.
func (r *zoneReader) options() option.Fields {
	fields := make(option.Fields)
	for i := range ZoneOptions {
		o := &ZoneOptions[i]
		if parse := func() error { return r.parse(o) }; o.Repeats {
			fields[o.Name] = option.Repeated(parse)
		} else {
			fields[o.Name] = parse
		}
	}
	return fields
}

func (r *zoneReader) parse(o *ZoneOption) error {
	r.option = o
	return o.Parse(r)
}

// detailed reads the words after an option into fields, of which the first so many are
// required, and then its details.
func (r *zoneReader) detailed(details option.Fields, required int, fields ...any) error {
	words := r.words(details)
	if len(words) < required {
		return r.Errf("%s has no value: want %s", r.option.Name, r.syntax())
	}
	for i, word := range words {
		if i == len(fields) {
			return r.unknownDetail(word, details)
		}
		if err := option.Set(fields[i], word); err != nil {
			return r.Errf("parsing %s: %w; the syntax is %s", r.option.Name, err, r.syntax())
		}
	}
	return r.details(details)
}

// words returns the words after an option, up to the first detail.
func (r *zoneReader) words(details option.Fields) (words []string) {
	for r.NextArg() {
		if details[r.Val()] != nil {
			r.Prev()
			break
		}
		words = append(words, r.Val())
	}
	return words
}

// details reads the details of an option: on its line those of one word, then all in its block.
func (r *zoneReader) details(details option.Fields) (err error) {
	places := make(map[string][]string)
	for r.NextArg() {
		name, place := r.Val(), option.Place(r.Dispenser)
		_, flag := details[name].(*bool)
		_, long := details[name].(func() error)
		switch {
		case details[name] == nil:
			return r.unknownDetail(name, details)
		case long:
			return r.Errf("%s belongs in the block of %s: want %s", name, r.option.Name, r.syntax())
		case places[name] != nil:
			return r.Errf("%s is given twice", name)
		case !flag && !r.NextArg():
			return r.Errf("%s has no value: want %s", name, r.syntax())
		}
		if err := option.Set(details[name], r.Val()); err != nil {
			return r.Errf("parsing %s: %w", name, err)
		}
		places[name] = []string{place}
	}
	if details != nil {
		err = option.Read(r.Dispenser, r.option.Name, details, places)
	}
	for name, place := range places {
		r.places[r.option.Name+" "+name] = place
	}
	return err
}

func (r *zoneReader) syntax() string { return strings.TrimSpace(r.option.Name + " " + r.option.Syntax) }

func (r *zoneReader) unknownDetail(word string, details option.Fields) error {
	if meant := option.Nearest(word, slices.Sorted(maps.Keys(details))); meant != "" {
		return r.Errf("unknown option %q in %s: did you mean %s?", word, r.option.Name, meant)
	}
	return r.Errf("unexpected %q after %s: want %s, and a line for each option", word, r.option.Name, r.syntax())
}

// inherit applies the defaults beside the zones, except where the zone has options
// of its own. A zone that is only a name is defined elsewhere and inherits nothing.
func (r *zoneReader) inherit(defaults *zoneReader) {
	z, d := r.zone, defaults.zone
	if z.Reference() {
		return
	}
	z.ExemptRaw = slices.Concat(d.ExemptRaw, z.ExemptRaw)
	z.ExemptStaticFiles = slices.Concat(d.ExemptStaticFiles, z.ExemptStaticFiles)
	z.OnStoreError = cmp.Or(z.OnStoreError, d.OnStoreError)
	if d.Shadow != nil && z.Shadow == nil && z.Enforce == 0 { // which is a shadow of its own
		z.Shadow = &limit.Shadow{ServerTiming: d.Shadow.ServerTiming}
	}
	if d.Refusal != nil {
		z.Refusal = inheritRefusal(*d.Refusal, z.Refusal)
	}
	places := maps.Clone(defaults.places)
	maps.Copy(places, r.places)
	// In the global options, exempt is none of the zones'.
	places["exempt"] = slices.Concat(defaults.places["exempt"][:len(d.ExemptRaw)], r.places["exempt"])
	r.places = places
}

// inheritRefusal returns a zone's own refusal over the default, without what would be an
// error beside it.
func inheritRefusal(refusal refusal.Options, own *refusal.Options) *refusal.Options {
	if own == nil {
		return &refusal
	}
	if own.Error || own.PageHTML != nil || own.PageStyle != nil {
		refusal.Error, refusal.PageHTML, refusal.PageStyle = own.Error, own.PageHTML, own.PageStyle
	}
	refusal.Status = cmp.Or(own.Status, refusal.Status)
	refusal.Message = cmp.Or(own.Message, refusal.Message)
	refusal.RetryAfter = cmp.Or(own.RetryAfter, refusal.RetryAfter)
	refusal.Code = cmp.Or(own.Code, refusal.Code)
	refusal.Log = cmp.Or(own.Log, refusal.Log)
	return &refusal
}

// define compiles the zone, as loading the config does, and adds it to the names.
func (r *zoneReader) define(names config.Names, plans map[string]leakybucket.Limit) error {
	if err := r.about(r.zone.Copy().Compile(plans)); err != nil {
		return err
	}
	return names.Add(r.zone.Name, config.Definition{Kind: "zone", Text: r.zone.Definition(), Place: r.place})
}

// optionNamed returns the option of a name, which must be one of [ZoneOptions].
func optionNamed(name string) *ZoneOption {
	return &ZoneOptions[slices.IndexFunc(ZoneOptions, func(o ZoneOption) bool { return o.Name == name })]
}
