package recommend

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Result is what a study found. Its JSON is one zone of `caddy throttle recommend
// --json`.
type Result struct {
	Zone  string  `json:"zone,omitempty"` // empty without --config
	Key   string  `json:"key"`            // the sources of the key
	Spare float64 `json:"spare_percent"`  // of the people

	From       time.Time `json:"from"`
	To         time.Time `json:"to"`
	Requests   int       `json:"requests"` // that were charged
	Assets     int       `json:"assets"`   // requests for static assets, which were not
	Keys       int       `json:"keys"`
	PeopleKeys int       `json:"people_keys"` // of clients that look like people

	Units *Curve `json:"limit"`

	// HoldOut is nil if the limit is withheld for another reason.
	HoldOut *HoldOut `json:"hold_out,omitempty"`

	Withheld []string `json:"withheld"` // why no limit is recommended; then there is no Caddyfile
	Notes    []string `json:"notes"`    // what the figures leave out

	Refused   []Key    `json:"most_refused"`     // by the recommended limit, those most often refused
	Crawlers  []string `json:"refused_crawlers"` // that refused clients say they are, as verified_crawler names them
	Caddyfile string   `json:"caddyfile"`        // empty if the limit is withheld

	noun       string // for a key
	needless   bool   // the log has nothing to hold back
	cost       string // of each request, as given
	settle     string // as given
	checked    bool   // the last limit is one to check
	quiet      int    // keys that look like no people and are not refused
	quietLoad  float64
	busiest    int     // key
	mostPeople int     // user agents of one client that looks like people
	usualNeed  float64 // the capacity that half of the people need
}

// A HoldOut is the limit that the first 70% of the log's time gives, and what it would have
// refused in the rest.
type HoldOut struct {
	Limit
	People int     `json:"refused_people"`
	Load   float64 `json:"refused_load_share"` // of the load of the rest, from 0 to 1
	Reason string  `json:"reason"`             // the same in words
}

// A Key is one that is refused often, and the client that sent the first of its requests.
type Key struct {
	Key     string  `json:"key"`
	Charged int     `json:"charged"`    // requests
	Refused int     `json:"refused"`    // of these, by the recommended limit
	Load    float64 `json:"load_share"` // of the whole load, from 0 to 1
	clients.Sender
}

const (
	shownKeys = 10

	// forgives is how long a client may have to wait for its whole burst again with a
	// limit that is recommended, in seconds.
	forgives = 600

	// nearlyAll is how much of what the best limit removes a gentler one must remove.
	nearlyAll = 0.95

	// leastBurst is the least burst of a limit for pages that is recommended.
	leastBurst = 20

	// Nothing is recommended where a limit would remove less than leastRemoved of the load,
	// or one key sends more than mostOfOne, or so many requests have no address; nor from a
	// log of fewer than leastRequests or less than leastSpan.
	leastRemoved  = 0.03
	mostOfOne     = 0.5
	leastRequests = 1000
	leastSpan     = 24 * time.Hour

	// Quiet robots are called a swarm from so many and so much of the load on.
	swarmKeys  = 1000
	swarmShare = 0.05
)

// Result computes what to recommend. Assets is how many requests were left out because
// they were for static assets.
func (s *Study) Result(assets int) *Result {
	s.weigh()
	r := &Result{
		Key: s.options.Key, cost: s.options.Cost, settle: s.options.Settle, checked: s.options.Check.Leak != "", Spare: s.options.Spare,
		From: s.from, To: s.to, Requests: s.requests, Assets: assets, Keys: len(s.keys),
		Withheld: []string{}, Notes: []string{}, Refused: []Key{}, Crawlers: []string{}, noun: "key",
	}
	if s.zone.Key != nil && s.zone.Key.IsAddress() || r.Key == "client_ip" {
		r.noun = "client"
	}
	floor := max(1, math.Ceil(s.zone.MostCost))
	if r.Key == "" {
		r.Zone = s.zone.Name
	} else {
		floor = max(floor, leastBurst)
	}
	r.Units = s.curve(floor)
	refused := make(map[int]int)
	r.Units.best.judge(r.Units.Best().Capacity, func(id int, _ *charge) { refused[id]++ })
	s.look(r, refused)
	verb := "To check"
	if !r.checked {
		verb = "Recommended"
		s.withhold(r)
		s.holdOut(r, floor)
	}
	r.Units.Reason = r.reason(verb)
	s.notes(r)
	if len(r.Withheld) == 0 {
		r.Caddyfile = r.lines()
	}
	return r
}

// look looks at the clients of all keys.
func (s *Study) look(r *Result, refused map[int]int) {
	var needs []float64
	for id := range s.keys {
		c, k := s.clients.Of(s.keys[id].sender), &s.keys[id]
		if k.load > s.keys[r.busiest].load {
			r.busiest = id
		}
		switch {
		case c.Person():
			r.PeopleKeys++
			r.mostPeople, needs = max(r.mostPeople, c.Agents()), append(needs, r.Units.best.needs[id])
		case c.Addr.IsValid() && refused[id] == 0:
			r.quiet, r.quietLoad = r.quiet+1, r.quietLoad+k.load
		}
		if refused[id] == 0 {
			continue
		}
		for _, name := range c.Claims() {
			if !slices.Contains(r.Crawlers, name) {
				r.Crawlers = append(r.Crawlers, name)
			}
		}
		r.Refused = append(r.Refused, Key{k.name, k.requests, refused[id], k.load / cmp.Or(r.Units.Load, 1), c.Sender()})
	}
	slices.Sort(r.Crawlers)
	slices.SortFunc(r.Refused, func(a, b Key) int { return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Key, b.Key)) })
	r.Refused = r.Refused[:min(len(r.Refused), shownKeys)]
	r.quietLoad /= cmp.Or(r.Units.Load, 1)
	if slices.Sort(needs); len(needs) > 0 {
		r.usualNeed = needs[len(needs)/2]
	}
}

// withhold says why the log is no ground for a limit.
func (s *Study) withhold(r *Result) {
	why := func(format string, args ...any) { r.Withheld = append(r.Withheld, fmt.Sprintf(format, args...)) }
	if r.Requests < leastRequests {
		why("Only %s charged. Read a longer log.", were(r.Requests))
	}
	if span := r.To.Sub(r.From); span < leastSpan {
		why("The log covers only %s. A week or more has the busiest days in it.", spanText(span.Seconds()))
	}
	switch busiest := &s.keys[r.busiest]; {
	case 2*s.nobody > r.Requests:
		why("%s of the requests have no address of a client. Log it: Caddy's JSON has client_ip, unless a filter removes it.", shareText(float64(s.nobody)/float64(r.Requests)))
	case busiest.load > mostOfOne*r.Units.Load:
		remedy := "If that is your proxy or CDN, name it in trusted_proxies and log the addresses of clients. If it is a robot, ban it."
		if is := s.clients.Of(busiest.sender).Sender().Probe; is != "" {
			remedy = fmt.Sprintf("It seems to be %s. If it is yours, let it pass, by exempt client_ip in the global options.", is)
		}
		if addr, err := netip.ParseAddr(busiest.name); err == nil && addr.Is4() { // nothing else may be pasted into a shell
			remedy += fmt.Sprintf(" To judge the rest: grep -vwF '%s' LOG | caddy throttle recommend -", addr)
		}
		why("%s sent %s of the load. %s", printable(busiest.name), shareText(busiest.load/r.Units.Load), remedy)
	}
	if r.PeopleKeys == 0 {
		why("No client looks like a person, who loads static assets with pages. Read a log that has the assets.")
	}
	if best := r.Units.Best(); best.RefusedLoad < leastRemoved {
		r.needless = len(r.Withheld) == 0
		why("No limit above that gives a burst back within ten minutes removes more than %s of the load, so there is nothing to hold back in this log.", shareText(leastRemoved))
	}
}

const (
	heldOut = 0.3 // of the log's time

	// mostApart is by how much the limits of two parts of a log may differ, as a factor.
	mostApart = 2.001 // a step of the ladder is 2
)

// holdOut chooses a limit by the first part of the log, and judges it by the rest. If it is
// far from that of the whole log, there is no limit to recommend.
func (s *Study) holdOut(r *Result, floor float64) {
	if len(r.Withheld) > 0 {
		return
	}
	first := *s
	first.until = leakybucket.Instant(r.To.UnixMicro() - int64(heldOut*float64(r.To.Sub(r.From).Microseconds())))
	c := first.curve(floor)
	best, all := c.Best(), r.Units.Best()
	h := &HoldOut{Limit: best.Limit}
	r.HoldOut = h
	if best.RefusedLoad < leastRemoved {
		h.Reason = "The first 70% of the log has nothing to hold back, so nothing shows how the limit would do in another week."
		return
	}
	people := make(map[int]bool)
	s.rungs(best.Leak)[0].judge(best.Capacity, func(id int, refused *charge) {
		if refused.at < first.until {
			return
		}
		h.Load += s.load(refused)
		if s.person(id) {
			people[id] = true
		}
	})
	h.People = len(people)
	h.Load /= max(r.Units.Load-c.Load, 1e-9)
	who := "nobody who looks like a person"
	if h.People > 0 {
		who = Counted(h.People, r.noun+" of a person", r.noun+"s of people")
	}
	h.Reason = fmt.Sprintf("The first 70%% of the log alone gives limit %s, which would have refused %s and %s of the load in the rest.", h.Text(), who, shareText(h.Load))
	apart := func(a, b float64) bool { return max(a/b, b/a) > mostApart }
	if apart(best.Capacity, all.Capacity) || apart(rate(best.Leak), rate(all.Leak)) {
		r.Withheld = append(r.Withheld, fmt.Sprintf("The first 70%% of the log gives limit %s, and all of it limit %s, so another week may give a third one. Read a longer log.", best.Text(), all.Text()))
	}
}

// notes says what the figures leave out.
func (s *Study) notes(r *Result) {
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	if n := float64(r.PeopleKeys); n > 0 && n*(1-r.Spare/100) < 1 {
		note("%v%% of %s people is all of them, so the busiest one sets the limit. Read a longer log, or give a lower --spare.", r.Spare, comma(r.PeopleKeys))
	}
	if len(r.Crawlers) > 0 {
		note("Clients that the limit refuses say that they are %s. If you want these, let them pass: exempt verified_crawler %s.", strings.Join(r.Crawlers, ", "), strings.Join(r.Crawlers, " "))
	}
	if r.PeopleKeys > 0 && r.quiet >= swarmKeys && r.quietLoad >= swarmShare {
		note("%s that look like no people stay below the limit, and sent %s of the load: a swarm. No limit per client sees it. Hold the queue in Caddy, with in_flight and share.", Counted(r.quiet, r.noun), shareText(r.quietLoad))
	}
	if s.limited*50 > r.Requests {
		note("%s of the requests were answered with 429 or 503 already. Clients would have sent something else without that.", shareText(float64(s.limited)/float64(r.Requests)))
	}
}
