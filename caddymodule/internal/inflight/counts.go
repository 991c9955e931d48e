package inflight

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/gate"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

var (
	passEvents = telemetry.NewCounters("passes_total",
		"Passes of clients of an in_flight with share, by what happened to them.", "zone", "event")

	waitSeconds = telemetry.NewHistograms("slot_wait_seconds",
		"How long served requests waited for their slot, in seconds.", []float64{.01, .05, .1, .25, .5, 1, 2, 3, 5, 8}, "zone", "rank")

	slotSeconds = telemetry.NewCounters("slot_seconds_total",
		"For how long requests held slots, with share, in seconds.", "zone", "rank")
)

// unranked stands for the rank of requests that have none.
const unranked = fairqueue.Ranks

func rankName(rank fairqueue.Rank) string {
	if rank == unranked {
		return ""
	}
	return rank.String()
}

// counts count and log what becomes of the requests of a limit in one config. Counters are looked
// up before requests come, so that series exist before the first count.
type counts struct {
	limit    *Limit
	requests [fairqueue.Ranks + 1][decisions][reasons]prometheus.Counter // nil where nothing can lead
	waits    [fairqueue.Ranks + 1]prometheus.Observer
	seconds  [fairqueue.Ranks]prometheus.Counter
	passes   [pass.Events]prometheus.Counter    // nil if none are sent
	states   [pass.Valid + 1]prometheus.Counter // of those that requests come with
	refusals [decisions]*telemetry.RefusalLog   // nil for decisions that refuse nothing

	failures, full *rate.Limiter // of warnings
	insecure       atomic.Bool   // warned of
	newcomers      newcomers
}

// warnEvery is how often a warning about requests is repeated.
const warnEvery = time.Minute

func newCounts(l *Limit) *counts {
	c := &counts{limit: l, failures: rate.NewLimiter(rate.Every(warnEvery), 1), full: rate.NewLimiter(rate.Every(warnEvery), 1)}
	ranks := []fairqueue.Rank{unranked}
	if l.Shares() {
		ranks = []fairqueue.Rank{fairqueue.Member, fairqueue.Returned, fairqueue.Crawler, fairqueue.First}
	}
	for _, rank := range ranks {
		for d, whys := range c.possible() {
			for _, why := range whys {
				c.requests[rank][d][why] = c.counter(rank, d, why)
			}
		}
		if l.limits.Wait > 0 {
			c.waits[rank] = waitSeconds.WithLabelValues(l.Name, rankName(rank))
		}
		if l.Shares() {
			c.seconds[rank] = slotSeconds.WithLabelValues(l.Name, rankName(rank))
		}
	}
	if l.ranks.pass != nil {
		for state := pass.Invalid; state <= pass.Valid; state++ {
			c.states[state] = passEvents.WithLabelValues(l.Name, state.String())
		}
		for e := pass.None + 1; e < pass.Events; e++ {
			c.passes[e] = passEvents.WithLabelValues(l.Name, e.String())
		}
	}
	c.refusals[refused] = &telemetry.RefusalLog{
		Logger: l.Logger, Lines: l.Lines, Begins: "in_flight begins to refuse requests", Refused: "in_flight refused requests", More: c.load,
	}
	c.refusals[shadowRefused] = &telemetry.RefusalLog{
		Logger: l.Logger, Lines: l.Lines, Begins: "in_flight would begin to refuse requests", Refused: "in_flight would have refused requests", More: c.load,
	}
	return c
}

// possible returns the reasons of each decision that can be made.
func (c *counts) possible() map[decision][]reason {
	l := c.limit
	possible := map[decision][]reason{admitted: {none}}
	waits := l.limits.Wait > 0
	if l.Shadow {
		possible[shadowRefused] = []reason{none}
		if waits {
			possible[shadowDelayed] = []reason{none}
		}
		return possible
	}
	possible[refused] = []reason{inFlight}
	if waits {
		possible[refused], possible[delayed] = []reason{queueFull, timeout}, []reason{none}
	}
	if l.longest >= 0 {
		possible[refused] = append(possible[refused], memory, tooLarge, timeout)
	}
	return possible
}

// counter looks a counter up.
func (c *counts) counter(rank fairqueue.Rank, d decision, why reason) prometheus.Counter {
	return telemetry.Requests.WithLabelValues(c.limit.Name, d.String(), why.String(), rankName(rank))
}

// decided counts what has become of a request.
func (c *counts) decided(v *visit) {
	rank := fairqueue.Rank(unranked)
	if v.Shares() {
		rank = v.slot.Rank
		if counter := c.states[v.client.State()]; counter != nil {
			counter.Inc()
		}
	}
	counter := c.requests[rank][v.decision][v.reason]
	if counter == nil { // only what is set at run time can lead here
		counter = c.counter(rank, v.decision, v.reason)
	}
	counter.Inc()
	switch v.decision {
	case admitted, delayed:
		if w := c.waits[rank]; w != nil && !c.limit.Shadow {
			w.Observe(v.Waited.Seconds())
		}
	case refused, shadowRefused:
		c.refusals[v.decision].Note(v.key())
	}
}

// held counts for how long a request has held its slot.
func (c *counts) held(rank fairqueue.Rank, held time.Duration) {
	if counter := c.seconds[rank]; counter != nil {
		counter.Add(held.Seconds())
	}
}

// failed counts a request for which a matcher has failed, and warns.
func (c *counts) failed(err error, enforced bool) {
	d, warning := shadowRefused, "a matcher fails, so requests would if in_flight were enforced"
	if enforced {
		d, warning = refused, "a matcher fails, and requests with it"
	}
	c.counter(unranked, d, failed).Inc()
	if c.failures.Allow() {
		c.limit.Logger.Warn(warning, zap.Error(err))
	}
}

// passed counts what has happened to the pass of a client, if anything has.
func (c *counts) passed(e pass.Event) {
	if e != pass.None {
		c.passes[e].Inc()
	}
}

// passesFull warns that passes are forgotten before their time.
func (c *counts) passesFull() {
	if c.full.Allow() {
		c.limit.Logger.Warn("the table of passes that were moved, or whose members have logged out, is full: those that would end first are forgotten, so that robots may present old copies again")
	}
}

// loggedInInsecurely warns, once, that nobody becomes a member.
func (c *counts) loggedInInsecurely() {
	if !c.insecure.Swap(true) {
		c.limit.Logger.Warn("a log-in succeeded over plain HTTP, where no passes are sent, so nobody is a member: serve the site over HTTPS, or list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto")
	}
}

const (
	// mostMembers is how many of the new clients may become members without a warning, as a
	// fraction, and fewestMembers how many they must be for it.
	mostMembers   = .2
	fewestMembers = 20
)

// newcomers count the clients that come without cookies, to find out whether the cookie of members
// is one that all visitors get.
type newcomers struct {
	came, joined atomic.Int64
	warned       atomic.Bool
}

// answered counts what a response has done to the pass of a client.
func (c *counts) answered(isNew bool, e pass.Event) {
	c.passed(e)
	if !isNew {
		return
	}
	n := &c.newcomers
	came := n.came.Add(1)
	if e != pass.Joined && e != pass.Limited {
		return
	}
	if joined := n.joined.Add(1); joined >= fewestMembers && float64(joined) > mostMembers*float64(came) && !n.warned.Swap(true) {
		c.limit.Logger.Warn("more than a fifth of the clients that come without cookies become members at once: visitors who have not logged in seem to get the cookie or header of rank member",
			zap.Int64("new_clients", came), zap.Int64("members", joined))
	}
}

// load returns how busy the limit is, for its log.
func (c *counts) load() []zap.Field {
	load := c.limit.State.Gate.Load()
	return []zap.Field{zap.Int("running", load.Running), zap.Int("slots", c.limit.Slots), zap.Int("waiting", Waiting(&load)), zap.Float64("mean_seconds", load.Mean.Seconds())}
}

// Waiting returns how many requests wait, of all ranks.
func Waiting(l *gate.Load) (n int) {
	for _, waiting := range l.Waiting {
		n += waiting
	}
	return n
}
