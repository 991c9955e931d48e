package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/detached"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler limits the rate of requests with leaky buckets. It charges each request to
// one bucket in every zone that matches it, all or none. A request that does not
// fit is refused with a Retry-After that says when to come back. A zone charges a
// request once, even if it is rewritten or passes several handlers. Inside error
// routes it charges nothing, and takes a slot of in_flight if the request holds none.
type Handler struct {
	config.Handler
	running *throttler
}

// Running returns the handler as it runs.
func (h *Handler) Running() *throttler { return h.running }

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.throttle",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision finds or compiles the handler's zones.
func (h *Handler) Provision(ctx caddy.Context) error {
	module, err := ctx.App("throttle")
	if err != nil {
		return err
	}
	app := module.(*App)
	if err := app.checkServers(ctx); err != nil {
		return err
	}
	if len(h.Zone) == 0 {
		return errors.New("no zone given: want at least one")
	}
	for _, set := range h.Match {
		if doubt := config.Doubtful(set, false); doubt != "" {
			app.engine.warner.Warn(doubt)
		}
	}
	match, err := config.LoadMatchers(ctx, h, "Match", h.Match)
	if err != nil {
		return err
	}
	names, twins := make(map[string]bool), make(config.TwinZones)
	var zones []*runningZone
	for _, definition := range h.Zone {
		z, err := app.zoneOf(ctx, definition)
		if err != nil {
			return err
		}
		if names[z.Name] {
			return fmt.Errorf("zone %q is given twice in one handler", z.Name)
		}
		names[z.Name] = true
		if err := twins.Add(z.Name, z.definition); err != nil {
			return err
		}
		zones = append(zones, z)
	}
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	h.running = newThrottler(app.engine, server, match, zones)
	h.running.announces = h.RateLimitHeaders
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return h.running.ServeHTTP(w, r, next)
}

// A throttler is a handler as it runs: its zones, and whom they concern.
type throttler struct {
	app     *engine
	server  *caddyhttp.Server // whose routes the handler is in; nil outside of the HTTP app
	zones   []*decision.Zone
	match   rule.Matchers
	plain   bool               // once a request is admitted, no zone has any more to do with it
	headers settlement.Headers // in which the upstream says what a request cost, and who its user is
	told    []string           // of these, who its user is

	announces bool // sends the rate-limit headers
}

// A directive is a module that runs as a throttler.
type directive interface{ Running() *throttler }

// newThrottler returns the handler of zones, for the requests that match, or for all.
func newThrottler(e *engine, server *caddyhttp.Server, match rule.Matchers, zones []*runningZone) *throttler {
	h := &throttler{app: e, server: server, match: match}
	var settles []*settlement.Rule
	for _, z := range zones {
		z.handlers = append(z.handlers, h)
		h.zones = append(h.zones, z.Zone)
		settles = append(settles, z.Settle)
		h.addTold(z)
	}
	h.headers = settlement.HeadersOf(settles...).With(h.told...)
	h.plain = len(h.headers) == 0 && !slices.ContainsFunc(zones, func(z *runningZone) bool { return !z.Plain() })
	warnKeys(zones, match, e.warner)
	return h
}

// warnKeys logs a warning if clients can evade all zones by making up keys, or if one client
// can have all others refused.
func warnKeys(zones []*runningZone, match rule.Matchers, logger *zap.Logger) {
	for _, z := range zones {
		if z.Key.HasAddress() && !z.inventable {
			return
		}
	}
	for _, z := range zones {
		switch {
		case z.warnedKey:
		case z.inventable:
			z.warnedKey = true
			logger.Warn("zone is keyed by values that clients choose, so a client can get a fresh bucket with every request: add a zone keyed by client_ip",
				zap.String("zone", z.Name))
		case z.common && match == nil:
			z.warnedKey = true
			logger.Warn("all clients share one bucket of the zone, so one client can have all others refused: add client_ip to its key, or a zone keyed by client_ip",
				zap.String("zone", z.Name))
		}
	}
}

// ServeHTTP implements caddyhttp.MiddlewareHandler. It decides about the request,
// holds it until its delay is over, its body is buffered and its slots are free, and
// then refuses or serves it.
func (h *throttler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	concerned, failed := h.concerns(r)
	if !concerned {
		return next.ServeHTTP(w, r)
	}
	h.stripTold(r)
	switch {
	case r.Context().Value(caddyhttp.ErrorCtxKey) != nil:
		return h.serveError(w, r, next)
	case included(r):
		return h.serveInternal(w, r, next)
	}
	// A function with many defers and returns calls them one by one, which is slow. This
	// one has few enough, so none of them depends on a condition.
	h.app.hold()
	defer h.app.release()
	config := h.app.configNumber.Load() // before the overrides, which may change meanwhile
	res, reader, err := decision.Decide(h.asked(r, failed), h.app)
	defer reader.End(w)
	if err != nil {
		return err
	}
	buffer, stayed := h.admit(r, res)
	defer buffer.End(w)
	refused := res.Refused()
	var now time.Time // only refusals need it
	if refused {
		now = time.Now()
	}
	if res != nil {
		limits := h.app.limitsLog && decision.Logged(r, h.server)
		if logged := res.Report(now, w.Header(), limits); limits && !logged {
			caddyhttp.SetVar(r.Context(), caddyhttp.LogSkipVar, true)
		}
		if h.announces {
			res.Announce(w.Header())
		}
	}
	if refused || !stayed {
		res.NotServed(r)
	}
	switch {
	case refused:
		buffer.End(w) // before the refusal says how the connection ends
		reader.End(w)
		refusal := res.Refusal(&h.app.control.refusals, now)
		refusal.Close = h.app.drops && h.app.addDropped(r, res, config)
		err = refusal.Write(w, r, body.Received(r))
		if err == nil {
			h.app.watchCaches(w.Header())
		}
		return err
	case buffer.Slow():
		buffer.End(w)
		return refuseSlow(w, r)
	case !stayed:
		w.WriteHeader(response.StatusClientLeft)
		return nil
	}
	return h.serve(w, r, next, res)
}

// concerns reports whether the directive's matcher matches a request. If the matcher
// fails, the zones say what becomes of the request.
func (h *throttler) concerns(r *http.Request) (concerned bool, failed error) {
	if h.match == nil {
		return true, nil
	}
	s := rule.NewSubject(r)
	concerned, failed = s.Matches(h.match)
	return concerned || failed != nil, failed
}

// asked returns what the decision about a request is asked. failed is the error of the
// directive's matcher.
func (h *throttler) asked(r *http.Request, failed error) decision.Request {
	return decision.Request{Request: r, Zones: h.zones, Server: h.server, Failed: failed}
}

// serveInternal serves a request that is not charged.
func (h *throttler) serveInternal(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if len(h.headers) > 0 {
		return (&settlement.Observer{Headers: h.headers}).Serve(w, r, next)
	}
	return next.ServeHTTP(w, r)
}

// includeAddr is the client address of requests that Caddy's templates make with
// httpInclude.
const includeAddr = "127.0.0.1:10000"

// included reports whether the server itself sends a request through the handlers, to
// include its answer in another one. Such requests are not charged. Requests from sockets
// have a local address in their context, which no header can take away.
func included(r *http.Request) bool {
	return r.RemoteAddr == includeAddr && r.Context().Value(http.LocalAddrContextKey) == nil
}

// admit holds the request until its delay is over, its body is buffered and its slots
// are free, and simulates that for shadow zones. It returns false if the client left
// meanwhile. Afterwards res tells whether the request is refused. The buffer, if not
// nil, has replaced the request's body and must be ended.
func (h *throttler) admit(r *http.Request, res *decision.Verdict) (buffer *body.Ahead, stayed bool) {
	if h.plain || !res.Holds() || res.Refused() {
		return nil, true
	}
	since := clock.Now(h.app.clock)
	res.Simulate(since, h.refundLater)
	var room [2]admission.Entry
	entries := res.Entries(room[:0])
	if len(entries) == 0 {
		res.Begin()
		return nil, true
	}
	outer := decision.VerdictOf(r).Serving()
	outer.Pause()
	defer outer.Resume()
	var grant *admission.Grant
	var result admission.Result
	if most, index := res.RequestBuffer(); most > 0 && !body.Received(r) {
		buffer, result = h.buffer(r, since, entries, most, index)
	}
	if result.Why == admission.Admitted {
		grant, result = h.app.gate.Admit(detached.Client(r.Context()), since, entries, res.OuterGrant(r))
	}
	stayed, refunds := res.Admitted(grant, result, entries)
	if len(refunds) > 0 {
		h.refund(refunds)
	}
	return buffer, stayed
}

// buffer waits until the request's delay is over, and then buffers its body, as the
// entry of that index wants it. Of the entries only slots are left after that.
func (h *throttler) buffer(r *http.Request, since time.Time, entries []admission.Entry, most int64, index int) (*body.Ahead, admission.Result) {
	delays := slices.Clone(entries)
	for i := range entries {
		delays[i].InFlight, entries[i].Delay = 0, 0
	}
	subject, client := rule.NewSubject(r), detached.Client(r.Context())
	if _, result := h.app.gate.Admit(client, since, delays, nil); result.Why != admission.Admitted {
		return nil, result
	}
	buffer, ended := requestBuffers.Fill(client, r, subject.Client(), most, h.app.gate.Exiting)
	switch ended {
	case body.Left, body.TooSlow:
		return buffer, admission.Result{Why: admission.Left, Index: -1} // it waited in no zone
	case body.Exiting:
		return buffer, admission.Result{Why: admission.Exiting, Index: index}
	}
	return buffer, admission.Result{Why: admission.Admitted}
}

// refundLater gives back a charge for which no request waits.
func (h *throttler) refundLater(refund leakybucket.Settlement) {
	h.app.hold()
	clock.AfterFunc(h.app.clock, 0, func() {
		defer h.app.release()
		h.refund([]leakybucket.Settlement{refund})
	})
}

// refund gives back the charges of a request that is not served.
func (h *throttler) refund(settlements []leakybucket.Settlement) {
	if err := h.app.store.Settle(context.Background(), settlements); err != nil && h.app.shared == nil {
		h.app.logger.Error("refunding a request that was not served; it stays charged", zap.Error(err))
	}
}

// serve calls the next handler. Whatever happens there, serve then releases the
// slots and corrects the charges, in this order, so no slot waits for the store. If the
// next handler returns an error, the slots stay held until the error route has answered.
func (h *throttler) serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, res *decision.Verdict) (err error) {
	if h.plain {
		return next.ServeHTTP(w, r)
	}
	holds := res.Holds()
	tunnel := holds && response.MayTunnel(r)
	var call *detachedCall
	if holds && res.TakesTurns() {
		call = &detachedCall{next: next, res: res, exiting: h.app.gate.Exiting}
		next = call
	}
	var paced *body.Paced
	if holds && res.TakesSlot() {
		paced = body.Pace(detached.Client(r.Context()), w, r)
	}
	trusts, passes, simulates := res.Trusts(), res.SendsPasses(), holds && res.SimulatesTurns()
	if len(h.headers) == 0 && !tunnel && !trusts && !passes && !simulates && paced == nil && !res.Settles() {
		if holds {
			defer func() { h.releaseAfter(r, res, err) }()
		}
		return next.ServeHTTP(w, r)
	}
	first := decision.VerdictOf(r)
	observer := &settlement.Observer{Headers: h.headers, Meters: res.Measured(), Clock: h.app.clock}
	if tunnel {
		observer.Tunnel = res
	}
	if trusts || passes || paced != nil {
		observer.BeforeHeaders = func(status int, header http.Header) {
			if paced != nil && body.Conversation(header.Get("Content-Type")) {
				paced.Free()
			}
			h.sendCookies(r, res, status, header)
		}
	}
	observer.Outer = first.Observe(observer)
	switch {
	case simulates && call != nil:
		call.simulates = observer
	case simulates:
		body.WhenSent(r, func() {}) // so that Received knows
	}
	defer func() {
		first.Observe(observer.Outer)
		switch {
		case !simulates || call != nil:
		case observer.UpstreamFailed(err):
			res.Fail()
		case observer.ClientLeft(err) && body.Received(r): // nobody works on half a request
			res.Leave()
		}
		if holds {
			h.releaseAfter(r, res, err)
		}
		h.settle(r, res, observer)
	}()
	if err = observer.Serve(w, r, next); err != nil && paced.Slow() && !observer.Answered() {
		err = refuseSlow(w, r)
	}
	return err
}

// refuseSlow answers a request whose client sends its body too slowly.
func refuseSlow(w http.ResponseWriter, r *http.Request) error {
	f := refusal.Refusal{Status: http.StatusRequestTimeout}
	return f.Write(w, r, false)
}

// A detachedCall calls the next handler for a request that holds slots for which clients
// take turns. The call goes on when the client leaves, because the upstream does, and
// the slots come free when the upstream is done: the client may still be reading.
type detachedCall struct {
	next      caddyhttp.Handler
	res       *decision.Verdict
	exiting   <-chan struct{}
	simulates *settlement.Observer // not nil if shadow zones want to know whether the upstream fails

	*settlement.Observer // the innermost one around the call, or nil
}

// ServeHTTP implements caddyhttp.Handler.
func (c *detachedCall) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	c.Observer = decision.VerdictOf(r).Serving()
	c.Apart()
	defer c.Resume() // from when it was served
	defer c.Together()
	return detached.Serve(w, r, c.next, c, c.exiting)
}

// Served implements detached.Owner.
func (c *detachedCall) Served(err error) {
	c.Pause()
	if c.simulates != nil && c.simulates.UpstreamFailed(err) {
		c.res.Fail()
	}
	if err == nil { // or an error route may ask the upstream again
		c.res.ReleaseTurns()
	}
}

// sendCookies adds the device cookies and passes to a response that it has earned, before
// its headers are sent.
func (h *throttler) sendCookies(r *http.Request, res *decision.Verdict, status int, header http.Header) {
	if res.Trusts() {
		res.Trust(status, header, h.taking(r.Context(), "looking for a place for another device of an account; this one is not trusted"))
	}
	if res.SendsPasses() {
		res.SendPasses(r, status, header, h.taking(r.Context(), "counting the new members of a network; this client is not one of them"))
	}
}

// taking returns a function that asks the store, and logs what fails.
func (h *throttler) taking(ctx context.Context, failure string) func([]leakybucket.Charge, []leakybucket.Decision) bool {
	return func(charges []leakybucket.Charge, decisions []leakybucket.Decision) bool {
		err := h.app.store.Take(ctx, charges, decisions)
		if err != nil {
			h.app.logger.Error(failure, zap.Error(err))
		}
		return err == nil
	}
}

// settle corrects the charges to what the request really cost.
func (h *throttler) settle(r *http.Request, res *decision.Verdict, observer *settlement.Observer) {
	if res == nil {
		return
	}
	due := res.Settle(observer)
	if len(res.Static()) > 0 && staticfile.UpstreamAnswered(r, observer.Header()) {
		due = h.chargeStatic(r, res, due)
	}
	if len(due) > 0 {
		// The client's leaving must not keep it from paying. A shared store tells its
		// observer itself.
		if err := h.app.store.Settle(context.Background(), due); err != nil && h.app.shared == nil {
			res.Unsettled(due)
			h.app.logger.Error("settling; the reservations stay", zap.Error(err))
		}
	}
	if refunds := res.Settled(); len(refunds) > 0 {
		h.refund(refunds)
	}
}

// chargeStatic appends the charges of a request that was exempt as one for a static
// file, and that the upstream answered after all.
func (h *throttler) chargeStatic(r *http.Request, res *decision.Verdict, due []leakybucket.Settlement) []leakybucket.Settlement {
	static := res.Static()
	for i := range static {
		e := &static[i]
		e.Zone.Reporter.ServedStatic(r)
		if e.Charged {
			due = append(due, leakybucket.Settlement{Charge: e.Charge, Diff: e.Charge.Cost})
		}
	}
	return due
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ detached.Owner              = (*detachedCall)(nil)
)
