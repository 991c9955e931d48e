package gate

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	cookies "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// This is a site under a swarm, in virtual time: an upstream with five workers, people
// with sessions of some pages, and robots. Each request is a goroutine that asks the
// gate, as a handler does, and holds its slot until the upstream has answered, whether
// or not its client has left. Passes are the real ones, and so are the times after which
// refused clients come back.

// A scenario is the load. Times are in seconds.
type scenario struct {
	inFlight  int     // 5 if zero
	people    float64 // load of the people, in workers; 1.5 if zero
	attack    float64 // load of everybody, in times the workers
	identity  int     // robots are drawn from so many; 0: a new one for each request
	cookies   float64 // share of the identities that keep cookies
	addresses int     // that those identities share; 0: one each
	farmed    bool    // the identities hold passes from the beginning
	onePass   bool    // they all hold the same one
	heeding   bool    // they come back when they were told to, and not before
	keepFirst bool    // they present the first pass that they were given for ever
	ajax      int     // requests that follow each page
	exports   int     // requests of 60 seconds that a member sends every two minutes
	steadily  bool    // it sends them every minute, so that some are always there
	hasty     float64 // robots leave after so long; never if zero
	scraper   float64 // load of a robot that is logged in, in workers
	nat       float64 // share of people behind one address
	known     bool    // some people have come with a pass
	row       int     // places in the queue; 200 if zero
	closed    int     // robots with a fresh address for each request, who ask again as soon as they are answered
}

const (
	workers  = 5
	lasts    = 600. // seconds
	patience = 10.  // of people, for one request
	service  = .25  // mean of a page
	robotic  = .8   // and of one for robots
	maxWait  = 5 * time.Second
	siteHost = "example.com"
)

// seconds returns a time of so many.
func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// A client is a person in a session, or a robot. Its goroutine draws from its own
// numbers, so that a run does not depend on which goroutine runs first.
type client struct {
	*draws
	counts        *counts // of its kind
	address       string
	member, robot bool
	keepsCookies  bool

	mu     sync.Mutex
	cookie string    // its pass
	next   time.Time // when it may come back
}

// draws are random numbers.
type draws struct{ *rand.Rand }

func newDraws(seed, stream uint64) *draws { return &draws{rand.New(rand.NewPCG(seed, stream))} }

// exponential draws from an exponential distribution.
func (d *draws) exponential(mean float64) time.Duration { return seconds(d.ExpFloat64() * mean) }

// logNormal draws from a log-normal distribution.
func (d *draws) logNormal(mean float64) time.Duration {
	const sigma = .8
	return seconds(mean * math.Exp(sigma*d.NormFloat64()-sigma*sigma/2))
}

func (d *draws) chance(p float64) bool { return d.Float64() < p }

// counts are what became of the pages of a kind of clients.
type counts struct {
	wanted, served   int // pages, within 30 s
	ajax, ajaxServed int
}

type site struct {
	scenario
	seed   uint64
	began  time.Time
	gate   *Gate
	issuer *cookies.Issuer
	free   chan struct{} // workers of the upstream, who serve in the order of arrival
	all    sync.WaitGroup

	mu                                       sync.Mutex // of all that follows
	member, newcomer, knownPerson, natPerson counts
	warming, robot                           counts        // not reported
	busy, wasted                             time.Duration // of workers
	refusals                                 int
	inVain                                   time.Duration // that refused requests had waited
	unbounded                                bool          // more keys than two for each request that waits or holds a slot
	inUpstream, mostInUpstream               int           // requests, with those that wait for a worker
}

// A keyring keeps the keys that sign passes.
type keyring struct{ value []byte }

func (k *keyring) Load(context.Context, string) ([]byte, error) {
	if k.value == nil {
		return nil, fs.ErrNotExist
	}
	return k.value, nil
}

func (k *keyring) Store(_ context.Context, _ string, value []byte) error {
	k.value = value
	return nil
}

func (*keyring) Lock(context.Context, string) error   { return nil }
func (*keyring) Unlock(context.Context, string) error { return nil }

// runSite runs a scenario to its end.
func runSite(t *testing.T, s scenario, seed uint64) *site {
	if s.inFlight == 0 {
		s.inFlight = workers
	}
	if s.people == 0 {
		s.people = 1.5
	}
	if s.row == 0 {
		s.row = 200
	}
	site := &site{scenario: s, seed: seed}
	synctest.Test(t, func(t *testing.T) {
		site.began = time.Now()
		keys := signer.New(new(keyring), nil)
		check.OK(t, keys.Maintain(t.Context()))
		site.gate = new(Gate)
		site.issuer = &cookies.Issuer{Name: "php", Keys: keys, Memory: cookies.NewMemory()}
		site.free = make(chan struct{}, workers)
		for range workers {
			site.free <- struct{}{}
		}
		site.startPeople()
		site.startRobots()
		site.all.Wait()
		wantEmpty(t, site.gate)
	})
	return site
}

// count changes what is counted.
func (s *site) count(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *site) now() float64 { return time.Since(s.began).Seconds() }

// every calls do again and again from an instant on, with pauses that it returns.
func (s *site) every(from float64, do func(n int) (pause time.Duration)) {
	s.all.Go(func() {
		time.Sleep(seconds(from))
		for n := 0; s.now() <= lasts; n++ {
			time.Sleep(do(n))
		}
	})
}

// Each kind of client has numbers of its own.
const (
	streamPeople  = 1 << 40
	streamRobots  = 3 << 40
	streamScraper = 4 << 40
	streamExports = 5 << 40
	streamClosed  = 6 << 40
)

func (s *site) startPeople() {
	arrivals := newDraws(s.seed, streamPeople)
	s.every(0, func(n int) time.Duration {
		c := &client{draws: newDraws(s.seed, streamPeople+1+uint64(n)), counts: &s.newcomer, address: "person" + strconv.Itoa(n)}
		draw := c.Float64()
		switch {
		case draw < .25:
			c.member, c.counts = true, &s.member
		case s.known && draw < .45:
			c.counts, c.cookie = &s.knownPerson, s.oldPass()
		}
		s.all.Go(func() { s.session(c) })
		return arrivals.exponential(service * 4 / s.people)
	})
}

func (s *site) startRobots() {
	s.startCrowd()
	if s.exports > 0 {
		c := &client{draws: newDraws(s.seed, streamExports), counts: &s.robot, member: true, address: "exports"}
		s.every(100, func(int) time.Duration {
			for range s.exports {
				s.all.Go(func() { s.askFor(c, true, 60*time.Second) })
				time.Sleep(time.Millisecond) // one after the other
			}
			if s.steadily {
				return time.Minute - time.Duration(s.exports)*time.Millisecond
			}
			return 2*time.Minute - time.Duration(s.exports)*time.Millisecond
		})
	}
	if s.scraper > 0 {
		c := &client{draws: newDraws(s.seed, streamScraper), counts: &s.robot, member: true, robot: true, address: "scraper"}
		s.every(60, func(int) time.Duration {
			takes := c.logNormal(robotic)
			s.all.Go(func() { s.request(context.Background(), c, true, takes) })
			return c.exponential(robotic / s.scraper)
		})
	}
}

// startCrowd lets robots come: new ones, or some out of many again and again.
func (s *site) startCrowd() {
	arrivals := newDraws(s.seed, streamRobots)
	var identities []*client
	shared := ""
	if s.onePass {
		shared = s.oldPass()
	}
	for i := range s.identity {
		address := i
		if s.addresses > 0 {
			address = i % s.addresses
		}
		c := &client{draws: newDraws(s.seed, streamRobots+1+uint64(i)), counts: &s.robot, robot: true, address: "robot" + strconv.Itoa(address), cookie: shared}
		c.keepsCookies = arrivals.chance(s.cookies)
		if c.keepsCookies && s.farmed {
			c.cookie = s.oldPass()
		}
		identities = append(identities, c)
	}
	for i := range s.closed {
		d := newDraws(s.seed, streamClosed+uint64(i))
		s.every(60, func(n int) time.Duration {
			c := &client{counts: &s.robot, robot: true, address: fmt.Sprint("fresh", i, "/", n)}
			if served, _ := s.request(context.Background(), c, true, d.logNormal(service/2)); !served {
				return 100 * time.Millisecond
			}
			return time.Millisecond
		})
	}
	load := workers*s.attack - s.people
	if load <= 0 {
		return
	}
	s.every(60, func(n int) time.Duration {
		var c *client
		if identities != nil {
			c = identities[arrivals.IntN(len(identities))]
			if s.heeding && c.waits() {
				return arrivals.exponential(robotic / load)
			}
		} else {
			c = &client{counts: &s.robot, robot: true, address: "fresh" + strconv.Itoa(n)}
		}
		takes := arrivals.logNormal(robotic)
		s.all.Go(func() {
			ctx := context.Background()
			if s.hasty > 0 {
				limited, leave := context.WithTimeout(ctx, seconds(s.hasty))
				defer leave()
				ctx = limited
			}
			s.request(ctx, c, true, takes)
		})
		return arrivals.exponential(robotic / load)
	})
}

// waits reports whether a client was told to come back later.
func (c *client) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.next)
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// session is a person who wants some pages, and thinks between them.
func (s *site) session(c *client) {
	if c.chance(s.nat) {
		c.address, c.counts = "nat", &s.natPerson
	}
	pages := 1
	for pages < 20 && c.chance(.75) {
		pages++
	}
	if now := s.now(); now < 90 || now > lasts-110 {
		c.counts = &s.warming
	}
	s.count(func() { c.counts.wanted += pages })
	for page := range pages {
		if page > 0 {
			time.Sleep(c.exponential(12))
		}
		clicked := time.Now()
		if !s.visit(c) {
			return
		}
		s.count(func() { c.counts.served += one(time.Since(clicked) <= 30*time.Second) })
		for i := range s.ajax {
			takes := c.logNormal(.05)
			s.all.Go(func() {
				time.Sleep(200*time.Millisecond + time.Duration(i)*time.Microsecond) // in order
				served, _ := s.askFor(c, false, takes)
				s.count(func() { c.counts.ajax++; c.counts.ajaxServed += one(served) })
			})
		}
	}
}

// visit asks for a page until it is served or the person gives up.
func (s *site) visit(c *client) (served bool) {
	takes := c.logNormal(service)
	for try := 0; ; try++ {
		served, after := s.askFor(c, true, takes)
		switch {
		case served:
			return true
		case try < cookies.Reloads && after > 0 && c.chance(.95): // the page reloads itself
			time.Sleep(after)
		case try < 1 && c.chance(.5): // the person does
			time.Sleep(5*time.Second + seconds(10*c.Float64()))
		default:
			return false
		}
	}
}

// askFor sends a request, and leaves when the client's patience is over. After is when
// a refused client is to come back.
func (s *site) askFor(c *client, page bool, takes time.Duration) (served bool, after time.Duration) {
	ctx, leave := context.WithTimeout(context.Background(), seconds(patience))
	defer leave()
	type answer struct {
		served bool
		after  time.Duration
	}
	answers := make(chan answer, 1)
	s.all.Go(func() {
		served, after := s.request(ctx, c, page, takes)
		answers <- answer{served, after}
	})
	select {
	case a := <-answers:
		return a.served, a.after
	case <-ctx.Done():
		return false, 0
	}
}

// oldPass returns a pass that was sent two hours ago.
func (s *site) oldPass() string {
	c := new(client)
	s.sendPass(c, s.began.Add(-2*time.Hour), 5*time.Second)
	return c.cookie
}

// recognize returns what a client's pass says. The caller holds the client's lock.
func (s *site) recognize(c *client, now time.Time) cookies.Client {
	r := &http.Request{TLS: new(tls.ConnectionState), Header: make(http.Header)}
	if c.cookie != "" {
		r.Header["Cookie"] = []string{c.cookie}
	}
	return s.issuer.Client(r, siteHost, now)
}

// network returns an address in a network of the client's own.
func (c *client) network() netip.Addr {
	sum := sha256.Sum256([]byte(c.address))
	return netip.AddrFrom16([16]byte(sum[:16]))
}

// sendPass sends a pass with a refusal. The caller holds the client's lock.
func (s *site) sendPass(c *client, now time.Time, after time.Duration) {
	header := make(http.Header)
	known := s.recognize(c, now)
	known.Refused(header, now, after, c.network())
	if c.cookie == "" || !c.robot || !s.keepFirst {
		c.cookie, _, _ = strings.Cut(header.Get("Set-Cookie"), ";")
	}
}

// entry returns how a request takes its turn.
func (s *site) entry(c *client, now time.Time) (l Limits, r *Slot, tries int) {
	l = Limits{Slots: s.inFlight, Wait: maxWait, Queue: s.row, Share: true}
	r = &Slot{Request: Request{From: sender(netip.PrefixFrom(c.network(), 64).Masked()), Claim: new(fairqueue.Claim)}}
	r.Rank, r.Keys[0] = fairqueue.First, c.address
	if c.member {
		r.Rank, r.Keys[0] = fairqueue.Member, "@member/"+c.address
	} else {
		c.mu.Lock()
		known := s.recognize(c, now)
		c.mu.Unlock()
		r.Rank, tries = known.Rank(), known.Tries(now)
		if key := known.Key(); key != "" {
			r.Keys[1] = "@pass/" + key
		}
	}
	return l, r, tries
}

// request is one that comes to the gate. After is when a refused client is to come back.
func (s *site) request(ctx context.Context, c *client, page bool, takes time.Duration) (served bool, after time.Duration) {
	l, slot, tries := s.entry(c, time.Now())
	result := s.enter(ctx, l, slot)
	switch result.Why {
	case Admitted:
		s.work(ctx, takes)
		slot.Release(true)
		return ctx.Err() == nil, 0
	case Left:
		return false, 0
	}
	s.count(func() { s.refusals++; s.inVain += result.Waited })
	return false, s.refuse(c, page, tries)
}

// work is a request in the upstream, which knows nothing of clients and does not end with them.
func (s *site) work(ctx context.Context, takes time.Duration) {
	s.count(func() {
		s.inUpstream++
		s.mostInUpstream = max(s.mostInUpstream, s.inUpstream)
	})
	<-s.free
	time.Sleep(takes)
	s.free <- struct{}{}
	s.count(func() {
		s.inUpstream--
		if now := s.now(); now > 90 && now <= lasts {
			s.busy += takes
		}
		if ctx.Err() != nil {
			s.wasted += takes
		}
	})
}

// enter asks the gate.
func (s *site) enter(ctx context.Context, l Limits, r *Slot) Result {
	waiting, served, keys := s.gate.counts()
	s.count(func() { s.unbounded = s.unbounded || keys > 2*(waiting+served) })
	return s.gate.Enter(ctx, nil, l, r)
}

// refuse tells a client when to come back. A page brings a pass that is valid then.
func (s *site) refuse(c *client, page bool, tries int) (after time.Duration) {
	if c.robot && !c.keepsCookies {
		return 0 // nobody heeds it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !page { // a page's own goroutine alone draws from c
		known := s.recognize(c, now)
		known.RefusedApart(now, cookies.RetryAfter(tries, .5), c.network())
		return 0
	}
	after = cookies.RetryAfter(tries, c.Float64())
	c.next = now.Add(after)
	s.sendPass(c, now, after)
	return after
}
