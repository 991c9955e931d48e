// Package telemetry counts and logs what zones decide: metrics, lines of the log, events and
// who sends most. Begin with [Counts], which the engine tells each outcome. It imports
// limit, and nothing that runs.
package telemetry

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

// Figures are the figures of a zone name, in all configs that have it.
type Figures struct {
	Recent   sketch.Recent
	Refused  sketch.Distinct
	Unlogged atomic.Uint32 // refusals since the last line of one in the access log

	marked, counted *expiring.Map[netip.Addr, struct{}] // people who were sent a mark of the zone lately, and reported one
}

// NewFigures returns the figures of a zone name.
func NewFigures() *Figures {
	f := &Figures{marked: expiring.New[netip.Addr, struct{}](mostPeople), counted: expiring.New[netip.Addr, struct{}](mostPeople)}
	f.Recent.Turn(time.Now())
	return f
}

// Options are what the counts of a zone depend on beside it.
type Options struct {
	Logger *zap.Logger
	Shared bool // the config has a shared store

	Requests func() uint64 // how many the handlers had that have the zone

	Wanted func(event string) bool // by a subscriber
	Emit   func(event string, data map[string]any)
	Events Background // of which Emit is told; run until the config stops
}

// A Counts counts and logs what a zone of one config decides.
type Counts struct {
	// What a request needs that is admitted lies side by side.
	figures  *Figures
	admitted prometheus.Counter // one of decided
	levels   prometheus.Observer
	facts    facts

	Options
	zone *limit.Zone

	decided   counters
	overflows [limit.Decisions]*overflows         // as refusals
	refusals  [limit.Decisions]*RefusalLog        // nil for decisions that refuse nothing
	begun     [limit.Decisions]prometheus.Counter // blocks; nil for decisions that begin none
	delays    prometheus.Observer                 // nil if no request is delayed
	without   prometheus.Counter                  // charges decided without the shared store
	unsettled prometheus.Counter                  // charges left as reserved
	people    prometheus.Counter                  // nil without server_timing

	failures *rate.Limiter // of warnings
}

// New returns the counters and logs of a zone.
func New(compiled *limit.Zone, figures *Figures, options Options) *Counts {
	t := &Counts{
		Options: options, facts: facts{since: time.Now()}, zone: compiled, figures: figures,
		failures: rate.NewLimiter(rate.Every(summaryEvery), 1),
	}
	if len(compiled.Refund) > 0 {
		t.facts.responses = new([statuses]atomic.Uint64)
	}
	t.decided, t.levels = countersOf(compiled), Levels.WithLabelValues(compiled.Name)
	t.admitted = t.decided[limit.Admitted][limit.None]
	t.unsettled = Unsettled.WithLabelValues(compiled.Name)
	t.refusals[limit.Refused] = &RefusalLog{Logger: t.Logger, Begins: "zone begins to refuse requests", Refused: "zone refused requests"}
	t.refusals[limit.ShadowRefused] = &RefusalLog{Logger: t.Logger, Begins: "zone would begin to refuse requests", Refused: "zone would have refused requests"}
	for _, d := range []limit.Decision{limit.ShadowRefused, limit.Refused} {
		t.overflows[d] = &overflows{of: t, shadow: d == limit.ShadowRefused, keys: make(map[string]*overflow)}
		if compiled.Block != nil {
			t.begun[d] = BlocksBegun.WithLabelValues(compiled.Name, d.String())
		}
	}
	if compiled.Delay != nil {
		t.delays = Delays.WithLabelValues(compiled.Name)
	}
	if compiled.MarksResponses() {
		t.people = RefusedPeople.WithLabelValues(compiled.Name)
	}
	if t.Shared {
		t.without = WithoutStore.WithLabelValues(compiled.Name)
	}
	return t
}

// Decided implements limit.Reporter.
func (t *Counts) Decided(o *limit.Outcome, r *http.Request, header http.Header) {
	d, why := o.Decision(), o.Reason()
	if d == limit.Delayed {
		t.delays.Observe(o.Delay.Seconds())
	}
	if c := t.decided[d][why]; c != nil {
		c.Inc()
	} else {
		Requests.WithLabelValues(t.zone.Name, d.String(), why.String(), "").Inc()
	}
	if why == limit.None {
		t.fits(o, r)
		return
	}
	if fraction, known := o.Fraction(); known {
		t.levels.Observe(fraction)
	}
	asked := why != limit.Banned && why != limit.Error // which hold whatever the zone matches
	if asked {
		t.facts.asked.Add(1)
	}
	if weight := t.figures.Recent.Weight(sketch.Refused, rand.Uint64()); weight > 0 {
		client := limit.AddressOf(r)
		if t.figures.Recent.Add(sketch.Refused, o.Key, client, weight); asked {
			t.facts.sample(o.Key, client)
		}
	}
	if t.zone.MarksResponses() && d == limit.ShadowRefused {
		header.Add("Server-Timing", `throttle;desc="`+t.zone.Name+`"`) // which tells the browser
		t.figures.mark(limit.ClientOf(r).Addr(), time.Now())
	}
	t.refusals[d].Note(o.Key)
	if o.Answer.Began {
		t.blocked(o, d)
	}
	t.overflows[d].note(o)
	t.figures.Refused.Add(sketch.Hash(o.Key))
}

// Admitted implements limit.Reporter.
func (t *Counts) Admitted(o *limit.Outcome, r *http.Request) {
	t.admitted.Inc()
	t.fits(o, r)
}

// fits counts a charge that fits. Of many, it looks at a sample.
func (t *Counts) fits(o *limit.Outcome, r *http.Request) {
	weight := t.figures.Recent.Weight(sketch.Admitted, t.facts.asked.Add(1))
	if weight == 0 {
		return
	}
	for range weight {
		t.levels.Observe(o.Level() / o.Limit.Capacity)
	}
	client := limit.AddressOf(r)
	t.figures.Recent.Add(sketch.Admitted, o.Key, client, weight)
	t.facts.sample(o.Key, client)
}

// Flush logs refusals that were counted but not logged yet.
func (t *Counts) Flush() {
	t.refusals[limit.ShadowRefused].Flush()
	t.refusals[limit.Refused].Flush()
}

// blocked counts and logs a block that began.
func (t *Counts) blocked(o *limit.Outcome, d limit.Decision) {
	message := "zone blocks a key"
	t.begun[d].Inc()
	if d == limit.ShadowRefused {
		message = "zone would block a key"
	}
	t.refusals[d].Blocked(message, zap.String("key", o.Key), zap.Float64("for_seconds", o.Block.Seconds()))
}

// Count implements limit.Reporter.
func (t *Counts) Count(c limit.Count) {
	if t.facts.counts[c].Add(1); c == limit.CountFallback {
		t.without.Inc()
	}
}

// Failed implements limit.Reporter. It warns at most once a minute.
func (t *Counts) Failed(err error, enforced bool) {
	if t.failures.Allow() {
		warning := "a matcher of the zone fails, so requests would if it were enforced"
		if enforced {
			warning = "a matcher of the zone fails, and requests with it"
		}
		t.Logger.Warn(warning, zap.Error(err))
	}
}

// Logs implements limit.Reporter, as refusal log has it.
func (t *Counts) Logs(now time.Time) bool {
	if t.zone.Refusal.LogLimit == nil || t.zone.Refusal.LogLimit.AllowN(now, 1) {
		return true
	}
	t.figures.Unlogged.Add(1)
	return false
}

// Unlogged implements limit.Reporter.
func (t *Counts) Unlogged() uint32 {
	if t.zone.Refusal.LogLimit == nil || t.figures.Unlogged.Load() == 0 {
		return 0
	}
	return t.figures.Unlogged.Swap(0)
}

// Unsettled counts a charge that stays as it was reserved.
func (t *Counts) Unsettled() { t.unsettled.Inc() }

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
func (t *Counts) Seen(r *http.Request) {
	if t.people != nil && t.figures.report(limit.ClientOf(r).Addr(), time.Now()) {
		t.people.Inc()
	}
}

// mark notes that somebody was sent a mark. An address is one person; IPv6 is masked as in keys.
func (f *Figures) mark(person netip.Addr, now time.Time) {
	f.marked.Put(person, struct{}{}, now.Add(MarkFor), now)
}

// report reports whether somebody who says to have seen a mark is to be counted.
func (f *Figures) report(person netip.Addr, now time.Time) bool {
	if _, marked := f.marked.Get(person, now); !marked || !f.marked.Delete(person) {
		return false // or another report of the same mark was first
	}
	_, counted := f.counted.Get(person, now)
	return !counted && f.counted.Put(person, struct{}{}, now.Add(PersonFor), now)
}
