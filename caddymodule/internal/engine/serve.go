package engine

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
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
	headers         settlement.Headers // in which the upstream says what a request cost
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
	}
	for _, z := range zones {
		z.Directives, z.handled = append(z.Directives, h.Zones), append(z.handled, &h.handled)
	}
	h.endsAtAdmission = len(h.headers) == 0 && !slices.ContainsFunc(zones, func(z *Zone) bool { return !z.EndsAtAdmission() })
	if !slices.ContainsFunc(zones, (*Zone).namesPlaceholders) {
		h.Unread = e.unread[server]
	}
	h.Unread.Verdict = h.Unread.Verdict && server.Logs == nil
	warnKeys(zones, match, e.Warner)
	if match == nil {
		warnBursts(zones, e.Warner)
	}
	return h
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
		case match == nil && z.Match == nil && !z.Key.HasAddress() && !config.ClientChosen(z.Config.Key.Sources):
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
		if z.Limit.Capacity == 1 && z.Match == nil && z.Settle == nil && z.Delay == nil && !z.warnedBurst {
			z.warnedBurst = true
			logger.Warn("zone lets each client send one request at a time, and browsers send several at once: want more, such as limit 120 2/s",
				zap.String("zone", z.Name))
		}
	}
}

// ServeHTTP implements caddyhttp.MiddlewareHandler. Requests that concern the zones are
// decided about, but for those in an error route and those of the server itself, which cost
// nothing.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	h.handled.Add(1)
	concerned, failed := h.Concerns(r)
	s := rule.Subject{Request: r}
	switch {
	case !concerned:
		return next.ServeHTTP(w, r)
	case h.errorRoutes && r.Context().Value(caddyhttp.ErrorCtxKey) != nil, s.Included():
		return h.serveFree(w, r, next)
	}
	return h.decide(w, r, next, failed)
}

// decide decides about a request, lets it wait until its delay is over, and then refuses or
// serves it. failed is the error of the directive's matcher.
func (h *Handler) decide(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, failed error) error {
	// If a function's defers times its returns are more than 15, the compiler calls them one
	// by one, which is slow.
	h.app.hold()
	passed := false
	defer func() {
		h.app.release()
		h.refusedUnless(passed, r)
	}()
	h.awaitStore(r)
	config := h.app.configNumber.Load() // before the overrides, which may change meanwhile
	now := time.Now()
	res, reader, err := decision.Decide(r, now, failed, &h.Directive, h.app)
	defer reader.End(w)
	if err != nil {
		return err
	}
	stayed := true
	if !h.endsAtAdmission && !res.Refused() {
		if stayed = res.Wait(record.ClientOf(r), h.app.Exiting); !stayed {
			h.app.correct(res.GiveBack(nil))
		}
		now = time.Now() // it may be long since
	}
	refused := res.Refused()
	var header http.Header
	if h.addsHeaders || h.Announces {
		header = w.Header()
	}
	res.Report(r, &h.Directive, now, header)
	switch {
	case refused:
		reader.End(w) // before the refusal reads what is left of the body
		return h.refuse(w, r, res, config, now)
	case !stayed:
		w.WriteHeader(response.StatusClientLeft)
		return nil
	}
	passed = true
	if h.endsAtAdmission && h.Unread.Record {
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
		if z.Shadow {
			continue
		}
		if concern, err := z.Concerns(&s); err != nil || concern == rule.Concerned {
			h.app.Shared.Await(r.Context())
			return
		}
	}
}

// refuse answers a request that is refused. config is the number of the config when the
// decision began.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, res *decision.Verdict, config uint64, now time.Time) error {
	refusal := res.Refusal(&h.app.Control.Refusals, now)
	refusal.Close = h.app.tellRefused(r, res, config)
	err := refusal.Write(w, r, body.AllReceived(r))
	res.Forget()
	return err
}

// Concerns reports whether the directive's matcher matches a request. If the matcher
// fails, the zones say what becomes of the request.
func (h *Handler) Concerns(r *http.Request) (concerned bool, failed error) {
	if h.Match == nil {
		return true, nil
	}
	asked := false
	defer func() { h.refusedUnless(asked, r) }()
	s := rule.NewSubject(r)
	concerned, failed = s.Matches(h.Match)
	asked = true
	return concerned || failed != nil, failed
}

// refusedUnless tells the handlers around that the request has ended here, unless it was
// passed on. It is deferred: a matcher or the store may panic.
func (h *Handler) refusedUnless(passed bool, r *http.Request) {
	if !passed && !h.Unread.Record {
		record.Of(r).Refused = true
	}
}

// serveFree serves a request that is not charged.
func (h *Handler) serveFree(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if len(h.headers) > 0 {
		return (&settlement.Observer{Headers: h.headers}).Serve(w, r, next)
	}
	return next.ServeHTTP(w, r)
}

// serve calls the next handler. Whatever happens there, serve then corrects the charges.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, res *decision.Verdict) error {
	needs := res.Needs()
	var observer *settlement.Observer
	if len(h.headers) > 0 || needs.Cookies || needs.Settles {
		observer = &settlement.Observer{Headers: h.headers, OwnHeader: needs.OwnHeader}
		if needs.Cookies {
			observer.BeforeHeaders = func(status int, header http.Header) {
				res.SendCookies(r, time.Now(), status, header, observer.Own(), h.app.Take)
			}
		}
	}
	if observer != nil && !h.Unread.Verdict { // else no other handler has one
		observer.Within(r)
		defer observer.Leave(r)
	}
	defer func() {
		if res != nil {
			h.settle(r, res, observer)
			res.Forget()
		}
	}()
	if observer == nil {
		return next.ServeHTTP(w, r)
	}
	return observer.Serve(w, r, next)
}

// settlements is memory for those of a request. Stores keep none.
var settlements = sync.Pool{New: func() any { return new([]leakybucket.Settlement) }}

// settle corrects the charges to what the request really cost: nothing if it was refused
// further in, and otherwise what the observer, which may be nil, has seen.
func (h *Handler) settle(r *http.Request, res *decision.Verdict, observer *settlement.Observer) {
	refused := false
	if !h.Unread.Record {
		within := record.Find(r.Context())
		refused = within != nil && within.Refused
	}
	if !refused && observer == nil {
		return
	}
	room := settlements.Get().(*[]leakybucket.Settlement)
	due := (*room)[:0]
	if refused {
		due = res.GiveBack(due)
	} else {
		due = res.Settle(r, time.Now(), due, observer)
	}
	h.app.correct(due)
	clear(due)
	*room = due
	settlements.Put(room)
}
