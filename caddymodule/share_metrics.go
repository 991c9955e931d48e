package caddymodule

import (
	"cmp"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/topk"
)

var (
	turnSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "wait_seconds",
		Help:    "How long served requests waited for their turn, in zones with share, in seconds.",
		Buckets: []float64{.01, .05, .1, .25, .5, 1, 2, 3, 5, 8},
	}, []string{"zone", "rank"})

	slotSeconds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "slot_seconds_total",
		Help: "For how long requests held slots, in zones with share, in seconds.",
	}, []string{"zone", "rank"})
)

// allRanks are those that clients of a zone with share may have, in the order of service.
var allRanks = []fairqueue.Rank{fairqueue.Member, fairqueue.Returned, fairqueue.Crawler, fairqueue.First}

// A turnMeter counts what becomes of requests of one rank.
type turnMeter struct {
	decided counters
	waits   prometheus.Observer
}

func newTurnMeters(z *runningZone) (meters [fairqueue.Ranks]*turnMeter) {
	if z.Share == nil {
		return meters
	}
	for _, rank := range allRanks {
		counter := slotSeconds.WithLabelValues(z.Name, rank.String())
		z.live.slotSeconds[rank].Store(&counter)
		meters[rank] = &turnMeter{decided: countersOf(z, rank.String()), waits: turnSeconds.WithLabelValues(z.Name, rank.String())}
	}
	return meters
}

// turned counts an outcome of a zone with share.
func (z *runningZone) turned(o *decision.Outcome, d decision.Decision, why decision.Reason) {
	rank := o.Turn.Rank
	meter := z.turns[rank]
	if counter := meter.decided[d][why]; counter != nil {
		counter.Inc()
	} else { // only a switch at run time can lead here
		requests.WithLabelValues(z.Name, d.String(), why.String(), rank.String()).Inc()
	}
	switch {
	case o.Shadow:
	case d == decision.Admitted && !o.Left:
		meter.waits.Observe(0)
	case d == decision.Delayed:
		if !o.Left {
			meter.waits.Observe(o.Delay.Seconds())
		}
		z.live.load.note(z, o, false)
	case d == decision.Refused && (why == decision.Wait || why == decision.Timeout || why == decision.Waiting):
		z.live.load.note(z, o, true)
	}
}

// CountPass implements decision.Reporter.
func (z *runningZone) CountPass(e clientpass.Event) { z.passes[e].Inc() }

// countPresented counts what the pass was worth that a request came with.
func (z *runningZone) countPresented(o *decision.Outcome) {
	if o.Turn == nil || z.presented[0] == nil {
		return
	}
	c := &o.Turn.Standing.Client
	switch {
	case c.State() == clientpass.Absent:
	case c.Unbound():
		z.presented[clientpass.Absent].Inc()
	default:
		z.presented[c.State()].Inc()
	}
}

// presentedEvents are the events of passes that requests come with, by their state. A
// pass of a member without the log-in stands where there is no pass.
var presentedEvents = [...]string{
	clientpass.Absent: "unbound", clientpass.Invalid: "invalid", clientpass.Expired: "expired", clientpass.Early: "early", clientpass.Valid: "valid",
}

// passCounters looks the zone's counters of passes up.
func (z *runningZone) passCounters() {
	if passOf(z.Rule) == nil {
		return
	}
	for state, event := range presentedEvents {
		z.presented[state] = passes.WithLabelValues(z.Name, event)
	}
	for e := clientpass.None + 1; e < clientpass.Events; e++ {
		z.passes[e] = passes.WithLabelValues(z.Name, e.String())
	}
}

// released counts a slot that was given back.
func (l *liveZone) released(t *admission.Turn, held time.Duration) {
	(*l.slotSeconds[t.Rank].Load()).Add(held.Seconds())
	l.busiest.add(t.Keys[0], held, time.Now())
}

// busiestFor is for how long keys are remembered as the busiest ones, at least.
const busiestFor = 5 * time.Minute

// busiestKeys finds the keys that hold slots for the longest time, in bounded memory.
type busiestKeys struct {
	mu          sync.Mutex
	since       time.Time
	last, count topk.Counter // of milliseconds
}

func (b *busiestKeys) add(key string, held time.Duration, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rotate(now)
	b.count.AddTimes(key, int(held/time.Millisecond))
}

// rotate forgets what is too old.
func (b *busiestKeys) rotate(now time.Time) {
	switch age := now.Sub(b.since); {
	case age > 2*busiestFor:
		b.since, b.last, b.count = now, topk.Counter{}, topk.Counter{}
	case age > busiestFor:
		b.since, b.last, b.count = now, b.count, topk.Counter{}
	}
}

// A busyKey is a key and for how long it has held slots lately.
type busyKey struct {
	Key     string  `json:"key"`
	Seconds float64 `json:"seconds"`
}

// top returns the busiest keys of the last five to ten minutes.
func (b *busiestKeys) top(n int, now time.Time) (keys []busyKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rotate(now)
	var both topk.Counter
	for _, counter := range []*topk.Counter{&b.last, &b.count} {
		for _, k := range counter.Top(math.MaxInt) {
			both.AddTimes(k.Key, k.AtLeast)
		}
	}
	for _, k := range both.Top(n) {
		keys = append(keys, busyKey{k.Key, float64(k.AtLeast) / 1000})
	}
	return keys
}

// A rowStatus is a row of a zone with share.
type rowStatus struct {
	Rank    string `json:"rank"`
	Waiting int    `json:"waiting"`
	Ahead   int    `json:"ahead"` // in the rows that are served before it
}

// A slotStatus is what the slots of a zone with share have to do.
type slotStatus struct {
	Busy        int         `json:"busy"`
	Slots       int         `json:"slots"`
	MeanSeconds float64     `json:"mean_seconds"`
	Rows        []rowStatus `json:"rows"`
	Top         []busyKey   `json:"top"` // by the seconds that they held slots
}

// busiestShown is how many of the busiest keys the status shows.
const busiestShown = 10

// describeShare describes the slots of a zone with share, or returns nil.
func (z *runningZone) describeShare(now time.Time) *slotStatus {
	if z.Share == nil {
		return nil
	}
	load, ahead := z.live.enforced.Load(), 0
	s := &slotStatus{
		Busy: load.Running, Slots: cmp.Or(load.Slots, z.InFlight), MeanSeconds: load.Mean.Seconds(),
		Top: z.live.busiest.top(busiestShown, now),
	}
	for _, rank := range allRanks {
		s.Rows = append(s.Rows, rowStatus{rank.String(), load.Waiting[rank], ahead})
		ahead += load.Waiting[rank]
	}
	return s
}
