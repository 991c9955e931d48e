package caddyfile

import (
	"fmt"
	"maps"
	"slices"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
)

const wantInFlight = "want in_flight <name> <slots> [<key>...], such as in_flight php 5"

// An inFlightReader reads an in_flight.
type inFlightReader struct {
	reader
	config.InFlight
}

// ParseInFlight reads a directive with its matcher: both addresses of a request count for that.
// Syntax:
//
//	in_flight [<matcher>] <name>
//	in_flight [<matcher>] <name> <slots> [<key>...] {
//	    exempt <request matchers>|static_files [<root>]
//	    wait <duration>
//	    queue <n>
//	    buffer <size>|off
//	    share [<source>...]
//	    rank member issued <cookie-glob>...
//	    rank member told <Response-Header> <cookie-glob>
//	    rank member|crawler <request matchers>
//	    pass off
//	    refusal { ... }
//	    shadow
//	}
func ParseInFlight(h httpcaddyfile.Helper) (*config.InFlightHandler, error) {
	match, err := outerMatchers(h)
	if err != nil {
		return nil, err
	}
	r, err := parseInFlight(h)
	if err != nil {
		return nil, err
	}
	app, defined := definedIn(h)
	if r.Reference() {
		err = r.about(defined.CheckMeant("in_flight", r.Name))
	} else {
		err = r.define(defined, app.Buffer)
	}
	return &config.InFlightHandler{InFlight: r.InFlight, Match: match}, err
}

// parseInFlight reads what follows in_flight, in a site or in the global options.
func parseInFlight(h httpcaddyfile.Helper) (*inFlightReader, error) {
	r := &inFlightReader{reader: newReader(h)}
	words := h.RemainingArgs()
	if len(words) == 0 {
		return nil, fmt.Errorf("in_flight has no name: %s, %s", wantInFlight, r.place)
	}
	r.Name = words[0]
	if err := option.CheckName("in_flight", r.Name); err != nil {
		return nil, r.about(err)
	}
	if len(words) == 1 {
		if h.NextBlock(h.Nesting()) {
			return nil, h.Errf("in_flight %s and a block exclude each other: want the slots after the name, as in in_flight %[1]s 5", r.Name)
		}
		return r, nil
	}
	err := option.Set(&r.Slots, words[1])
	if err != nil {
		return nil, r.about(fmt.Errorf("parsing slots: %w; %s", err, wantInFlight))
	}
	if r.Key, err = parseSources(words[2:]); err != nil {
		return nil, r.about(fmt.Errorf("parsing key: %w", err))
	}
	return r, option.Read(h.Dispenser, fmt.Sprintf("in_flight %q", r.Name), option.Fields{
		"exempt": option.Repeated(func() error { return r.parseExempt(&r.Exempt, &r.ExemptStaticFiles) }),
		"wait":   &r.Wait, "queue": &r.Queue, "buffer": &r.Buffer, "pass": &r.Pass, "shadow": &r.Shadow,
		"share":   r.parseShare,
		"rank":    option.Repeated(func() error { return parseRank(r.Helper, &r.InFlight) }),
		"refusal": r.parseRefusal,
	}, r.places)
}

func (r *inFlightReader) parseShare() (err error) {
	words := r.RemainingArgs()
	if len(words) == 0 {
		words = []string{"client_ip"}
	}
	if r.Share, err = parseSources(words); err != nil {
		err = r.Errf("parsing share: %w", err)
	}
	return err
}

// parseRefusal reads a refusal as a zone's.
func (r *inFlightReader) parseRefusal() error {
	zone := newZoneReader(r.Helper)
	err := zone.parse(optionNamed("refusal"))
	r.Refusal = zone.zone.Refusal
	maps.Copy(r.places, zone.places)
	return err
}

// define compiles it, in a config with this buffer, and adds it to the names.
func (r *inFlightReader) define(names config.Names, buffer *config.Buffer) error {
	if _, err := r.Compile(buffer); err != nil {
		return r.about(err)
	}
	return names.Add(r.Name, config.Definition{Kind: "in_flight", Text: r.Definition(), Place: r.place})
}

// inherit applies the refusal beside the definitions in the global options, but for what only
// zones have.
func (r *inFlightReader) inherit(defaults *zoneReader) {
	if defaults.zone.Refusal == nil {
		return
	}
	common := *defaults.zone.Refusal
	common.RetryAfter = ""
	r.Refusal = inheritRefusal(common, r.Refusal)
	places := maps.Clone(defaults.places)
	maps.Copy(places, r.places)
	r.places = places
}

// parseBuffer reads the bounds of bodies in the global options.
func parseBuffer(a *config.App, d *caddyfile.Dispenser) error {
	a.Buffer = new(config.Buffer)
	if !d.Args(&a.Buffer.Request) || d.CountRemainingArgs() > 1 {
		return d.Err("wrong number of words after buffer: want buffer <request> [<in all>], such as buffer 64MiB 1GiB")
	}
	d.Args(&a.Buffer.InAll)
	return nil
}

// parseRank reads who goes before others.
func parseRank(h httpcaddyfile.Helper, f *config.InFlight) error {
	rank := config.Rank{Rank: nextWord(h.Dispenser)}
	h.NextArg()
	switch nextWord(h.Dispenser) {
	case "issued":
		if rank.Issued = h.RemainingArgs()[1:]; slices.Contains(rank.Issued, "told") {
			return h.Err("rank member issued and rank member told are on one line: want a line for each")
		}
	case "told":
		words := h.RemainingArgs()
		if len(words) != 3 {
			return h.Err("wrong number of words after rank member told: want one response header and the cookie of the session, such as X-Throttle-User _redmine_session")
		}
		rank.Told, rank.Session = words[1], words[2]
	default:
		if err := parseMatchers(h, "rank "+rank.Rank, &rank.Match); err != nil {
			return err
		}
	}
	f.Rank = append(f.Rank, rank)
	return nil
}
