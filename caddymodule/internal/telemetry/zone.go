// Package telemetry counts and logs what zones decide: metrics, lines of the log, events and
// who sends most. Begin with [Zone], which the engine tells each outcome. It imports
// decision, and nothing that runs.
package telemetry

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/evidence"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
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
	passesFull  atomic.Int64 // when that was last logged, in Unix seconds
}

// Options are what a zone's figures depend on beside its rule.
type Options struct {
	Logger *zap.Logger
	Shared bool          // the config has a shared store
	Denies bool          // the zone refuses requests while that does not answer
	Group  func() string // what the figures of shadow mean
	Wanted func() Subscriptions
	Events *Background[Event]

	LogLimit *rate.Limiter // of refusals in the access log; nil if there is none
}

// A Zone counts and logs what a zone of one config decides.
type Zone struct {
	Options
	Evidence *evidence.Zone
	rule     *rule.Rule
	figures  *Figures
	reasons  [decision.Decisions]rule.ReasonSet // of each decision that the zone can make

	decided   counters
	turns     [fairqueue.Ranks]*turnMeter     // nil without share
	overflows [decision.Decisions]*overflows  // as refusals
	refusals  [decision.Decisions]*refusalLog // nil for decisions that refuse nothing
	unsettled prometheus.Counter
	without   prometheus.Counter // charges decided without the shared store
	people    prometheus.Counter // would have been refused; nil without shadow server_timing

	passes    [clientpass.Events]prometheus.Counter    // nil in zones that send none
	presented [clientpass.Valid + 1]prometheus.Counter // by the state of the pass
	newcomers newcomers

	warnedStatic  atomic.Bool
	warnedFailure atomic.Int64 // when, in seconds since 1970
}

func New(compiled *rule.Rule, figures *Figures, met *evidence.Zone, options Options) *Zone {
	t := &Zone{Options: options, Evidence: met, rule: compiled, figures: figures}
	t.reasons = t.possible()
	t.decided, t.turns = countersOf(t, ""), newTurnMeters(t)
	if compiled.Settle != nil {
		t.unsettled = Unsettled.WithLabelValues(compiled.Name)
	}
	for _, d := range []decision.Decision{decision.ShadowRefused, decision.Refused} {
		t.refusals[d] = newRefusalLog(t, d)
		t.overflows[d] = &overflows{zone: compiled.Name, shadow: d == decision.ShadowRefused, wanted: t.Wanted, queue: t.Events}
	}
	t.refusals[decision.ShadowRefused].group = t.Group
	if t.reasons[decision.Delayed] != 0 {
		Delays.WithLabelValues(compiled.Name) // its series exists before the first delay
	}
	if compiled.ServerTiming {
		t.people = RefusedPeople.WithLabelValues(compiled.Name)
	}
	t.passCounters()
	if t.Shared {
		t.without = WithoutStore.WithLabelValues(compiled.Name)
	}
	return t
}

// Decided implements decision.Reporter.
func (t *Zone) Decided(o *decision.Outcome, now time.Time, header http.Header) {
	d, why := o.Ruling()
	if o.Turn != nil && t.ranked(why) {
		t.turned(o, d, why)
	} else if counter := t.decided[d][why]; counter != nil {
		counter.Inc()
	} else { // only an override at run time can lead here
		Requests.WithLabelValues(t.rule.Name, d.String(), why.String(), "").Inc()
	}
	if fraction, known := o.Fraction(); known {
		t.figures.Levels.observe(fraction)
	}
	t.countPresented(o)
	if why != rule.Banned && why != rule.Error { // which hold whatever the zone matches
		t.Evidence.Decided(o)
	}
	if d == decision.Delayed {
		Delays.WithLabelValues(t.rule.Name).Observe(o.Delay.Seconds())
	}
	t.figures.noteSender(o, d, now)
	if t.people != nil && d == decision.ShadowRefused && header != nil {
		mark(header, o)
	}
	if why != rule.None {
		t.refusals[d].note(o)
		t.overflows[d].note(o)
		t.figures.Refused.Add(o.RefusedKey())
	}
}

// Met implements decision.Reporter.
func (t *Zone) Met(what decision.Meeting, s *rule.Subject) { t.Evidence.Met(what, s) }

// Settled implements decision.Reporter.
func (t *Zone) Settled(o *decision.Outcome, response *settlement.Observer, cost float64, known bool) {
	if !known {
		t.Unsettled(1)
	}
	t.Evidence.Settled(o, response, cost, known)
}

// FellBack implements decision.Reporter.
func (t *Zone) FellBack() { t.without.Inc() }

// Failed implements decision.Reporter. It warns at most once a minute.
func (t *Zone) Failed(option string, err error, enforced bool) {
	if last, now := t.warnedFailure.Load(), time.Now().Unix(); now-last >= 60 && t.warnedFailure.CompareAndSwap(last, now) {
		warning := "a matcher of the zone fails, so requests would if it were enforced"
		if enforced {
			warning = "a matcher of the zone fails, and requests with it"
		}
		t.Logger.Warn(warning, zap.String("matcher", option), zap.Error(err))
	}
}

// Logs implements decision.Reporter, as refusal log has it.
func (t *Zone) Logs(now time.Time) bool {
	if t.LogLimit == nil || t.LogLimit.AllowN(now, 1) {
		return true
	}
	t.figures.Unlogged.Add(1)
	return false
}

// Unlogged implements decision.Reporter.
func (t *Zone) Unlogged() uint32 {
	if t.LogLimit == nil || t.figures.Unlogged.Load() == 0 {
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
