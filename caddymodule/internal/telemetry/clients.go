package telemetry

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	// MarkFor is how long a browser has to load a marked page and to report it.
	MarkFor = 2 * time.Minute

	// PersonFor is how long somebody who was counted is not counted again.
	PersonFor = time.Hour

	// mostPeople bounds the marks, and the people counted, that are kept at once. While
	// there are more, the figure is too low.
	mostPeople = 50_000
)

// Seen counts the person who reports to have seen a mark of the zone, if that is true and
// news.
func (t *Zone) Seen(r *http.Request) {
	if t.people != nil && people.report(t.rule.Name, personOf(r), time.Now()) {
		t.people.Inc()
	}
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

// ForgetPeople forgets them all. Only tests do.
func ForgetPeople() { people = newPeopleTable() }

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
	t.marked.Put(personKey{zone, person}, struct{}{}, now.Add(MarkFor), now)
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
	return t.counted.Put(k, struct{}{}, now.Add(PersonFor), now)
}

// noteSender counts whose request a zone has decided about. It is on the path of every
// request: of many, it counts a sample. Where nothing needs it, now is zero.
func (l *Figures) noteSender(o *decision.Outcome, d decision.Decision, now time.Time) {
	refused, weight := d == decision.Refused || d == decision.ShadowRefused, 0
	if !refused {
		if weight = l.Recent.AdmittedWeight(rand.Uint32); weight == 0 {
			return
		}
	}
	if now.IsZero() {
		now = time.Now()
	}
	if refused {
		weight = l.Recent.RefusedWeight(rand.Uint32, now)
	}
	if weight > 0 {
		l.Recent.Add(refused, o.Key, o.ClientIP(), weight, now)
	}
}
