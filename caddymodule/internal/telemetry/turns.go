package telemetry

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
)

var (
	TurnSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "slot_wait_seconds",
		Help:    "How long served requests waited for their turn, in zones with share, in seconds.",
		Buckets: []float64{.01, .05, .1, .25, .5, 1, 2, 3, 5, 8},
	}, []string{"zone", "rank"})

	SlotSeconds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "slot_seconds_total",
		Help: "For how long requests held slots, in zones with share, in seconds.",
	}, []string{"zone", "rank"})
)

// AllRanks are those that clients of a zone with share may have, in the order of service.
var AllRanks = []fairqueue.Rank{fairqueue.Member, fairqueue.Returned, fairqueue.Crawler, fairqueue.First}

// A turnMeter counts what becomes of requests of one rank.
type turnMeter struct {
	decided counters
	waits   prometheus.Observer
}

func newTurnMeters(t *Zone) (meters [fairqueue.Ranks]*turnMeter) {
	if t.rule.Share == nil {
		return meters
	}
	for _, rank := range AllRanks {
		counter := SlotSeconds.WithLabelValues(t.rule.Name, rank.String())
		t.figures.slotSeconds[rank].Store(&counter)
		meters[rank] = &turnMeter{decided: countersOf(t, rank.String()), waits: TurnSeconds.WithLabelValues(t.rule.Name, rank.String())}
	}
	return meters
}

// turned counts an outcome of a zone with share.
func (t *Zone) turned(o *decision.Outcome, d decision.Decision, why rule.Reason) {
	rank := o.Turn.Rank
	meter := t.turns[rank]
	if counter := meter.decided[d][why]; counter != nil {
		counter.Inc()
	} else { // only a switch at run time can lead here
		Requests.WithLabelValues(t.rule.Name, d.String(), why.String(), rank.String()).Inc()
	}
	switch {
	case o.Shadow != 0:
	case d == decision.Admitted && !o.Left:
		meter.waits.Observe(0)
	case d == decision.Delayed:
		if !o.Left {
			meter.waits.Observe(o.Delay.Seconds())
		}
		t.figures.load.note(t, o, false)
	case d == decision.Refused && o.LostTurn():
		t.figures.load.note(t, o, true)
	}
}

// CountPass implements decision.Reporter.
func (t *Zone) CountPass(e clientpass.Event) { t.passes[e].Inc() }

// countPresented counts what the pass was worth that a request came with.
func (t *Zone) countPresented(o *decision.Outcome) {
	if o.Turn == nil || t.presented[0] == nil {
		return
	}
	c := &o.Turn.Standing.Client
	switch {
	case c.State() == clientpass.Absent:
	case c.Unbound():
		t.presented[clientpass.Absent].Inc()
	default:
		t.presented[c.State()].Inc()
	}
}

// presentedEvents are the events of passes that requests come with, by their state. A
// pass of a member without the log-in stands where there is no pass.
var presentedEvents = [...]string{
	clientpass.Absent: "unbound", clientpass.Invalid: "invalid", clientpass.Expired: "expired", clientpass.Early: "early", clientpass.Valid: "valid",
}

// passCounters looks the zone's counters of passes up.
func (t *Zone) passCounters() {
	if t.rule.Pass() == nil {
		return
	}
	for state, event := range presentedEvents {
		t.presented[state] = Passes.WithLabelValues(t.rule.Name, event)
	}
	for e := clientpass.None + 1; e < clientpass.Events; e++ {
		t.passes[e] = Passes.WithLabelValues(t.rule.Name, e.String())
	}
}

// Released counts a slot that was given back.
func (l *Figures) Released(turn *admission.Turn, held time.Duration) {
	(*l.slotSeconds[turn.Rank].Load()).Add(held.Seconds())
	l.Busiest.Add(false, turn.Keys[0], netip.Addr{}, int(held/time.Millisecond), time.Now())
}
