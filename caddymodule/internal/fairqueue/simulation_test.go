package fairqueue

import (
	"math"
	"math/rand/v2"
	"strconv"
	"time"
)

// This is a site under a swarm, in virtual time: an upstream with five workers,
// people with sessions of some pages, and robots. The queue in front of the
// upstream is the real one. The model of people and robots is that of a prototype,
// whose figures TestASwarmLeavesPeopleIn compares with ours.

// A scenario is the load, and the law if a rule of it is to be left out. Times are
// in seconds.
type scenario struct {
	inFlight  int     // 5 if zero
	people    float64 // load of the people, in workers; 1.5 if zero
	attack    float64 // load of everybody, in times the workers
	flash     float64 // additional load of newcomers who are people, in times the workers
	identity  int     // robots are drawn from so many; 0: a new one for each request
	cookies   float64 // share of the identities that keep cookies
	addresses int     // that those identities share; 0: one each
	farmed    bool    // the identities hold passes from the beginning
	onePass   bool    // they all hold the same one
	ajax      int     // requests that follow each page
	exports   int     // requests of 60 seconds that a member sends every two minutes
	scraper   float64 // load of a robot that is logged in, in workers
	nat       float64 // share of people behind one address
	known     bool    // some people have come with a pass
	row       int     // max_waiting; 200 if zero

	without rule
}

// A rule is one that a simulation leaves out of the law.
type rule int

const (
	whole        rule = iota // none
	memberRank               // members are like all others
	returnedRank             // and so are those with a pass
	passKey                  // the pass takes no turns
	addressKey               // with a pass, the address takes no turns
	turns                    // order of arrival within a rank
	correction               // charges stay at the mean
	virtualTime              // a new key begins at zero
	halfCap                  // a key may hold all slots
	prediction               // nobody is refused early
	fifth                    // newcomers may wait as long as members
	displacement             // a full row refuses whoever comes, however high its rank
	keyShare                 // one key may take all places in the rows
)

const (
	workers  = 5
	lasts    = 600. // seconds
	patience = 10.  // of people, for one request
	service  = .25  // mean of a page
)

// A client is a person in a session, or a robot.
type client struct {
	counts        *counts // of its kind
	name, address string
	pass          *pass
	member, robot bool
	keepsCookies  bool
	left          int     // pages
	clicked       float64 // when the page was wanted
}

type pass struct {
	id        string
	notBefore float64
}

// counts are what became of the pages of a kind of clients.
type counts struct {
	wanted, served           int // pages, within 30 s
	sessions, completed      int
	ajax, ajaxServed         int
	exports, exportsServed   int
	requests, servedRequests int
}

// A visit is a request in the simulation.
type visit struct {
	Request
	client  *client
	kind    visitKind
	seconds float64 // that the upstream needs
	tries   int
	came    float64
	began   float64 // holding a slot
	gone    bool    // the client
	over    bool    // refused or answered
}

type visitKind int

const (
	page visitKind = iota
	ajaxCall
	export
)

type site struct {
	scenario
	random *rand.Rand
	queue  Queue
	limits Limits

	now      float64
	events   events
	passes   int
	sessions int

	workersBusy int
	backlog     []*visit // in the upstream

	member, newcomer, knownPerson, natPerson counts
	warming, robot                           counts // not reported

	busy, wasted float64 // seconds of workers
	refusals     int
	inVain       float64 // seconds that refused requests had waited
	mostKeys     int
	unbounded    bool // more keys than two for each request that waits or holds a slot
}

type simEvent struct {
	at   float64
	n    int
	what func()
}

// events is a heap. That of the standard library would allocate for each event.
type events struct {
	list []simEvent
	n    int
}

func (e *events) before(i, j int) bool {
	a, b := &e.list[i], &e.list[j]
	return a.at < b.at || a.at == b.at && a.n < b.n
}

func (e *events) push(at float64, what func()) {
	e.n++
	e.list = append(e.list, simEvent{at, e.n, what})
	for i := len(e.list) - 1; i > 0 && e.before(i, (i-1)/2); i = (i - 1) / 2 {
		e.list[i], e.list[(i-1)/2] = e.list[(i-1)/2], e.list[i]
	}
}

func (e *events) pop() simEvent {
	first, last := e.list[0], len(e.list)-1
	e.list[0] = e.list[last]
	e.list[last].what = nil
	e.list = e.list[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < last && e.before(child+1, child) {
			child++
		}
		if child >= last || !e.before(child, i) {
			return first
		}
		e.list[i], e.list[child] = e.list[child], e.list[i]
		i = child
	}
}

// simulate runs a scenario to its end.
func simulate(s scenario, seed uint64) *site {
	if s.inFlight == 0 {
		s.inFlight = workers
	}
	if s.people == 0 {
		s.people = 1.5
	}
	if s.row == 0 {
		s.row = 200
	}
	sim := &site{scenario: s, random: rand.New(rand.NewPCG(seed, 14))}
	sim.limits = Limits{InFlight: s.inFlight, MaxWait: 5 * time.Second, MaxWaiting: s.row}
	sim.queue.SetLimits(sim.limits)
	sim.after(0, sim.session)
	sim.startRobots()
	for len(sim.events.list) > 0 {
		e := sim.events.pop()
		if e.at > lasts+300 { // for the sessions that are under way
			break
		}
		sim.now = e.at
		e.what()
	}
	return sim
}

func (s *site) after(seconds float64, what func()) {
	s.events.push(s.now+seconds, what)
}

// exponential draws from an exponential distribution.
func (s *site) exponential(mean float64) float64 { return s.random.ExpFloat64() * mean }

// logNormal draws from a log-normal distribution.
func (s *site) logNormal(mean float64) float64 {
	const sigma = .8
	return mean * math.Exp(sigma*s.random.NormFloat64()-sigma*sigma/2)
}

func (s *site) chance(p float64) bool { return s.random.Float64() < p }

// newPass returns a pass with a new id.
func (s *site) newPass(notBefore float64) *pass {
	s.passes++
	return &pass{id: "pass:" + strconv.Itoa(s.passes), notBefore: notBefore}
}

// session begins a person's session, and prepares the next person's.
func (s *site) session() {
	if s.now > lasts {
		return
	}
	s.after(s.exponential(service*4/s.people), s.session)
	draw := s.random.Float64()
	c := &client{counts: &s.newcomer}
	switch {
	case draw < .25:
		c.member, c.counts = true, &s.member
	case s.known && draw < .45:
		c.counts, c.pass = &s.knownPerson, s.newPass(-7200)
	}
	s.start(c)
}

// start starts the session of a person.
func (s *site) start(c *client) {
	s.sessions++
	c.name = "person" + strconv.Itoa(s.sessions)
	c.address = c.name
	if s.chance(s.nat) {
		c.address = "nat"
		c.counts = &s.natPerson
	}
	c.left = 1
	for c.left < 20 && s.chance(.75) {
		c.left++
	}
	if s.now < 90 || s.now > lasts-110 {
		c.counts = &s.warming
	}
	c.counts.wanted += c.left
	c.counts.sessions++
	s.click(c)
}

func (s *site) click(c *client) {
	c.clicked = s.now
	s.arrive(&visit{client: c, seconds: s.logNormal(service)})
}

const robotService = .8

// startRobots starts the swarm and the other clients who are no people.
func (s *site) startRobots() {
	var identities []*client
	for i := range s.identity {
		c := &client{counts: &s.robot, robot: true, address: "robot" + strconv.Itoa(i)}
		if s.addresses > 0 {
			c.address = "robot" + strconv.Itoa(i%s.addresses)
		}
		if c.keepsCookies = s.chance(s.cookies); c.keepsCookies && (s.farmed || s.onePass) {
			c.pass = s.newPass(-7200)
			if s.onePass {
				c.pass.id = "pass:shared"
			}
		}
		identities = append(identities, c)
	}
	if load := workers*s.attack - s.people; load > 0 && s.flash == 0 {
		n := 0
		s.every(60, func() float64 { return s.exponential(robotService / load) }, func() {
			n++
			c := &client{counts: &s.robot, robot: true, address: "fresh" + strconv.Itoa(n)}
			if identities != nil {
				c = identities[s.random.IntN(len(identities))]
			}
			s.arrive(&visit{client: c, seconds: s.logNormal(robotService)})
		})
	}
	if s.flash > 0 {
		s.every(60, func() float64 { return s.exponential(service * 4 / (s.flash * workers)) }, func() {
			s.start(&client{counts: &s.newcomer})
		})
	}
	if s.exports > 0 {
		c := &client{counts: &s.robot, member: true, name: "exports"}
		s.every(100, func() float64 { return 120 }, func() {
			for range s.exports {
				c.counts.exports++
				s.arrive(&visit{client: c, kind: export, seconds: 60})
			}
		})
	}
	if s.scraper > 0 {
		c := &client{counts: &s.robot, member: true, robot: true, name: "scraper"}
		s.every(60, func() float64 { return s.exponential(robotService / s.scraper) }, func() {
			s.arrive(&visit{client: c, seconds: s.logNormal(robotService)})
		})
	}
}

// every repeats something from an instant on.
func (s *site) every(from float64, pause func() float64, what func()) {
	var again func()
	again = func() {
		if s.now > lasts {
			return
		}
		what()
		s.after(pause(), again)
	}
	s.after(from, again)
}

// identify gives a request its rank and keys.
func (s *site) identify(v *visit) {
	c := v.client
	returned := c.pass != nil && s.now >= c.pass.notBefore
	v.Rank, v.Keys = First, [2]string{c.address}
	switch {
	case c.member:
		v.Rank, v.Keys[0] = Member, c.name
	case returned:
		v.Rank, v.Keys[1] = Returned, c.pass.id
	}
	switch {
	case s.without == memberRank && v.Rank == Member, s.without == returnedRank && v.Rank == Returned:
		v.Rank = First
	case s.without == passKey:
		v.Keys[1] = ""
	case s.without == addressKey && v.Rank == Returned:
		v.Keys[0] = ""
	case s.without == turns:
		v.Keys = [2]string{}
	}
}

// arrive sends a request into the queue.
func (s *site) arrive(v *visit) {
	v.client.counts.requests++
	v.Owner, v.came = v, s.now
	s.identify(v)
	q, limits := &s.queue, s.limits
	switch s.without {
	case prediction:
		limits.MaxWait = time.Hour
	case fifth:
		if v.Rank >= Crawler {
			limits.MaxWait *= 5
		}
	case displacement:
		if q.waiting >= limits.MaxWaiting {
			s.refuse(v)
			return
		}
	case virtualTime:
		q.virtual = [Ranks]micros{}
	case keyShare:
		for _, k := range q.keys {
			k.waiting = 0
		}
	}
	q.SetLimits(limits)
	d := q.Arrive(&v.Request)
	q.SetLimits(s.limits)
	s.mostKeys = max(s.mostKeys, len(q.keys))
	s.unbounded = s.unbounded || len(q.keys) > 2*(q.waiting+q.running)
	if d.Displaced != nil {
		s.refuse(d.Displaced.Owner.(*visit))
	}
	switch d.Outcome {
	case Served:
		s.serve(v)
	case Waiting:
		limit := s.limits.Wait(v.Rank)
		if s.without == fifth {
			limit = s.limits.MaxWait
		}
		s.after(limit.Seconds(), func() {
			if q.Leave(&v.Request) {
				s.refuse(v)
			}
		})
	default:
		s.refuse(v)
		return
	}
	if !v.client.robot {
		s.after(patience, func() { s.leave(v) })
	}
}

// leave is a client that hangs up. The upstream goes on, and the slot is held
// until it ends.
func (s *site) leave(v *visit) {
	if v.over || v.gone {
		return
	}
	v.gone = true
	s.queue.Leave(&v.Request)
	s.answered(v, false, 0)
}

// serve hands a request with a slot to the upstream.
func (s *site) serve(v *visit) {
	v.began = s.now
	if s.without == halfCap {
		v.eachKey(func(k *key) { k.held-- })
	}
	if s.workersBusy == workers {
		s.backlog = append(s.backlog, v)
		return
	}
	s.work(v)
}

// eachKey is for rules that are left out: they change what the queue knows.
func (v *visit) eachKey(do func(*key)) {
	for _, k := range v.keys {
		if k != nil {
			do(k)
		}
	}
}

func (s *site) work(v *visit) {
	s.workersBusy++
	s.after(v.seconds, func() {
		s.workersBusy--
		if len(s.backlog) > 0 {
			next := s.backlog[0]
			s.backlog = s.backlog[1:]
			s.work(next)
		}
		if s.now > 90 && s.now <= lasts {
			s.busy += v.seconds
		}
		if v.gone {
			s.wasted += v.seconds
		} else {
			v.over = true
			s.answered(v, true, 0)
		}
		s.release(v)
	})
}

func (s *site) release(v *visit) {
	held := time.Duration((s.now - v.began) * float64(time.Second))
	switch s.without {
	case halfCap:
		v.eachKey(func(k *key) { k.held++ })
	case correction:
		v.charge = microsOf(held)
	}
	s.queue.Release(&v.Request, held)
	for r := s.queue.Next(); r != nil; r = s.queue.Next() {
		s.serve(r.Owner.(*visit))
	}
}

// refuse refuses a request: its client learns when to come back, and a page brings
// a pass that is valid from shortly before then.
func (s *site) refuse(v *visit) {
	v.over = true
	s.refusals++
	s.inVain += s.now - v.came
	c := v.client
	row := 0
	for r := range v.Rank + 1 {
		row += s.queue.Waiting(r)
	}
	wait := min(60, max(5, float64(row)*s.queue.mean().Duration().Seconds()/float64(s.inFlight)+1+4*s.random.Float64()))
	if v.kind == page && (c.pass != nil || !c.robot || c.keepsCookies) {
		if c.pass == nil {
			c.pass = s.newPass(0)
		}
		c.pass.notBefore = s.now + wait - 1.5
	}
	s.answered(v, false, wait)
}

// answered is what a client does after a request: wait is zero unless it was
// refused.
func (s *site) answered(v *visit, served bool, wait float64) {
	c := v.client
	switch {
	case c.robot:
		if served {
			c.counts.servedRequests++
		}
	case v.kind == ajaxCall:
		c.counts.ajax++
		if served {
			c.counts.ajaxServed++
		}
	case v.kind == export:
		if served {
			c.counts.exportsServed++
		}
	case served:
		if s.now-c.clicked <= 30 {
			c.counts.served++
		}
		for range s.ajax {
			s.after(.2, func() { s.arrive(&visit{client: c, kind: ajaxCall, seconds: s.logNormal(.05)}) })
		}
		if c.left--; c.left > 0 {
			s.after(s.exponential(12), func() { s.click(c) })
		} else {
			c.counts.completed++
		}
	case v.tries < 3 && wait > 0 && s.chance(.95): // the page reloads itself
		s.after(wait, func() { s.again(v) })
	case v.tries < 1 && s.chance(.5): // a person does
		s.after(5+10*s.random.Float64(), func() { s.again(v) })
	}
}

func (s *site) again(v *visit) {
	s.arrive(&visit{client: v.client, seconds: v.seconds, tries: v.tries + 1})
}
