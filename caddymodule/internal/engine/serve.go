package engine

import (
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
)

// A Handler is a handler as it runs: its zones, and whom they concern.
type Handler struct {
	limit.Directive

	engine  *Engine
	handled atomic.Uint64 // requests
	Match   limit.Matchers
	headers []string // in which the upstream says what a request cost
	timed   bool     // how long the upstream takes says so
	refunds bool     // what it answers may earn a refund
}

// NewHandler returns the handler of zones, for the requests that match, or for all. It is
// provisioned in this context.
func NewHandler(ctx caddy.Context, e *Engine, match limit.Matchers, zones []*Zone) *Handler {
	server, forErrors := e.JoinServer(ctx)
	h := &Handler{engine: e, Match: match, Directive: limit.Directive{Server: server}}
	for _, z := range zones {
		h.Zones = append(h.Zones, z.Zone)
		if z.Settle != nil && z.Settle.Name != "" && !slices.Contains(h.headers, z.Settle.Name) {
			h.headers = append(h.headers, z.Settle.Name)
		}
		h.timed = h.timed || z.Settle != nil && z.Settle.Source == limit.BySeconds
		h.refunds = h.refunds || len(z.Refund) > 0
		h.Follows = h.Follows || z.Delay != nil || z.Settle != nil || len(z.Refund) > 0
	}
	for _, z := range zones {
		if !forErrors { // where nothing is charged
			z.Directives, z.handled = append(z.Directives, h.Zones), append(z.handled, &h.handled)
		}
	}
	warnKeys(zones, e.Warner)
	return h
}

// ServeHTTP implements caddyhttp.MiddlewareHandler: it decides about the request, lets it wait
// until its delay is over, and then refuses it, or serves it and settles. Requests in an error
// route and those of the server itself cost nothing.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) (err error) {
	h.handled.Add(1)
	free := h.Server.ErrorOf(r) != nil || limit.Included(r)
	var shared *record.Record // with other handlers, if there are any
	if !free && h.Server.Nests() {
		shared = record.Of(r)
		shared.Refused = true // unless it is passed on: a matcher or the store may panic
	}
	concerned, failed := h.Concerns(r)
	var v *limit.Verdict // nil if the request is free, or nobody needs to know more of it
	if concerned && !free {
		if h.engine.Shared != nil {
			h.engine.Shared.Hold() // since what uses it may outlive the config
			defer h.engine.Shared.Release()
			h.awaitStore(r)
		}
		if v, err = limit.Decide(r, failed, &h.Directive, h.engine); err != nil {
			return h.fail(w, r, err)
		}
		if v != nil {
			if admitted, err := h.admit(w, r, v); !admitted {
				return err
			}
		}
	}
	if shared != nil {
		shared.Refused = false
	}
	switch {
	case v != nil:
		defer func() { v.Close(r, err) }()
		return h.serve(w, r, next, v, shared)
	case concerned && len(h.headers) > 0: // clients never see what the upstream says that a request cost
		return (&limit.Observer{Headers: h.headers, Shared: shared}).Serve(w, r, next)
	}
	return next.ServeHTTP(w, r)
}

// admit lets a request wait until its delay is over. One that is not admitted it answers.
func (h *Handler) admit(w http.ResponseWriter, r *http.Request, v *limit.Verdict) (admitted bool, err error) {
	defer func() {
		if !admitted {
			v.Close(r, err)
		}
	}()
	gaveUp := !v.Refused() && !v.Wait(r, h.engine.Exiting) // it was charged, and may be refused now
	if gaveUp {
		h.engine.Correct(v.GiveBack(false))
	}
	var now time.Time // of a refusal; nobody else asks
	if v.Overflows() {
		now = time.Now()
	}
	v.Report(r, now, w.Header())
	switch {
	case v.Refused():
		if h.Announces {
			v.Announce(w.Header())
		}
		refusal := v.Refusal(r, &h.engine.Control.Refusals, now)
		if len(h.engine.watchers) > 0 {
			refusal.Close = h.engine.notifyRefused(r, v)
		}
		return false, refusal.Write(w, r, body.Whole(r))
	case gaveUp:
		w.WriteHeader(response.StatusClientLeft)
		return false, nil
	}
	return true, nil
}

// fail answers a request about which there is no verdict.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) error {
	switch {
	case errors.Is(err, body.ErrTimeout):
		if r.ProtoMajor == 1 { // over HTTP/2 it would end all requests of the connection
			w.Header().Set("Connection", "close")
		}
		w.WriteHeader(http.StatusRequestTimeout)
	case errors.Is(err, body.ErrLeft):
		w.WriteHeader(response.StatusClientLeft)
	default:
		return err
	}
	return nil
}

// awaitStore waits at the start of the process until the store was reached, or not in time. A
// request that only shadow zones concern does not wait.
func (h *Handler) awaitStore(r *http.Request) {
	if h.engine.Shared.Ready() {
		return
	}
	s := limit.NewSubject(r)
	if exempt, _ := s.MatchesEveryAddress(h.engine.Exempt); exempt {
		return
	}
	for _, z := range h.Zones {
		if z.Shadow != nil {
			continue
		}
		if concerned, _, err := z.Concerns(&s); err != nil || concerned {
			h.engine.Shared.Await(r.Context())
			return
		}
	}
}

// Concerns reports whether the directive's matcher matches a request. If the matcher
// fails, the zones say what becomes of the request.
func (h *Handler) Concerns(r *http.Request) (concerned bool, failed error) {
	if h.Match == nil {
		return true, nil
	}
	return h.matches(r)
}

func (h *Handler) matches(r *http.Request) (concerned bool, failed error) {
	s := limit.NewSubject(r)
	concerned, failed = s.MatchesAnyAddress(h.Match)
	return concerned || failed != nil, failed
}

// serve calls the next handler. Whatever happens there, serve then corrects the charges.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, v *limit.Verdict, shared *record.Record) error {
	asked := shared.Asked(r)
	if len(h.headers) == 0 && !h.Announces && !v.Awaits() {
		if shared != nil {
			defer h.settle(r, v, nil, shared, asked)
		}
		return next.ServeHTTP(w, r)
	}
	observer := &limit.Observer{Headers: h.headers, Shared: shared, Timed: h.timed}
	var before http.Header // as handlers around have set it
	if h.refunds {
		before = w.Header().Clone()
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	observer.BeforeHeaders = func(status int, header http.Header) {
		if h.refunds && !observer.Left() {
			own := header.Clone()
			for name, values := range before {
				withdraw(own, name, values)
			}
			v.Answered(time.Now(), status, own, header)
		}
		if !shared.RefusedUnasked(r, asked) {
			h.engine.Correct(v.Settle(observer, true))
		}
		// What a cache keeps for everybody tells nothing of one client.
		if h.Announces && response.Private(header) && (!reads || response.SaysPrivate(header)) {
			v.Announce(header)
		}
	}
	defer h.settle(r, v, observer, shared, asked)
	return observer.Serve(w, r, next)
}

// withdraw removes some of the values of a field, and with the last one the field.
func withdraw(header http.Header, name string, values []string) {
	header[name] = slices.DeleteFunc(header[name], func(value string) bool { return slices.Contains(values, value) })
	if len(header[name]) == 0 {
		delete(header, name)
	}
}

// settle corrects the charges to what the request really cost: nothing if it was refused
// further in and no upstream was asked, and otherwise what the observer, which may be nil, has seen.
func (h *Handler) settle(r *http.Request, v *limit.Verdict, observer *limit.Observer, shared *record.Record, asked any) {
	switch {
	case shared.RefusedUnasked(r, asked):
		h.engine.Correct(v.GiveBack(true))
	case observer != nil:
		h.engine.Correct(v.Settle(observer, false))
	}
}
