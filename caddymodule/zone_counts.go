package caddymodule

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

// liveCounts are the figures of a zone name, in all configs that have it.
type liveCounts struct {
	slots       *admission.Zone
	refused     sketch.Distinct
	levels      levelHistogram
	unlogged    atomic.Uint32 // refusals since the last line of one in the access log
	recent      sketch.Recent
	slotSeconds [fairqueue.Ranks]atomic.Pointer[prometheus.Counter]
	busiest     sketch.Recent // milliseconds of slots
	load        loadLog
	passesFull  atomic.Int64 // when that was last logged, in Unix seconds
}

// countOptions are what a zone's figures depend on beside its rule.
type countOptions struct {
	logger *zap.Logger
	shared bool          // the config has a shared store
	denies bool          // and the zone refuses requests while that does not answer
	listed bool          // overrides may come from a file
	group  func() string // what the figures of shadow mean
	wanted func() subscriptions
	events *background[event]
}

// A zoneCounts counts and logs what a zone of one config decides.
type zoneCounts struct {
	countOptions
	rule    *rule.Rule
	figures *liveCounts

	decided   counters
	turns     [fairqueue.Ranks]*turnMeter     // nil without share
	overflows [decision.Decisions]*overflows  // as refusals
	refusals  [decision.Decisions]*refusalLog // nil for decisions that refuse nothing
	unsettled prometheus.Counter
	without   prometheus.Counter // charges decided without the shared store
	people    prometheus.Counter // would have been refused; nil without shadow server_timing

	passes    [clientpass.Events]prometheus.Counter    // nil in zones that send none
	presented [len(presentedEvents)]prometheus.Counter // by the state of the pass
	newcomers newcomers
}

func newZoneCounts(compiled *rule.Rule, figures *liveCounts, options countOptions) *zoneCounts {
	t := &zoneCounts{countOptions: options, rule: compiled, figures: figures}
	t.decided, t.turns = countersOf(t, ""), newTurnMeters(t)
	if compiled.Settle != nil {
		t.unsettled = unsettled.WithLabelValues(compiled.Name)
	}
	for _, d := range []decision.Decision{decision.ShadowRefused, decision.Refused} {
		t.refusals[d] = newRefusalLog(t, d)
		t.overflows[d] = &overflows{zone: compiled.Name, shadow: d == decision.ShadowRefused, wanted: t.wanted, queue: t.events}
	}
	t.refusals[decision.ShadowRefused].group = t.group
	if t.mayCount(decision.Delayed, rule.None) {
		delays.WithLabelValues(compiled.Name) // its series exists before the first delay
	}
	if compiled.ServerTiming {
		t.people = refusedPeople.WithLabelValues(compiled.Name)
	}
	t.passCounters()
	if t.shared {
		t.without = withoutStore.WithLabelValues(compiled.Name)
	}
	return t
}

// Decided implements decision.Reporter.
func (t *zoneCounts) Decided(o *decision.Outcome, now time.Time, header http.Header) {
	d, why := o.Verdict()
	if o.Turn != nil && t.ranked(why) {
		t.turned(o, d, why)
	} else if counter := t.decided[d][why]; counter != nil {
		counter.Inc()
	} else { // only an override at run time can lead here
		requests.WithLabelValues(t.rule.Name, d.String(), why.String(), "").Inc()
	}
	if fraction, known := o.Fraction(); known {
		t.figures.levels.observe(fraction)
	}
	t.countPresented(o)
	if d == decision.Delayed {
		delays.WithLabelValues(t.rule.Name).Observe(o.Delay.Seconds())
	}
	t.figures.noteSender(o, d, now)
	if t.people != nil && d == decision.ShadowRefused && header != nil {
		mark(header, o)
	}
	if why != rule.None {
		t.refusals[d].note(o)
		t.overflows[d].note(o)
		t.figures.refused.Add(o.RefusedKey())
	}
}

// FellBack implements decision.Reporter.
func (t *zoneCounts) FellBack() { t.without.Inc() }

// Unsettled implements decision.Reporter.
func (t *zoneCounts) Unsettled(charges int) {
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
func (t *zoneCounts) Answered(isNew bool, e clientpass.Event) {
	if !isNew {
		return
	}
	n := &t.newcomers
	came := n.came.Add(1)
	if e != clientpass.Joined && e != clientpass.Limited {
		return
	}
	if joined := n.joined.Add(1); joined >= fewestMembers && float64(joined) > mostMembers*float64(came) && !n.warned.Swap(true) {
		t.logger.Warn("more than a fifth of the clients that come without cookies become members at once: visitors who have not logged in seem to get the cookie or header of rank member",
			zap.Int64("new_clients", came), zap.Int64("members", joined))
	}
}
