package caddymodule

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
)

var (
	turnSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "slot_wait_seconds",
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
	case o.Shadow != 0:
	case d == decision.Admitted && !o.Left:
		meter.waits.Observe(0)
	case d == decision.Delayed:
		if !o.Left {
			meter.waits.Observe(o.Delay.Seconds())
		}
		z.live.load.note(z, o, false)
	case d == decision.Refused && o.LostTurn():
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
	l.busiest.Add(false, t.Keys[0], netip.Addr{}, int(held/time.Millisecond), time.Now())
}
