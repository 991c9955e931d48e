// Package recommend finds limits for a site in its access logs. Begin with [Study].
package recommend

import (
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/survey"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// ladder are the leaks that are tried, as they are written in a Caddyfile.
var ladder = []string{"15/h", "30/h", "1/m", "2/m", "4/m", "8/m", "15/m", "30/m", "1/s", "2/s", "4/s", "8/s", "15/s"}

// leaksOf returns the leaks of a ladder, in units a second.
func leaksOf(ladder []string) []float64 {
	all := make([]float64, len(ladder))
	for i, text := range ladder {
		all[i], _ = leakybucket.ParseRate(text) // which has been checked
	}
	return all
}

// Options say what to look for.
type Options struct {
	// Spare is the percentage of the people that the limits must leave untouched.
	Spare float64

	// Key says of what the keys are made, in the words of a Caddyfile. It is empty for a
	// zone of a config.
	Key string

	// Cost is that of each request, in the words of a Caddyfile. If empty, it is 1.
	Cost string

	// Check is a limit to judge instead of one to recommend, if it has a leak.
	Check Limit
}

// A Limit is a leak, as it is written in a Caddyfile, and a capacity.
type Limit struct {
	Leak     string  `json:"leak"`
	Capacity float64 `json:"capacity"`
}

// Text returns the limit as a Caddyfile takes it.
func (l Limit) Text() string { return numberText(l.Capacity) + " " + l.Leak }

// A Study collects the requests of one zone.
type Study struct {
	options Options
	zone    string
	ladder  []string // of leaks; the last is the one to check, if there is one

	units *survey.Survey // in the zone's own costs
	times *survey.Survey // in seconds of work; nil if no request has a duration

	senders []netip.Addr // of the first requests of the keys
	keys    []*client    // these; none until all requests are added

	clients *Clients
	limited int           // requests that were answered with 429 or 503
	nobody  int           // requests without an address
	timed   int           // requests with a duration
	took    time.Duration // all durations
	last    time.Duration // one
	rising  int           // how many were longer than the one before
	from    time.Time
	to      time.Time
}

// NewStudy returns a study of a zone. An empty name means that there is none yet.
// Several studies of the same log may share their clients.
func NewStudy(zone string, clients *Clients, o Options) *Study {
	s := &Study{options: o, zone: zone, clients: clients, ladder: ladder}
	if o.Check.Leak != "" {
		s.ladder = append(slices.Clone(ladder), o.Check.Leak)
	}
	s.units = survey.New(leaksOf(s.ladder))
	return s
}

// Add charges a request to a key. The clients must be told of it, too.
func (s *Study) Add(r *accesslog.Request, key string, cost float64) {
	if s.from.IsZero() || r.At.Before(s.from) {
		s.from = r.At
	}
	if r.At.After(s.to) {
		s.to = r.At
	}
	if r.Status == 429 || r.Status == 503 {
		s.limited++
	}
	if !r.Client.IsValid() {
		s.nobody++
	}
	if r.Duration >= 0 {
		if r.Duration > s.last {
			s.rising++
		}
		s.took, s.last = s.took+r.Duration, r.Duration
		s.timed++
	}
	id := s.units.Add(key, leakybucket.Instant(r.At.UnixMicro()), cost, r.Duration)
	if id == len(s.senders) {
		s.senders = append(s.senders, Person(r.Client))
	}
}

// end ends the adding of requests.
func (s *Study) end() {
	for _, sender := range s.senders {
		s.keys = append(s.keys, s.clients.of[sender])
	}
	s.senders = nil
	s.units.Weights = s.weights()
	if s.timed > 0 {
		s.times = s.units.Seconds(leaksOf(ladder))
	}
}

// durationsMeant reports whether the durations can be times. In some formats another number
// stands in their place: a count of bytes, of requests, or nothing but zeros.
func (s *Study) durationsMeant() bool {
	const enough = 100
	return s.timed < enough || s.took/time.Duration(s.timed) >= time.Millisecond && s.rising < s.timed*99/100
}

// Person returns the address that counts as one client.
func Person(addr netip.Addr) netip.Addr {
	if !addr.IsValid() {
		return addr
	}
	return bucketkey.ClientPrefix(addr, 32, 64).Addr()
}

// Clients knows who sent the requests of a log, so that people can be told from
// robots: browsers load static assets, too.
type Clients struct{ of map[netip.Addr]*client }

type client struct {
	addr             netip.Addr
	agents           accesslog.Agents
	agent            unique.Handle[string] // of its first request
	folder           unique.Handle[string] // the first of the path that it asked for most, if that is most of them
	requests, assets uint32
	hours            uint32 // of the day, in UTC, in which it sent any: a bit each
	ahead            int32  // of the other folders, by how many requests
	first, last      uint32 // Unix seconds
	crawlers         uint32 // that it says it is: a bit for each name of crawlers
}

// NewClients returns an empty table.
func NewClients() *Clients { return &Clients{make(map[netip.Addr]*client)} }

// Add notes a request.
func (c *Clients) Add(r *accesslog.Request) {
	addr, at := Person(r.Client), uint32(r.At.Unix())
	of := c.of[addr]
	if of == nil {
		of = &client{addr: addr}
		c.of[addr] = of
	}
	if of.requests == 0 || at < of.first {
		of.first, of.agent = at, kept(r.UserAgent())
	}
	of.requests++
	of.hours |= 1 << r.At.UTC().Hour()
	of.last = max(of.last, at)
	if r.Asset() {
		of.assets++
	} else {
		of.vote(kept(folderOf(r.Route())))
	}
	if of.agents.Add(r) {
		of.crawlers |= claimed(r.UserAgent())
	}
}

// crawlers are those that the matcher verified_crawler knows by name: none if it is not built
// in, because then nobody can let them pass.
var crawlers = sync.OnceValue(func() (known struct {
	names  []string // in order
	agents [][]string
},
) {
	info, err := caddy.GetModule("http.matchers.verified_crawler")
	if err != nil {
		return known
	}
	agents := info.New().(interface{ KnownAgents() map[string][]string }).KnownAgents()
	for _, name := range slices.Sorted(maps.Keys(agents)) {
		known.names, known.agents = append(known.names, name), append(known.agents, agents[name])
	}
	return known
})

// claimed returns the bits of the crawlers that a user agent names.
func claimed(agent string) (bits uint32) {
	agent = strings.ToLower(agent)
	for i, words := range crawlers().agents {
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(agent, word) }) {
			bits |= 1 << i
		}
	}
	return bits
}

// namesOf returns the names of crawlers, in order.
func namesOf(bits uint32) []string {
	names := []string{}
	for i, name := range crawlers().names {
		if bits&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// mostLetter is how much of a text is kept, in bytes.
const mostLetter = 80

// kept returns the beginning of a text, of which there is one copy.
func kept(text string) unique.Handle[string] { return unique.Make(text[:min(len(text), mostLetter)]) }

// folderOf returns a path up to the end of its first folder.
func folderOf(path string) string {
	if n := strings.IndexByte(strings.TrimPrefix(path, "/"), '/'); n >= 0 {
		path = path[:n+2] + "*"
	}
	return path
}

// vote finds the folder of most of a client's requests, if there is one (Boyer and Moore
// 1981, "MJRTY").
func (c *client) vote(folder unique.Handle[string]) {
	switch {
	case c.ahead == 0:
		c.folder, c.ahead = folder, 1
	case c.folder == folder:
		c.ahead++
	default:
		c.ahead--
	}
}

// asks returns the folder that most of a client's requests are for, or "".
func (c *client) asks() string {
	if c.ahead == 0 || int64(c.ahead)*4 < int64(c.requests-c.assets) {
		return ""
	}
	return c.folder.Value()
}

// daily reports whether the requests of a client follow a day, as those of people do.
func (c *client) daily() bool {
	return c.last-c.first >= 24*3600 && bits.OnesCount32(c.hours) <= 18
}

// person reports whether the key is one of a client that looks like a person, or like many.
func (s *Study) person(id int) bool { return s.keys[id].looks() != accesslog.Robot }

// looks judges a client. Those without an address are many, and unknown.
func (c *client) looks() accesslog.Looks {
	if !c.addr.IsValid() {
		return accesslog.Robot
	}
	return accesslog.LooksLike(int(c.requests), int(c.assets), &c.agents)
}
