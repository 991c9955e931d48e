package engine

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Handler is a handler as it runs: its zones, and whom they concern.
type Handler struct {
	decision.Directive // its Server is nil outside of the HTTP app

	app             *Engine
	handled         atomic.Uint64 // requests
	Match           rule.Matchers
	endsAtAdmission bool               // once a request is admitted, no zone has any more to do with it
	errorRoutes     bool               // the server may have some, which the handler may be in
	headers         settlement.Headers // in which the upstream says what a request cost, and who its user is
	told            []string           // of these, who its user is
	addsHeaders     bool               // a zone marks responses
}

// A Directive is a module that runs as a handler.
type Directive interface{ Running() *Handler }

// NewHandler returns the handler of zones, for the requests that match, or for all.
func NewHandler(e *Engine, server *caddyhttp.Server, match rule.Matchers, zones []*Zone) *Handler {
	h := &Handler{app: e, Match: match, errorRoutes: server == nil || server.Errors != nil}
	h.Server = server
	for _, z := range zones {
		h.addsHeaders, h.LimitsLog = h.addsHeaders || z.ServerTiming, h.LimitsLog || z.LogLimit != nil
		h.Zones = append(h.Zones, z.Zone)
		if z.Settle != nil {
			h.headers = h.headers.With(z.Settle.Header)
		}
		if pass := z.Pass(); pass != nil {
			for _, told := range pass.Told {
				h.told = append(h.told, told.Header)
			}
		}
	}
	for _, z := range zones {
		z.Directives, z.handled = append(z.Directives, h.Zones), append(z.handled, &h.handled)
	}
	h.headers = h.headers.With(h.told...)
	h.endsAtAdmission = len(h.headers) == 0 && !slices.ContainsFunc(zones, func(z *Zone) bool { return !z.EndsAtAdmission() })
	if !slices.ContainsFunc(zones, (*Zone).namesPlaceholders) {
		h.Unread = e.unread[server]
	}
	h.Unread.Verdict = h.Unread.Verdict && (h.endsAtAdmission || !h.errorRoutes) && server.Logs == nil
	warnKeys(zones, match, e.Warner)
	if match == nil {
		warnBursts(zones, e.Warner)
	}
	return h
}

// stripTold removes headers from a request by which only the upstream may name users.
func (h *Handler) stripTold(r *http.Request) {
	for _, name := range h.told {
		delete(r.Header, name)
	}
}

// warnKeys logs a warning if clients can evade all zones by making up keys, or if one client
// can have all others refused.
func warnKeys(zones []*Zone, match rule.Matchers, logger *zap.Logger) {
	for _, z := range zones {
		if z.Key.HasAddress() && !z.clientChosen() {
			return
		}
	}
	for _, z := range zones {
		switch {
		case z.warnedKey:
		case z.clientChosen():
			z.warnedKey = true
			logger.Warn("zone is keyed by values that clients choose, so a client can get a fresh bucket with every request: add a zone keyed by client_ip",
				zap.String("zone", z.Name))
		case match == nil && z.Match == nil && !z.SlotsOnly() && !z.Key.HasAddress() && !config.ClientChosen(z.Config.Key.Sources):
			z.warnedKey = true
			logger.Warn("all clients share one bucket of the zone, so one client can have all others refused: add client_ip to its key, or a zone keyed by client_ip",
				zap.String("zone", z.Name))
		}
	}
}

// warnBursts logs a warning about zones of all pages that let a client send one request at a
// time.
func warnBursts(zones []*Zone, logger *zap.Logger) {
	for _, z := range zones {
		one := z.Limit.Capacity == 1 || z.SlotsOnly() && z.InFlight == 1 && z.MaxWait == 0
		if one && z.Match == nil && z.Settle == nil && z.Delay == nil && !z.warnedBurst {
			z.warnedBurst = true
			logger.Warn("zone lets each client send one request at a time, and browsers send several at once: want more, such as limit 120 2/s or in_flight 3 wait 10s",
				zap.String("zone", z.Name))
		}
	}
}

// ServeHTTP implements caddyhttp.MiddlewareHandler. Requests that concern the zones are
// decided about, but for those in an error route, which take slots only, and those of the
// server itself.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	h.handled.Add(1)
	concerned, failed := h.concerns(r)
	if !concerned {
		return next.ServeHTTP(w, r)
	}
	h.stripTold(r)
	switch {
	case h.errorRoutes && r.Context().Value(caddyhttp.ErrorCtxKey) != nil:
		return h.serveError(w, r, next)
	case included(r):
		return h.serveInternal(w, r, next)
	}
	return h.decide(w, r, next, failed)
}

// decide decides about a request, holds it until its delay is over, its body is buffered and
// its slots are free, and then refuses or serves it. failed is the error of the directive's
// matcher.
func (h *Handler) decide(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, failed error) error {
	// If a function's defers times its returns are more than 15, the compiler calls them one
	// by one, which is slow.
	h.app.hold()
	defer h.app.release()
	h.awaitStore(r)
	config := h.app.configNumber.Load() // before the overrides, which may change meanwhile
	res, reader, err := decision.Decide(r, failed, &h.Directive, h.app)
	defer reader.End(w)
	if err != nil {
		return err
	}
	var buffer *body.Ahead
	stayed := true
	if !h.endsAtAdmission {
		var refunds []leakybucket.Settlement
		buffer, stayed, refunds = res.Admit(r, &h.app.Door)
		defer buffer.End(w)
		h.app.refund(refunds)
	}
	refused := res.Refused()
	var now time.Time // only refusals need it
	if refused {
		now = time.Now()
	}
	var header http.Header
	if h.addsHeaders || h.Announces {
		header = w.Header()
	}
	res.Report(r, &h.Directive, now, header)
	switch {
	case refused:
		buffer.End(w) // before the refusal reads what is left of the body
		reader.End(w)
		return h.refuse(w, r, res, config, now)
	case !stayed:
		return h.turnAway(w, r, res, buffer)
	case h.endsAtAdmission:
		res.Forget()
		return next.ServeHTTP(w, r)
	}
	return h.serve(w, r, next, res)
}

// awaitStore waits at the start of the process until the store was reached, or not in time. A
// request that only shadow zones concern does not wait.
func (h *Handler) awaitStore(r *http.Request) {
	if h.app.Shared == nil || h.app.Shared.Ready() {
		return
	}
	s := rule.NewSubject(r)
	if exempt, _ := h.app.ExemptsGlobally(&s); exempt {
		return
	}
	for _, z := range h.Zones {
		if z.Shadow != 0 {
			continue
		}
		if concern, err := z.Concerns(&s); err != nil || concern == rule.Concerned {
			h.app.Shared.Await(r.Context())
			return
		}
	}
}

// turnAway answers a request whose client has left, or sends its body too slowly.
func (h *Handler) turnAway(w http.ResponseWriter, r *http.Request, res *decision.Verdict, buffer *body.Ahead) error {
	res.NotServed()
	if buffer.Slow() {
		buffer.End(w)
		return refuseSlow(w, r)
	}
	w.WriteHeader(response.StatusClientLeft)
	return nil
}

// refuse answers a request that is refused. config is the number of the config when the
// decision began.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, res *decision.Verdict, config uint64, now time.Time) error {
	res.NotServed()
	refusal := res.Refusal(r, &h.app.Control.Refusals, now)
	refusal.Close = h.app.tellRefused(r, res, config)
	err := refusal.Write(w, r, body.AllReceived(r))
	res.Forget()
	return err
}

// concerns reports whether the directive's matcher matches a request. If the matcher
// fails, the zones say what becomes of the request.
func (h *Handler) concerns(r *http.Request) (concerned bool, failed error) {
	if h.Match == nil {
		return true, nil
	}
	s := rule.NewSubject(r)
	concerned, failed = s.Matches(h.Match)
	return concerned || failed != nil, failed
}

// serveInternal serves a request that is not charged.
func (h *Handler) serveInternal(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
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

// serve calls the next handler. Whatever happens there, serve then releases the
// slots and corrects the charges, in this order, so no slot waits for the store. If the
// next handler returns an error, the slots stay held until the error route has answered.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, res *decision.Verdict) (err error) {
	needs := res.Needs()
	tunnel := needs.Held && response.MayTunnel(r)
	var paced *body.Paced
	if needs.Slot {
		paced = body.Pace(res.Client(r), w, r)
	}
	var observer *settlement.Observer
	if len(h.headers) > 0 || tunnel || needs.Cookies || needs.Simulates || paced != nil || needs.Settles {
		observer = &settlement.Observer{Headers: h.headers, OwnHeader: needs.OwnHeader, Clock: h.app.Clock}
		if tunnel {
			observer.Tunnel = res
		}
		if needs.Cookies || paced != nil {
			observer.BeforeHeaders = h.beforeHeaders(r, res, paced, observer)
		}
	}
	if observer != nil && !h.Unread.Verdict { // else no other handler has one
		observer.Within(r)
		defer observer.Leave(r)
	}
	switch {
	case needs.Turns:
		next = &detachedCall{next: next, res: res, exiting: h.app.Gate.Exiting, observer: observer, simulates: needs.Simulates}
	case needs.Simulates:
		body.Track(r)
	}
	defer func() { // simulations are told how it ended, then slots come free, then charges are corrected
		switch {
		case !needs.Simulates || needs.Turns:
		case observer.UpstreamFailed(err):
			res.Saw(admission.Failed)
		case observer.ClientLeft(err) && body.AllReceived(r): // nobody works on half a request
			res.Saw(admission.ClientLeft)
		}
		if needs.Held {
			h.releaseAfter(r, res, err)
		}
		if observer != nil {
			h.settle(r, res, observer)
		}
		if err == nil && !tunnel {
			res.Forget()
		}
	}()
	if observer == nil {
		return next.ServeHTTP(w, r)
	}
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
	observer  *settlement.Observer // required if simulates
	simulates bool                 // shadow zones want to know whether the upstream fails
}

// ServeHTTP implements caddyhttp.Handler.
func (c *detachedCall) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	return detached.Serve(w, r, c.next, c.served, c.exiting)
}

// served is called when the upstream is done.
func (c *detachedCall) served(err error) {
	if c.simulates && c.observer.UpstreamFailed(err) {
		c.res.Saw(admission.Failed)
	}
	if err == nil { // or an error route may ask the upstream again
		c.res.ReleaseTurns()
	}
}

// beforeHeaders returns what is done before the headers of a response are sent: conversations
// keep no pace, and responses that have earned cookies get them.
func (h *Handler) beforeHeaders(r *http.Request, res *decision.Verdict, paced *body.Paced, observer *settlement.Observer) func(int, http.Header) {
	return func(status int, header http.Header) {
		if paced != nil && body.Conversation(header.Get("Content-Type")) {
			paced.Free()
		}
		res.SendCookies(r, status, header, observer.Own(), h.app.Take)
	}
}

// settlements is memory for those of a request. Stores keep none.
var settlements = sync.Pool{New: func() any { return new([]leakybucket.Settlement) }}

// settle corrects the charges to what the request really cost.
func (h *Handler) settle(r *http.Request, res *decision.Verdict, observer *settlement.Observer) {
	if res == nil {
		return
	}
	room := settlements.Get().(*[]leakybucket.Settlement)
	due := res.Settle(r, (*room)[:0], observer)
	if len(due) > 0 {
		// The client's leaving must not keep it from paying. A shared store tells its
		// observer itself.
		if err := h.app.Store.Settle(context.Background(), due); err != nil && h.app.Shared == nil {
			for i := range due {
				h.app.unsettled(due[i].Charge.Zone, 1)
			}
			h.app.Logger.Error("settling; the reservations stay", zap.Error(err))
		}
	}
	h.app.refund(res.Settled())
	clear(due)
	*room = due
	settlements.Put(room)
}

// An error route may ask the upstream, too. So a request that errs keeps its slots until
// its context ends, when the error route has answered it. One that errs before it takes a
// slot takes it here.

// serveError serves a request in an error route. It is charged nothing, and never queues:
// if it needs a slot and none is free, the answer is the error's status.
func (h *Handler) serveError(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	entries, turns := decision.ErrorSlots(r, &h.Directive, h.app)
	if len(entries) == 0 && !turns {
		return h.serveInternal(w, r, next)
	}
	h.app.hold()
	defer h.app.release()
	if len(entries) > 0 {
		grant, result := h.app.Gate.Admit(r.Context(), clock.Now(h.app.Clock), entries, nil)
		if result.Why != admission.Admitted {
			failed, _ := r.Context().Value(caddyhttp.ErrorCtxKey).(error)
			f := refusal.Refusal{Status: response.StatusOf(failed)}
			return f.Write(w, r, body.AllReceived(r))
		}
		decision.Hold(r, grant)
		body.Pace(r.Context(), w, r)
	}
	serve := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error { return h.serveInternal(w, r, next) })
	// The error route is the last handler, so all slots come free.
	served := func(err error) {
		for res := decision.VerdictOf(r); res != nil; res = res.Next() {
			h.releaseAfter(r, res, err)
		}
	}
	if turns {
		return detached.Serve(w, r, serve, served, h.app.Gate.Exiting)
	}
	var err error
	defer func() { served(err) }()
	err = serve(w, r)
	return err
}

// releaseAfter releases the slots of a request that was served, or, if err is not nil, once
// an error route has answered it.
func (h *Handler) releaseAfter(r *http.Request, res *decision.Verdict, err error) {
	if err == nil {
		res.Release()
		return
	}
	h.app.hold()
	context.AfterFunc(detached.Client(r.Context()), func() {
		defer h.app.release()
		res.Release()
	})
}
