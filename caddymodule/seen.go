package caddymodule

import (
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

func init() {
	caddy.RegisterModule(Seen{})
	httpcaddyfile.RegisterDirective("throttle_seen", parseSeen)
	// Reports of browsers must not fill the buckets of the people who send them.
	httpcaddyfile.RegisterDirectiveOrder("throttle_seen", httpcaddyfile.After, "request_body") // and so before throttle
}

const (
	// markFor is how long a browser has to load a marked page and to report it.
	markFor = 2 * time.Minute

	// personFor is how long somebody who was counted is not counted again.
	personFor = time.Hour

	// mostPeople bounds the marks, and the people counted, that are kept at once. While
	// there are more, the figure is too low.
	mostPeople = 50_000

	// mostReport is how long a report may be, in bytes, and mostReported how many zones
	// it may name.
	mostReport   = 1024
	mostReported = 16
)

// Seen counts people whom a shadow zone would have refused. Zones with server_timing
// mark such responses for the browser. A script in the page reads the mark and sends
// the names of the zones here, separated by commas, in a POST request. Robots rarely
// run scripts, so the metric `caddy_throttle_refused_people_total` counts people.
//
// A report counts only if the same address was sent a mark of that zone within two
// minutes, and once an hour for each address and zone. So the figure never exceeds
// how many clients the zone would have refused, whatever is sent.
type Seen struct{ app *engine }

// CaddyModule returns the Caddy module information.
func (Seen) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.throttle_seen",
		New: func() caddy.Module { return new(Seen) },
	}
}

// Provision finds the app with the zones.
func (s *Seen) Provision(ctx caddy.Context) error {
	app, err := ctx.App("throttle")
	if err != nil {
		return err
	}
	s.app = app.(*App).engine
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler. It answers every request itself.
func (s *Seen) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return nil
	}
	report, err := io.ReadAll(io.LimitReader(r.Body, mostReport+1))
	if err != nil || len(report) > mostReport {
		w.WriteHeader(http.StatusBadRequest)
		return nil
	}
	names := strings.FieldsFunc(string(report), func(c rune) bool { return c == ',' || c == ' ' || c == '\n' })
	for _, name := range names[:min(len(names), mostReported)] {
		if z := s.app.zones[name]; z != nil && z.people != nil && people.report(name, personOf(r), time.Now()) {
			z.people.Inc()
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// mark tells the browser that a shadow zone would have refused the request.
func mark(header http.Header, o *decision.Outcome) {
	header.Add("Server-Timing", `throttle;desc="`+o.Zone.Name+`"`)
	people.mark(o.Zone.Name, personOf(o.Request), time.Now())
}

// personOf returns the address that counts as one person: IPv6 addresses are masked as
// in keys. It is invalid if the request has no address.
func personOf(r *http.Request) netip.Addr {
	text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr
	}
	return bucketkey.ClientPrefix(addr, 32, 64).Addr()
}

// people are those who were sent a mark or have reported one. There is one table for
// the process, because a page may be marked before a reload and reported after it.
var people = newPeopleTable()

// A peopleTable knows which addresses were sent marks lately, and which were counted.
type peopleTable struct {
	marked, counted *expiring.Map[personKey, struct{}]
}

type personKey struct {
	zone   string
	person netip.Addr
}

func newPeopleTable() *peopleTable {
	return &peopleTable{
		marked:  expiring.New[personKey, struct{}](mostPeople),
		counted: expiring.New[personKey, struct{}](mostPeople),
	}
}

// mark notes that somebody was sent a mark of a zone.
func (t *peopleTable) mark(zone string, person netip.Addr, now time.Time) {
	t.marked.Put(personKey{zone, person}, struct{}{}, now.Add(markFor), now)
}

// report reports whether somebody who says to have seen a mark is to be counted.
func (t *peopleTable) report(zone string, person netip.Addr, now time.Time) bool {
	k := personKey{zone, person}
	if _, marked := t.marked.Take(k, now); !marked {
		return false
	}
	if _, counted := t.counted.Get(k, now); counted {
		return false
	}
	return t.counted.Put(k, struct{}{}, now.Add(personFor), now)
}

// parseSeen sets up the handler from Caddyfile tokens. Syntax:
//
//	throttle_seen <matcher>
//
// The matcher is required, because the handler answers all requests that reach it.
func parseSeen(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	h.Next() // the directive's name
	matcher, given, err := h.MatcherToken()
	if err != nil {
		return nil, err
	}
	if !given || h.NextArg() || h.NextBlock(0) {
		return nil, h.Err("want throttle_seen <matcher> and nothing else, such as throttle_seen /throttle-seen")
	}
	return h.NewRoute(matcher, new(Seen)), nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Seen)(nil)
	_ caddyhttp.MiddlewareHandler = (*Seen)(nil)
	_ httpcaddyfile.UnmarshalFunc = parseSeen
)
