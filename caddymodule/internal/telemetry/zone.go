// Package telemetry counts and logs what zones decide: metrics, lines of the log, events and
// who sends most. Begin with [Zone], which the engine tells each outcome. It imports
// decision, and nothing that runs.
package telemetry

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

// Figures are the figures of a zone name, in all configs that have it.
type Figures struct {
	Slots       *admission.Zone
	Refused     sketch.Distinct
	Levels      levelHistogram
	Unlogged    atomic.Uint32 // refusals since the last line of one in the access log
	Recent      sketch.Recent
	slotSeconds [fairqueue.Ranks]atomic.Pointer[prometheus.Counter]
	Busiest     sketch.Recent // milliseconds of slots
	load        loadLog
	people      people
}

// NewFigures returns the figures of a zone with these slots, whose releases it counts.
func NewFigures(slots *admission.Zone) *Figures {
	f := &Figures{Slots: slots, Busiest: sketch.Recent{Span: busiestFor / 4, Whole: true}, people: newPeople()}
	slots.Released = f.released
	return f
}

// busiestFor is for how long keys are remembered as the busiest ones, at most. A quarter of
// that ends at once.
const busiestFor = 10 * time.Minute

// Options are what a zone's figures depend on beside its rule.
type Options struct {
	Logger *zap.Logger
	Shared bool          // the config has a shared store
	Denies bool          // the zone refuses requests while that does not answer
	Group  func() string // what the figures of shadow mean
	Wanted func() Subscriptions

	Requests func() uint64 // how many the handlers had that have the zone

	Events *Background[Event]  // closed before the context of the config ends
	Lines  *Background[func()] // of the log, about refusals
}

// A Zone counts and logs what a zone of one config decides.
type Zone struct {
	Options
	met     met
	rule    *rule.Rule
	figures *Figures
	reasons [decision.Decisions]rule.ReasonSet // of each decision that the zone can make

	decided   counters
	waits     [fairqueue.Ranks]prometheus.Observer // nil without share
	overflows [decision.Decisions]*overflows       // as refusals
	refusals  [decision.Decisions]*refusalLog      // nil for decisions that refuse nothing
	delays    prometheus.Observer                  // nil if no request is delayed
	without   prometheus.Counter                   // charges decided without the shared store
	unsettled prometheus.Counter                   // nil without settle and refund
	people    prometheus.Counter                   // nil without server_timing

	passes    [clientpass.Events]prometheus.Counter    // nil in zones that send none
	presented [clientpass.Valid + 1]prometheus.Counter // by the state of the pass
	newcomers newcomers

	warnedStatic         atomic.Bool
	failures, passesFull *rate.Limiter // of warnings
}

func New(compiled *rule.Rule, figures *Figures, options Options) *Zone {
	t := &Zone{
		Options: options, met: met{since: time.Now()}, rule: compiled, figures: figures,
		failures: rate.NewLimiter(rate.Every(summaryEvery), 1), passesFull: rate.NewLimiter(rate.Every(summaryEvery), 1),
	}
	t.reasons = t.possible()
	t.decided = countersOf(t)
	// Series exist before the first count, and none comes back when the zone's are deleted.
	if compiled.Settle != nil || len(compiled.Refund) > 0 {
		t.unsettled = Unsettled.WithLabelValues(compiled.Name)
	}
	for _, d := range []decision.Decision{decision.ShadowRefused, decision.Refused} {
		t.refusals[d] = &refusalLog{zone: t, decision: d}
		t.overflows[d] = &overflows{zone: t, shadow: d == decision.ShadowRefused}
		if t.reasons[d].Has(rule.Blocked) {
			t.refusals[d].begun = BlocksBegun.WithLabelValues(compiled.Name, d.String())
		}
	}
	if t.reasons[decision.Delayed] != 0 {
		t.delays = Delays.WithLabelValues(compiled.Name)
	}
	if compiled.ServerTiming {
		t.people = RefusedPeople.WithLabelValues(compiled.Name)
	}
	t.lookUpTurns()
	if t.Shared {
		t.without = WithoutStore.WithLabelValues(compiled.Name)
	}
	return t
}

// Decided implements decision.Reporter.
func (t *Zone) Decided(o *decision.Outcome, r *http.Request, now time.Time, header http.Header) {
	d, why := o.Ruling()
	rank := fairqueue.Rank(unranked)
	if o.Turn != nil && t.ranked(why) {
		rank = o.Turn.Rank
		t.turned(o, d)
	}
	counter := t.decided[rank][d][why]
	if counter == nil { // only what is set at run time can lead here
		counter = t.requests(rank, d, why)
	}
	counter.Inc()
	if fraction, known := o.Fraction(); known {
		t.figures.Levels.observe(fraction)
	}
	t.countPresented(o)
	if why != rule.Banned && why != rule.Error { // which hold whatever the zone matches
		t.met.decided(o, r)
	}
	if d == decision.Delayed {
		t.delays.Observe(o.Delay.Seconds())
	}
	t.figures.noteSender(o, r, d, now)
	if t.rule.ServerTiming && d == decision.ShadowRefused && header != nil {
		t.mark(header, r)
	}
	if why != rule.None {
		t.refusals[d].note(o)
		t.overflows[d].note(o)
		t.figures.Refused.Add(o.RefusedKey())
	}
}

// FellBack implements decision.Reporter.
func (t *Zone) FellBack() { t.without.Inc() }

// Failed implements decision.Reporter. It warns at most once a minute.
func (t *Zone) Failed(option string, err error, enforced bool) {
	if t.failures.Allow() {
		warning := "a matcher of the zone fails, so requests would if it were enforced"
		if enforced {
			warning = "a matcher of the zone fails, and requests with it"
		}
		t.Logger.Warn(warning, zap.String("matcher", option), zap.Error(err))
	}
}

// Logs implements decision.Reporter, as refusal log has it.
func (t *Zone) Logs(now time.Time) bool {
	if t.rule.LogLimit == nil || t.rule.LogLimit.AllowN(now, 1) {
		return true
	}
	t.figures.Unlogged.Add(1)
	return false
}

// Unlogged implements decision.Reporter.
func (t *Zone) Unlogged() uint32 {
	if t.rule.LogLimit == nil || t.figures.Unlogged.Load() == 0 {
		return 0
	}
	return t.figures.Unlogged.Swap(0)
}

// ServedStatic implements decision.Reporter. It warns once.
func (t *Zone) ServedStatic(r *http.Request) {
	if !t.warnedStatic.Swap(true) {
		asked := r
		if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
			asked = &original // later handlers may have rewritten it
		}
		t.Logger.Warn("the upstream answered a request that exempt static_files took for a file; it is charged afterwards: serve files before the upstream is asked",
			zap.String("uri", asked.RequestURI))
	}
}

// Unsettled counts charges that stay as they were reserved.
func (t *Zone) Unsettled(charges int) {
	if t.unsettled != nil {
		t.unsettled.Add(float64(charges))
	}
}

// mostMembers is how many of the new clients of a zone may become members without a
// warning, as a fraction, and fewestMembers how many they must be for it.
const (
	mostMembers   = .2
	fewestMembers = 20
)

// newcomers counts the clients that come without cookies, to find out whether the cookie
// of members is one that all visitors get.
type newcomers struct {
	came, joined atomic.Int64
	warned       atomic.Bool
}

// Answered implements decision.Reporter.
func (t *Zone) Answered(isNew bool, e clientpass.Event) {
	if !isNew {
		return
	}
	n := &t.newcomers
	came := n.came.Add(1)
	if e != clientpass.Joined && e != clientpass.Limited {
		return
	}
	if joined := n.joined.Add(1); joined >= fewestMembers && float64(joined) > mostMembers*float64(came) && !n.warned.Swap(true) {
		t.Logger.Warn("more than a fifth of the clients that come without cookies become members at once: visitors who have not logged in seem to get the cookie or header of rank member",
			zap.Int64("new_clients", came), zap.Int64("members", joined))
	}
}

var (
	TurnSeconds = newHistograms("slot_wait_seconds",
		"How long served requests waited for their turn, in zones with share, in seconds.", []float64{.01, .05, .1, .25, .5, 1, 2, 3, 5, 8}, "zone", "rank")

	SlotSeconds = newCounters("slot_seconds_total",
		"For how long requests held slots, in zones with share, in seconds.", "zone", "rank")
)

// lookUpTurns looks up what is counted of turns and of passes in a zone with share.
func (t *Zone) lookUpTurns() {
	name := t.rule.Name
	if t.rule.Share != nil {
		for rank := range fairqueue.Rank(fairqueue.Ranks) {
			counter := SlotSeconds.WithLabelValues(name, rank.String())
			t.figures.slotSeconds[rank].Store(&counter)
			t.waits[rank] = TurnSeconds.WithLabelValues(name, rank.String())
		}
	}
	if t.rule.Pass() != nil {
		for state := clientpass.Invalid; state <= clientpass.Valid; state++ {
			t.presented[state] = Passes.WithLabelValues(name, state.String())
		}
		for e := clientpass.None + 1; e < clientpass.Events; e++ {
			t.passes[e] = Passes.WithLabelValues(name, e.String())
		}
	}
}

// turned notes how long a request of a zone with share has waited, and the load.
func (t *Zone) turned(o *decision.Outcome, d decision.Decision) {
	switch {
	case o.Shadow != 0:
	case d == decision.Admitted && !o.Left():
		t.waits[o.Turn.Rank].Observe(0)
	case d == decision.Delayed:
		if !o.Left() {
			t.waits[o.Turn.Rank].Observe(o.Delay.Seconds())
		}
		t.figures.load.note(t, o, false)
	case d == decision.Refused && o.LostTurn():
		t.figures.load.note(t, o, true)
	}
}

// CountPass implements decision.Reporter.
func (t *Zone) CountPass(e clientpass.Event) {
	if e != clientpass.None {
		t.passes[e].Inc()
	}
}

// countPresented counts what the pass was worth that a request came with.
func (t *Zone) countPresented(o *decision.Outcome) {
	if o.Turn == nil {
		return
	}
	if counter := t.presented[o.Turn.Standing.Client.State()]; counter != nil {
		counter.Inc()
	}
}

// released counts a slot that was given back.
func (l *Figures) released(turn *admission.Turn, held time.Duration) {
	(*l.slotSeconds[turn.Rank].Load()).Add(held.Seconds())
	if whole := int(held / time.Millisecond); whole > 0 {
		l.Busiest.Add(false, turn.Keys[0], netip.Addr{}, whole, time.Now())
	}
}

// A loadLog says once a minute how full a zone with share is, while requests wait or
// are refused.
type loadLog struct {
	mu      sync.Mutex
	timer   *time.Timer    // nil if there was no load lately
	zone    *Zone          // of the config that noted last
	most    admission.Load // when most requests waited
	waiting int            // then
	noted   bool           // since the last line
	refused int
	without int // of those had no pass, not even an early one, and were no members
}

func (l *loadLog) note(t *Zone, o *decision.Outcome, refused bool) {
	load := t.figures.Slots.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := 0
	for _, n := range load.Waiting {
		waiting += n
	}
	if !l.noted || waiting > l.waiting {
		l.most, l.waiting = load, waiting
	}
	l.noted, l.zone = true, t
	if refused {
		l.refused++
		if !o.Turn.Standing.HoldsPass() && o.Turn.Rank != fairqueue.Member {
			l.without++
		}
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(summaryEvery, l.tick)
	}
}

// tick logs the line of the last minute. If there was no load, it ends the timer.
func (l *loadLog) tick() {
	l.mu.Lock()
	t := l.zone
	if !l.noted {
		l.timer, l.zone = nil, nil
		l.mu.Unlock()
		return
	}
	message := fmt.Sprintf("%s full: %d/%d busy, %d wait, mean %.1f s", t.rule.Name, l.most.Running, l.most.Slots, l.waiting, l.most.Mean.Seconds())
	if l.refused > 0 {
		message += fmt.Sprintf(", %d %% of refusals had no pass", int(math.Round(100*float64(l.without)/float64(l.refused))))
	}
	refused := zap.Int("refused", l.refused)
	l.noted, l.refused, l.without = false, 0, 0
	l.timer.Reset(summaryEvery)
	l.mu.Unlock()
	t.Logger.Info(message, refused)
}

// WarnPassesFull logs, once a minute, that passes are forgotten before their time.
func (t *Zone) WarnPassesFull() {
	if t.passesFull.Allow() {
		t.Logger.Warn("the table of passes that were moved, or whose members have logged out, is full: those that would end first are forgotten, so that robots may present old copies again")
	}
}

const (
	// MarkFor is how long a browser has to load a marked page and to report it.
	MarkFor = 2 * time.Minute

	// PersonFor is how long somebody who was counted is not counted again.
	PersonFor = time.Hour

	// mostPeople bounds the marks, and the people counted, of a zone that are kept at once.
	// While there are more, the figure is too low.
	mostPeople = 50_000
)

// Seen counts the person who reports to have seen a mark of the zone, if that is true and
// news.
func (t *Zone) Seen(r *http.Request) {
	if t.people != nil && t.figures.people.report(personOf(r), time.Now()) {
		t.people.Inc()
	}
}

// mark tells the browser that a shadow zone would have refused the request.
func (t *Zone) mark(header http.Header, r *http.Request) {
	header.Add("Server-Timing", `throttle;desc="`+t.rule.Name+`"`)
	t.figures.people.mark(personOf(r), time.Now())
}

// personOf returns the address that counts as one person: IPv6 addresses are masked as
// in keys. It is invalid if the request has no address.
func personOf(r *http.Request) netip.Addr {
	s := rule.NewSubject(r)
	return s.Client().Addr()
}

// people are those who were sent a mark of a zone lately, and those who were counted.
type people struct {
	marked, counted *expiring.Map[netip.Addr, struct{}]
}

func newPeople() people {
	return people{expiring.New[netip.Addr, struct{}](mostPeople), expiring.New[netip.Addr, struct{}](mostPeople)}
}

// mark notes that somebody was sent a mark.
func (p *people) mark(person netip.Addr, now time.Time) {
	p.marked.Put(person, struct{}{}, now.Add(MarkFor), now)
}

// report reports whether somebody who says to have seen a mark is to be counted.
func (p *people) report(person netip.Addr, now time.Time) bool {
	if _, marked := p.marked.Get(person, now); !marked || !p.marked.Delete(person) {
		return false // or another report of the same mark was first
	}
	if _, counted := p.counted.Get(person, now); counted {
		return false
	}
	return p.counted.Put(person, struct{}{}, now.Add(PersonFor), now)
}

// noteSender counts whose request a zone has decided about. It is on the path of every
// request: of many, it counts a sample. Where nothing needs it, now is zero.
func (l *Figures) noteSender(o *decision.Outcome, r *http.Request, d decision.Decision, now time.Time) {
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
		l.Recent.Add(refused, o.Key, o.ClientIP(r), weight, now)
	}
}
