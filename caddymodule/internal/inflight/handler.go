package inflight

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/call"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/gate"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

// A Handler is an in_flight where a site has it.
type Handler struct {
	*Limit
	match  limit.Matchers // nil matches all
	server *limit.Server  // in whose routes it is; nil outside of the HTTP app
}

// NewHandler returns the handler of a limit, for the requests that match, or for all.
func (l *Limit) NewHandler(server *limit.Server, match limit.Matchers) *Handler {
	l.Sites++
	return &Handler{Limit: l, match: match, server: server}
}

// ServeHTTP implements caddyhttp.MiddlewareHandler. A request that needs a slot is received, takes
// one or waits for it, is served, and gives the slot back when the upstream is done.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	v := visits.Get().(*visit)
	v.Handler, v.r = h, r
	v.subject.Look(r)
	erred := h.server.ErrorOf(r)
	v.record = v.unshared.Begin()
	if h.server.Nests() || erred != nil { // other handlers look for a record, or the request has one
		v.record = record.In(v.subject.Vars)
	}
	if erred != nil { // whether the request was refused before is for those around the error route
		defer func(around *record.Record, refused bool) { around.Refused = refused }(v.record, v.record.Refused)
	}
	v.record.Refused = true // unless it is passed on: a matcher may panic
	concerned, failed := h.concerns(&v.subject)
	v.record.Refused = false
	if !concerned && failed == nil {
		v.forget()
		return next.ServeHTTP(w, r)
	}
	err := v.answer(w, next, failed, erred)
	if v.stop == nil { // else an error route has it
		v.forget()
	}
	return err
}

// answer answers a request that needs a slot, or for which a matcher has failed. In an error route,
// erred is the error.
func (v *visit) answer(w http.ResponseWriter, next caddyhttp.Handler, failed, erred error) error {
	shadow := v.InShadow(v.subject.Overrides)
	if failed != nil {
		v.counts.failed(failed, !shadow)
		if shadow {
			return next.ServeHTTP(w, v.r)
		}
		v.record.Refused = true
		return failed
	}
	held := slices.Contains(v.record.Slots, v.Name)
	switch {
	case shadow && (held || erred != nil), held && erred == nil:
		return next.ServeHTTP(w, v.r)
	case held:
		return v.goOn(w, next)
	}
	v.look()
	switch {
	case erred != nil:
		return v.answerError(w, next, erred)
	case shadow:
		return v.watch(w, next)
	}
	return v.enforce(w, next)
}

// concerns reports whether a request needs a slot. The error is that of a matcher.
func (h *Handler) concerns(s *limit.Subject) (bool, error) {
	if limit.Included(s.Request) {
		return false, nil // it is a part of a page, and needs no other slot than that
	}
	var failed error
	if h.match != nil {
		match := false
		if match, failed = s.MatchesAnyAddress(h.match); !match && failed == nil {
			return false, nil
		}
	}
	h.ranks.strip(s.Request.Header)
	exempt, _, err := h.Env.Prepare(s)
	if err = cmp.Or(failed, err); err == nil && !exempt && len(h.exempt) > 0 {
		exempt, err = s.MatchesEveryAddress(h.exempt)
	}
	return err == nil && !exempt && !slices.ContainsFunc(h.Static, func(files *staticfile.Matcher) bool { return files.Match(s.Request) }), err
}

// A visit is one request in a handler: what it asks for, what it holds, and what becomes of it.
type visit struct {
	*Handler
	r        *http.Request
	subject  limit.Subject
	record   *record.Record
	unshared record.Record // that of a request that passes no other handler, until an error route is to find it

	slot     gate.Slot // what it asks for, and whether it has that
	standing           // with share
	body     *body.Received
	stop     func() bool // ends that the slot is kept for an error route; nil if it is not

	gate.Result
	decision limit.Decision
	reason   limit.Reason
	after    time.Duration    // when a refused client is told to come back; 0 if that does not help
	code     supportcode.Code // of a refusal; 0 if it has none
}

// visits are used again when their requests are over. A kilobyte for each request would be most
// of what in_flight costs.
var visits = sync.Pool{New: func() any { return new(visit) }}

// forget ends a visit that nobody else has.
func (v *visit) forget() {
	*v = visit{}
	visits.Put(v)
}

// look finds out what the request asks for.
func (v *visit) look() {
	s := &v.subject
	v.slot.From = s
	switch {
	case v.Shares():
		if v.rank(s); v.server.Nests() {
			v.asked = v.record.Asked(v.r)
		}
	case v.SlotKey != nil:
		v.slot.Key = v.SlotKey.Name(s)
	}
}

// watch counts what would become of a request, and holds it up for nothing.
func (v *visit) watch(w http.ResponseWriter, next caddyhttp.Handler) error {
	others, watched := v.State.Gate.Watch(v.slot.Key)
	defer watched.Release(false)
	would := limit.ShadowRefused
	switch {
	case others < v.Slots:
		would = limit.Admitted
	case others < v.Slots+v.Queue: // which is none without wait
		would = limit.ShadowDelayed
	}
	v.decide(would, limit.None)
	v.hold()
	defer v.giveUp()
	if response.MayTunnel(v.r) {
		watched.Release(false) // a tunnel holds none
	}
	return next.ServeHTTP(w, v.r)
}

// enforce serves a request once it has a slot, or refuses it.
func (v *visit) enforce(w http.ResponseWriter, next caddyhttp.Handler) error {
	if v.subject.Judged.Method == http.MethodConnect {
		return v.refuse(w, limit.Connect)
	}
	if v.subject.Early() {
		return v.refuse(w, limit.EarlyData) // the address may be forged, by which turns, places and memory are divided
	}
	defer v.release() // also if something panics
	if err := v.enter(w, v.limits); err != nil {
		return v.unreceived(w, err)
	}
	switch v.Why {
	case gate.Admitted:
		got := limit.Admitted
		if v.Waited > 0 {
			got = limit.Delayed
		}
		v.decide(got, limit.None)
		return v.serve(w, next)
	case gate.Left:
		return v.left(w)
	}
	return v.refuse(w, reasonOf[v.Why])
}

// answerError serves a request in an error route. It never queues: if no slot is free, the answer
// is the status of the error alone, as it is on sites without error routes.
func (v *visit) answerError(w http.ResponseWriter, next caddyhttp.Handler, erred error) error {
	defer v.release()
	limits := v.limits
	limits.Wait = 0
	if err := v.enter(w, limits); err == nil && v.Why == gate.Admitted {
		return v.serve(w, next)
	}
	w.WriteHeader(response.StatusOf(erred))
	return nil
}

// goOn serves a request in an error route that has kept its slot.
func (v *visit) goOn(w http.ResponseWriter, next caddyhttp.Handler) error {
	kept, _ := caddyhttp.GetVar(v.r.Context(), keptVar+v.Name).(*visit)
	if kept == nil || kept.stop == nil || !kept.stop() {
		return next.ServeHTTP(w, v.r) // the client has gone, or another handler of this name has the slot
	}
	kept.r, kept.stop = v.r, nil // serving gives it back, or keeps it again
	return kept.serve(w, next)
}

// enter receives the body of a request, and asks for a slot.
func (v *visit) enter(w http.ResponseWriter, limits gate.Limits) error {
	if err := v.receive(w); err != nil {
		return err
	}
	client := v.record.ClientOf(v.r)
	v.Result = v.State.Gate.Enter(client, v.Exiting.Done(), limits, &v.slot)
	v.record.Waited += v.Waited
	// Streams that are reset at once would cost the upstream whole requests. Over HTTP/1 they cost a connection.
	if v.Why == gate.Admitted && v.r.ProtoMajor > 1 && client.Err() != nil {
		v.slot.Release(false)
		v.Why = gate.Left
	}
	return nil
}

// receive receives the body of a request, unless a handler around has, or it has none.
func (v *visit) receive(w http.ResponseWriter) (err error) {
	if v.MostBody >= 0 && !body.None(v.r) {
		defer body.CutOff(v.Exiting, w)()
		began := time.Now()
		v.body, err = v.Bodies.Receive(v.Exiting, v.r, v.subject.Client(), v.MostBody)
		v.record.Waited += time.Since(began)
	}
	return err
}

// serve calls the next handler. The slot is given back when the upstream is done, whether or not
// the client has the whole response. If the next handler returns an error, it is kept until the
// error route has answered, if that may ask the upstream, too.
func (v *visit) serve(w http.ResponseWriter, next caddyhttp.Handler) (err error) {
	v.hold()
	within := v.record.Client != nil
	if !within {
		v.record.Client = v.r.Context()
		defer func() { v.record.Client = nil }()
	}
	err = new(call.Call).Serve(w, v.r, next, v, within)
	if err != nil {
		v.body.Rest(v.r)
		if caddyhttp.GetVar(v.r.Context(), verdictVar) == nil {
			v.publish() // else a handler within has refused it, or let it wait
		}
	}
	switch {
	case err == nil:
	case v.server == nil || v.server.ErrorsAsk:
		v.keep()
	default: // the client may take its time to read the error page
		v.giveUp()
		received := v.body
		v.body = nil
		context.AfterFunc(v.record.ClientOf(v.r), func() { _ = received.Close() })
	}
	return err
}

// NewSpool implements [call.Caller].
func (v *visit) NewSpool(memory int) body.Spool { return v.Bodies.NewSpool(v.subject.Client(), memory) }

// Exit implements [call.Caller].
func (v *visit) Exit() <-chan struct{} { return v.Exiting.Done() }

// Served implements [call.Caller].
func (v *visit) Served(err error) {
	if err == nil {
		v.giveUp()
		v.release()
	}
}

// hold notes that the request has a slot, and giveUp that it has none any more.
func (v *visit) hold() { v.record.Slots = append(v.record.Slots, v.Name) }

func (v *visit) giveUp() {
	v.record.Slots = slices.DeleteFunc(v.record.Slots, func(name string) bool { return name == v.Name })
}

// release gives back what the request holds, unless that is kept for an error route. A request that
// was refused further in has cost the upstream nothing, unless that was asked before.
func (v *visit) release() {
	if v.stop == nil {
		v.free(!v.record.RefusedUnasked(v.r, v.asked))
	}
}

// free gives back what is still held.
func (v *visit) free(served bool) {
	if held := v.slot.Release(served); held > 0 && v.Shares() {
		v.counts.seconds[v.slot.Rank].Add(held.Seconds())
	}
	_ = v.body.Close()
}

// keptVar begins the name of a variable of the request. No user would choose it.
const keptVar = "throttle.kept."

// keep keeps what the request holds until its error route has answered, at which the server ends
// the request's context. From then on others may find the visit and its record, so it never goes
// back to the pool.
func (v *visit) keep() {
	served := !v.record.RefusedUnasked(v.r, v.asked)
	v.stop = context.AfterFunc(v.record.ClientOf(v.r), func() { v.free(served) })
	caddyhttp.SetVar(v.r.Context(), keptVar+v.Name, v)
	v.record.Share(v.subject.Vars)
}

// left ends a request whose client has left.
func (v *visit) left(w http.ResponseWriter) error {
	v.record.Refused = true
	w.WriteHeader(response.StatusClientLeft)
	return nil
}

// unreceived answers a request whose body cannot be received.
func (v *visit) unreceived(w http.ResponseWriter, err error) error {
	switch {
	case errors.Is(err, body.ErrTooLarge):
		return v.refuse(w, limit.TooLarge)
	case errors.Is(err, body.ErrNoRoom):
		return v.refuse(w, limit.NoMemory)
	case errors.Is(err, body.ErrLeft):
		return v.left(w)
	case v.Exiting.Err() != nil:
		v.Why = gate.Exiting
		return v.refuse(w, limit.NoPlace)
	}
	return v.refuse(w, limit.Timeout)
}
