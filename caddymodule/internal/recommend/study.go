// Package recommend finds limits for a site in its access logs. Begin with [Study].
package recommend

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/survey"
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

	// Names are those of networks.
	Names Names

	// Key says of what the keys are made, in the words of a Caddyfile.
	Key string

	// Cost is that of each request, in the words of a Caddyfile. If empty, it is 1.
	Cost string

	// Check is a limit to judge instead of one to recommend, in the words of a Caddyfile.
	Check string
}

// checked returns the capacity and the leak to check, or 0.
func (o *Options) checked() (capacity float64, leak string) {
	text, leak, _ := strings.Cut(o.Check, " ")
	capacity, _ = strconv.ParseFloat(text, 64) // which has been checked
	return capacity, leak
}

// A Study collects the requests of one zone. It must be closed.
type Study struct {
	options Options
	zone    string
	ladder  []string // of leaks; the last is the one to check, if there is one

	units *survey.Survey // in the zone's own costs
	times *survey.Survey // in seconds of work; nil until a request has a duration
	keys  []netip.Addr   // the clients of their first requests
	busy  []busy         // by key; as long as keys, once there are times
	all   busy           // of all keys together

	clients *Clients
	limited int           // requests that were answered with 429 or 503
	nobody  int           // requests without an address
	timed   int           // requests with a duration
	took    time.Duration // all durations
	last    time.Duration // one
	rising  int           // how many were longer than the one before
	n       int
	from    time.Time
	to      time.Time
}

// A busy key has requests that are being served. The zero value has none.
type busy struct {
	ends []int64 // when they end, in microseconds
	most int32
}

// NewStudy returns a study of a zone. An empty name means that there is none yet.
// Several studies of the same log may share their clients.
func NewStudy(zone string, clients *Clients, o Options) *Study {
	s := &Study{options: o, zone: zone, clients: clients, ladder: ladder}
	if _, leak := o.checked(); leak != "" {
		s.ladder = append(slices.Clone(ladder), leak)
	}
	s.units = survey.New(leaksOf(s.ladder))
	return s
}

// Close removes temporary files.
func (s *Study) Close() error {
	err := s.units.Close()
	if s.times != nil {
		err = cmp.Or(err, s.times.Close())
	}
	return err
}

// noun returns the word for a key.
func (s *Study) noun() string {
	if s.options.Key == "client_ip" {
		return "client"
	}
	return "key"
}

// Add charges a request to a key. The clients must have been told of it before.
func (s *Study) Add(r *accesslog.Request, key string, cost float64) error {
	if s.n == 0 {
		s.from = r.At
	}
	s.n++
	s.to = r.At
	if r.Status == 429 || r.Status == 503 {
		s.limited++
	}
	if !r.Client.IsValid() {
		s.nobody++
	}
	at := leakybucket.Instant(r.At.UnixMicro())
	id, err := s.units.Add(key, at, cost)
	if err != nil {
		return err
	}
	if id == len(s.keys) {
		s.keys = append(s.keys, Person(r.Client))
	}
	if r.Duration < 0 {
		return nil
	}
	if r.Duration > s.last {
		s.rising++
	}
	s.took, s.last = s.took+r.Duration, r.Duration
	s.timed++
	if s.times == nil {
		s.times = survey.New(leaksOf(ladder))
	}
	if _, err := s.times.Add(key, at, r.Duration.Seconds()); err != nil {
		return err
	}
	s.serve(id, r)
	return nil
}

// durationsMeant reports whether the durations can be times. In some formats another number
// stands in their place: a count of bytes, of requests, or nothing but zeros.
func (s *Study) durationsMeant() bool {
	const enough = 100
	return s.timed < enough || s.took/time.Duration(s.timed) >= time.Millisecond && s.rising < s.timed*99/100
}

// serve notes that a request of the key is served for its duration.
func (s *Study) serve(id int, r *accesslog.Request) {
	for len(s.busy) <= id {
		s.busy = append(s.busy, busy{})
	}
	for _, b := range []*busy{&s.busy[id], &s.all} {
		b.serve(r.At.UnixMicro(), r.Duration.Microseconds())
	}
}

func (b *busy) serve(now, duration int64) {
	b.ends = slices.DeleteFunc(b.ends, func(end int64) bool { return end <= now })
	b.ends = append(b.ends, now+duration)
	b.most = max(b.most, int32(len(b.ends)))
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
type Clients struct {
	all   map[netip.Addr]*client
	texts map[string]string // user agents and routes, each kept once
}

type client struct {
	requests, assets uint32
	hours            uint32 // of the day, in UTC, in which it sent any: a bit each
	first, last      int64  // Unix seconds
	agents           accesslog.Agents
	agent            string // of its first request
	folder           string // the first of the path that it asked for most, if that is most of them
	ahead            int32  // of the others, by how many requests
}

// NewClients returns an empty table.
func NewClients() *Clients {
	return &Clients{all: make(map[netip.Addr]*client), texts: make(map[string]string)}
}

// Add notes a request.
func (c *Clients) Add(r *accesslog.Request) {
	addr := Person(r.Client)
	known := c.all[addr]
	if known == nil {
		known = &client{first: r.At.Unix(), agent: c.keep(r.UserAgent())}
		c.all[addr] = known
	}
	known.requests++
	known.hours |= 1 << r.At.UTC().Hour()
	known.last = r.At.Unix()
	if r.Asset() {
		known.assets++
	} else {
		c.vote(known, folderOf(r.Route()))
	}
	known.agents.Add(r)
}

const (
	mostTexts  = 100_000
	mostLetter = 80 // of a text, in bytes
)

// keep returns a copy of a text, which clients with the same text share.
func (c *Clients) keep(text string) string {
	text = text[:min(len(text), mostLetter)]
	kept, known := c.texts[text]
	if !known && len(c.texts) < mostTexts {
		kept = strings.Clone(text)
		c.texts[kept] = kept
	}
	return kept
}

// folderOf returns a path up to the end of its first folder.
func folderOf(path string) string {
	if n := strings.IndexByte(strings.TrimPrefix(path, "/"), '/'); n >= 0 {
		path = path[:n+2] + "*"
	}
	return path[:min(len(path), mostLetter)]
}

// vote finds the folder of most of a client's requests, if there is one (Boyer and Moore
// 1981, "MJRTY").
func (c *Clients) vote(of *client, folder string) {
	switch {
	case of.ahead == 0:
		of.folder, of.ahead = c.keep(folder), 1
	case of.folder == folder:
		of.ahead++
	default:
		of.ahead--
	}
}

// asks returns the folder that most of its requests are for, or "".
func (c *client) asks() string {
	if int64(c.ahead)*4 < int64(c.requests-c.assets) {
		return ""
	}
	return c.folder
}

// daily reports whether the requests of a client follow a day, as those of people do.
func (c *client) daily() bool {
	return c.last-c.first >= 24*3600 && bits.OnesCount32(c.hours) <= 18
}

// person reports whether the client looks like a person, or like many.
func (c *Clients) person(addr netip.Addr) bool { return c.looks(addr) != accesslog.Robot }

// looks judges a client.
func (c *Clients) looks(addr netip.Addr) accesslog.Looks {
	known := c.all[addr]
	if known == nil || !addr.IsValid() { // those without an address are many, and unknown
		return accesslog.Robot
	}
	return accesslog.LooksLike(int64(known.requests), int64(known.assets), &known.agents)
}
