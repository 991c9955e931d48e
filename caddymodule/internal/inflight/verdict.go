package inflight

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/gate"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// reasonOf is why a request is refused whose wait has ended so.
var reasonOf = [...]limit.Reason{gate.Busy: limit.InFlight, gate.TooLong: limit.Timeout, gate.QueueFull: limit.NoPlace, gate.Exiting: limit.NoPlace}

// soon is when a client is told to come back where nobody knows when there will be a slot, or
// room.
const soon = time.Second

// refuse refuses the request.
func (v *visit) refuse(w http.ResponseWriter, why limit.Reason) error {
	v.record.Refused = true
	f := refusal.Refusal{
		Status: v.Refusal.Status, Message: v.Refusal.Message, Page: v.Refusal.Page, AsError: v.Refusal.Error,
	}
	switch {
	case why == limit.Connect:
		f.Status, f.AsError = http.StatusNotImplemented, false // an error route may hand it on, with its body
	case why == limit.EarlyData:
		f.Status = http.StatusTooEarly // browsers send it again by themselves
	case why == limit.TooLarge:
		f.Status = http.StatusRequestEntityTooLarge
	case why == limit.Timeout && v.Why == gate.Admitted: // its body came too slowly, so it never asked
		f.Status = http.StatusRequestTimeout
	case why == limit.NoMemory:
		f.Status, v.after = http.StatusServiceUnavailable, soon
	case v.Shares():
		v.loseTurn(w.Header(), time.Now())
		f.Busy, f.Reloads = true, v.tries < pass.Reloads
	default:
		v.after = soon
	}
	if v.Why == gate.Exiting {
		f.Status = http.StatusServiceUnavailable
	}
	f.Waits, f.RetryAfter, f.TimeToFit = v.after > 0, v.after, v.after
	if v.Refusal.Code == "" {
		v.code = v.Refusals.Add(supportcode.Refusal{At: time.Now(), Client: v.subject.Client(), Zone: v.Name, Key: v.key(), Reason: why.String(), Wait: v.after.Seconds()})
		f.Code = v.code
	}
	v.decide(limit.Refused, why)
	v.publish()
	if limit := v.Refusal.LogLimit; limit != nil && !limit.Allow() {
		caddyhttp.SetVar(v.r.Context(), caddyhttp.LogSkipVar, true)
	}
	err := f.Write(w, v.r, body.Whole(v.r))
	if err != nil {
		v.keep() // an error route may read the body
	}
	return err
}

// key returns what the request was judged by: whose slots it wanted, or who takes turns.
func (v *visit) key() string {
	if v.Shares() {
		return v.slot.Keys[0]
	}
	return v.slot.Key
}

// decide notes what becomes of the request, in the counters and in the access log, if there is
// one.
func (v *visit) decide(d limit.Decision, why limit.Reason) {
	v.decision, v.reason = d, why
	v.counts.decided(v)
	if d == limit.Delayed {
		v.publish()
	}
	if v.server != nil && v.server.Logs == nil {
		return
	}
	if extra, ok := v.r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		extra.Set(zap.Object("in_flight", v.verdict())) // the last one, if the request passes several
	}
}

// told are what logs and placeholders tell of a request, the last two only placeholders.
var told = [...]string{"name", "decision", "reason", "key", "rank", "why", "support_code", "retry_after", "message"}

// A verdict is what a limit has decided about a request. It does not change.
type verdict struct {
	texts  [len(told)]string
	waited float64 // seconds
}

func (v *visit) verdict() *verdict {
	rank, why, after := "", "", ""
	if v.Shares() {
		rank, why = v.slot.Rank.String(), v.why
	}
	if v.after > 0 {
		after = strconv.FormatInt(refusal.WholeSeconds(v.after), 10)
	}
	return &verdict{
		[...]string{v.Name, v.decision.String(), v.reason.String(), v.key(), rank, why, v.code.String(), after, v.Refusal.Message},
		v.Waited.Round(time.Microsecond).Seconds(),
	}
}

// MarshalLogObject implements zapcore.ObjectMarshaler: the value of the field.
func (d *verdict) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	for i, name := range told[:len(told)-2] {
		if d.texts[i] != "" {
			enc.AddString(name, d.texts[i])
		}
	}
	if d.waited > 0 {
		enc.AddFloat64("waited", d.waited)
	}
	return nil
}

const (
	placeholderPrefix = "http.in_flight."

	// verdictVar is the variable with the verdict that the placeholders tell of. No user would
	// choose its name.
	verdictVar = "throttle.in_flight"
)

// publish shows the verdict to pages and error routes. Of several, they see the one that has refused, or
// else the first to be published.
func (v *visit) publish() {
	ctx := v.r.Context()
	if repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok && caddyhttp.GetVar(ctx, verdictVar) == nil {
		repl.Map(func(name string) (any, bool) {
			if name, ours := strings.CutPrefix(name, placeholderPrefix); ours {
				return caddyhttp.GetVar(ctx, verdictVar).(*verdict).placeholder(name)
			}
			return nil, false
		})
	}
	caddyhttp.SetVar(ctx, verdictVar, v.verdict())
}

// placeholder returns the value of a placeholder {http.in_flight.*}.
func (d *verdict) placeholder(name string) (any, bool) {
	if name == "waited" {
		return d.waited, true
	}
	if i := slices.Index(told[:], name); i >= 0 {
		return d.texts[i], true
	}
	return nil, false
}

var (
	// PassEvents counts what happens to passes.
	PassEvents = telemetry.NewCounters("passes_total",
		"Passes of clients of an in_flight with share, by what happened to them.", "zone", "event")

	waitSeconds = telemetry.NewHistograms("slot_wait_seconds",
		"How long served requests waited for their slot, in seconds.", []float64{.01, .05, .1, .25, .5, 1, 2, 3, 5, 8}, "zone", "rank")

	slotSeconds = telemetry.NewCounters("slot_seconds_total",
		"For how long requests held slots, with share, in seconds.", "zone", "rank")
)

// unranked stands for the rank of requests that have none.
const unranked = fairqueue.Ranks

// counts count and log what becomes of the requests of a limit in one config. Series of what is usual
// exist before the first count, so that their rates have a first value. The others, and the histograms,
// would be most of the metrics of a host with many sites.
type counts struct {
	limit    *Limit
	requests [fairqueue.Ranks + 1][limit.Decisions][limit.Reasons]prometheus.Counter // nil for what is rare
	waits    [fairqueue.Ranks + 1]func() prometheus.Observer                         // nil if none waits
	seconds  [fairqueue.Ranks]prometheus.Counter
	passes   map[pass.Event]prometheus.Counter      // empty if none are sent
	refusals [limit.Decisions]*telemetry.RefusalLog // nil for decisions that refuse nothing

	failures *rate.Limiter // of warnings
}

func newCounts(l *Limit) *counts {
	c := &counts{limit: l, passes: make(map[pass.Event]prometheus.Counter), failures: rate.NewLimiter(rate.Every(time.Minute), 1)}
	ranks := []fairqueue.Rank{unranked}
	if l.Shares() {
		ranks = []fairqueue.Rank{fairqueue.Member, fairqueue.Returned, fairqueue.Crawler, fairqueue.First}
	}
	waits := l.limits.Wait > 0
	makes := func(possible bool, d limit.Decision, whys ...limit.Reason) {
		for i := 0; possible && i < len(whys); i++ {
			for _, rank := range ranks {
				c.requests[rank][d][whys[i]] = c.counter(rank, d, whys[i])
			}
		}
	}
	makes(true, limit.Admitted, limit.None)
	makes(l.Shadow, limit.ShadowRefused, limit.None)
	makes(l.Shadow && waits, limit.ShadowDelayed, limit.None)
	makes(!l.Shadow && !waits, limit.Refused, limit.InFlight)
	makes(!l.Shadow && waits, limit.Delayed, limit.None)
	makes(!l.Shadow && waits, limit.Refused, limit.NoPlace, limit.Timeout)
	for _, rank := range ranks {
		if waits {
			c.waits[rank] = sync.OnceValue(func() prometheus.Observer { return waitSeconds.WithLabelValues(l.Name, rank.String()) })
		}
		if l.Shares() {
			c.seconds[rank] = slotSeconds.WithLabelValues(l.Name, rank.String())
		}
	}
	if l.ranks.pass != nil {
		for _, e := range pass.Events {
			c.passes[e] = PassEvents.WithLabelValues(l.Name, string(e))
		}
	}
	log := telemetry.RefusalLog{Logger: l.Logger, Begins: "in_flight begins to refuse requests", Refused: "in_flight refused requests", More: c.load}
	would := telemetry.RefusalLog{Logger: l.Logger, Begins: "in_flight would begin to refuse requests", Refused: "in_flight would have refused requests", More: c.load}
	c.refusals[limit.Refused], c.refusals[limit.ShadowRefused] = &log, &would
	return c
}

// counter looks a counter up.
func (c *counts) counter(rank fairqueue.Rank, d limit.Decision, why limit.Reason) prometheus.Counter {
	return telemetry.Requests.WithLabelValues(c.limit.Name, d.String(), why.String(), rank.String())
}

// decided counts what has become of a request.
func (c *counts) decided(v *visit) {
	rank := fairqueue.Rank(unranked)
	if v.Shares() {
		rank = v.slot.Rank
		c.passed(v.client.State.Event())
	}
	counter := c.requests[rank][v.decision][v.reason]
	if counter == nil {
		counter = c.counter(rank, v.decision, v.reason)
	}
	counter.Inc()
	switch v.decision {
	case limit.Admitted, limit.Delayed:
		if w := c.waits[rank]; w != nil && !c.limit.Shadow {
			w().Observe(v.Waited.Seconds())
		}
	case limit.Refused, limit.ShadowRefused:
		c.refusals[v.decision].Note(v.key())
	}
}

// failed counts a request for which a matcher has failed, and warns.
func (c *counts) failed(err error, enforced bool) {
	d, warning := limit.ShadowRefused, "a matcher fails, so requests would if in_flight were enforced"
	if enforced {
		d, warning = limit.Refused, "a matcher fails, and requests with it"
	}
	c.counter(unranked, d, limit.Error).Inc()
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

// load returns how busy the limit is, for its log.
func (c *counts) load() []zap.Field {
	load := c.limit.State.Gate.Load()
	fields := []zap.Field{zap.Int("running", load.Running), zap.Int("slots", c.limit.Slots), zap.Int("waiting", load.Queued)}
	if c.limit.Shares() { // which alone predicts waits by the mean
		fields = append(fields, zap.Float64("mean_seconds", load.Mean.Seconds()))
	}
	return fields
}
