package caddyfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
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
	return &config.InFlightHandler{InFlight: r.InFlight, Match: match}, r.checkIn(h)
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
	if len(words) > 1 {
		if err := tokens.Set(&r.Slots, words[1]); err != nil {
			return nil, r.about(fmt.Errorf("parsing slots: %w; %s", err, wantInFlight))
		}
		key, err := parseSources(words[2:])
		if err != nil {
			return nil, r.about(fmt.Errorf("parsing key: %w", err))
		}
		r.Key = key
	}
	if len(words) == 1 {
		if h.NextBlock(h.Nesting()) {
			return nil, h.Errf("in_flight %s and a block exclude each other: want the slots after the name, as in in_flight %[1]s 5", r.Name)
		}
		return r, nil
	}
	return r, tokens.Options(h.Dispenser, fmt.Sprintf("in_flight %q", r.Name), tokens.Fields{
		"exempt": tokens.Repeated(func() error { return r.parseExempt(&r.Exempt, &r.ExemptStaticFiles) }),
		"wait":   &r.Wait, "queue": &r.Queue, "buffer": &r.Buffer, "pass": &r.Pass, "shadow": &r.Shadow,
		"share":   r.parseShare,
		"rank":    tokens.Repeated(func() error { return parseRank(r.Helper, &r.InFlight) }),
		"refusal": r.parseRefusal,
	}, nil, r.places)
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
	err := zone.parse(Named("refusal"))
	r.Refusal = zone.zone.Refusal
	maps.Copy(r.places, zone.places)
	return err
}

// checkIn compiles an in_flight of a site, so that the adapter reports its errors with a line.
func (r *inFlightReader) checkIn(h httpcaddyfile.Helper) error {
	app := globalApp(h)
	defined := definedIn(h, app)
	full := &r.InFlight
	if !full.Reference() {
		if err := r.check(app.Buffer); err != nil {
			return err
		}
	} else if i := slices.IndexFunc(app.InFlight, func(f *config.InFlight) bool { return f.Name == r.Name }); i >= 0 {
		full = app.InFlight[i]
	} else {
		var known []string
		for _, f := range app.InFlight {
			known = append(known, f.Name)
		}
		return fmt.Errorf("%w, %s", config.ErrUnknown("in_flight", r.Name, known), r.place)
	}
	return defined.add(r.Name, definition{"in_flight", full.Definition(), r.place})
}

// check compiles it, in a config with this buffer.
func (r *inFlightReader) check(buffer *config.Buffer) error {
	rule, err := r.Compile()
	if err == nil {
		_, inAll, _ := buffer.Bytes() // which has been checked
		err = option.About("buffer", 0, config.CheckBuffer(rule.Buffer, inAll))
	}
	return r.about(err)
}

// addInFlight checks the definitions in the global options, and adds them to the app.
func addInFlight(app *config.App, limits []*inFlightReader, zones []*zoneReader, defaults *zoneReader) error {
	names := make(givenNames)
	for _, z := range zones {
		names[z.zone.Name] = z.place
	}
	for _, r := range limits {
		r.inherit(defaults)
		if err := cmp.Or(names.add("the global options", r.Name, r.place), r.check(app.Buffer)); err != nil {
			return err
		}
		app.InFlight = append(app.InFlight, &r.InFlight)
	}
	return nil
}

// inherit applies the refusal beside the definitions in the global options, but for what only
// zones have.
func (r *inFlightReader) inherit(defaults *zoneReader) {
	if defaults.zone.Refusal == nil {
		return
	}
	common := *defaults.zone.Refusal
	common.RetryAfter = ""
	if common.Empty() {
		return
	}
	r.Refusal = inheritRefusal(common, r.Refusal)
	for name, places := range defaults.places {
		if len(r.places[name]) == 0 {
			r.places[name] = places
		}
	}
}

// parseBuffer reads the bounds of bodies in the global options.
func parseBuffer(a *config.App, d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) == 0 || len(words) > 2 {
		return d.Err("wrong number of words after buffer: want buffer <request> [<in all>], such as buffer 64MiB 1GiB")
	}
	a.Buffer = &config.Buffer{Request: words[0]}
	if len(words) == 2 {
		a.Buffer.InAll = words[1]
	}
	_, _, err := a.Buffer.Bytes()
	return tokens.Wrap(d, err)
}

const rankSyntax = "member issued <cookie-glob>...|member told <Response-Header> <cookie-glob>|member|crawler <request matchers>"

// parseRank reads who goes before others.
func parseRank(h httpcaddyfile.Helper, f *config.InFlight) error {
	rank := config.Rank{Rank: nextWord(h.Dispenser)}
	if rank.Rank != config.RankMember && rank.Rank != config.RankCrawler {
		return h.Errf("unknown rank %q: want rank %s", rank.Rank, rankSyntax)
	}
	h.NextArg()
	switch nextWord(h.Dispenser) {
	case "issued":
		if rank.Issued = h.RemainingArgs()[1:]; slices.Contains(rank.Issued, "told") {
			return h.Err("rank member issued and rank member told stand on one line: want a line for each")
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
