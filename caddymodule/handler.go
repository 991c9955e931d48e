package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler holds requests back with leaky buckets. Every request it sees is
// charged to a bucket in each of its zones, all or none; what does not fit is
// refused with a Retry-After that says when to come back.
type Handler struct {
	// The zones to charge together.
	Zone []*Zone `json:"zone,omitempty"`

	// Tell clients in the header fields RateLimit-Policy and RateLimit how much
	// the zone that is nearest exhaustion holds, and how much is left.
	RateLimitHeaders bool `json:"ratelimit_headers,omitempty"`

	app   *App
	zones []*Zone
	strip []string // headers in which the upstream says what a request cost
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.throttle",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision finds or makes the handler's zones.
func (h *Handler) Provision(ctx caddy.Context) error {
	app, err := ctx.App("throttle")
	if err != nil {
		return err
	}
	h.app = app.(*App)
	if len(h.Zone) == 0 {
		return errors.New("no zone given: want at least one")
	}
	names := make(map[string]bool)
	for _, z := range h.Zone {
		if z != nil && z.reference() {
			z, err = h.app.globalZone(z.Name)
		} else {
			err = h.app.provisionZone(ctx, z)
		}
		if err != nil {
			return err
		}
		if names[z.Name] {
			return fmt.Errorf("zone %q is given twice in one handler", z.Name)
		}
		names[z.Name] = true
		z.shared.handlers++
		h.zones = append(h.zones, z)
		if z.Settle != nil && z.Settle.Name != "" {
			h.strip = append(h.strip, z.Settle.Name)
		}
	}
	h.warnInventable(ctx.Logger())
	return nil
}

// warnInventable warns of zones that hold nobody back who makes keys up.
func (h *Handler) warnInventable(logger *zap.Logger) {
	for _, z := range h.zones {
		if z.byClient() {
			return
		}
	}
	for _, z := range h.zones {
		if z.inventable() && !z.shared.inventable {
			z.shared.inventable = true
			logger.Warn("zone is keyed only by what clients send, who may make up a new key for every request: put a zone keyed by client_ip beside it",
				zap.String("zone", z.Name))
		}
	}
}

// statusGone is what access logs say of requests whose client has left, as
// Caddy's own and nginx's do.
const statusGone = 499

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return next.ServeHTTP(w, r) // in an error route: charged when it came
	}
	h.app.remote.enter()
	defer h.app.remote.leave()
	q := questions.Get().(*question)
	p, err := h.decide(q, r)
	upload, bill, turn := q.upload, q.bill, q.turn
	q.release()
	defer upload.end(w)
	if turn != nil {
		defer turn.end()
		turn.come(r.Context())
		w = turn.watch(w, r)
	}
	if p != nil {
		p.count()
		if h.RateLimitHeaders {
			p.announce(w.Header())
		}
	}
	switch {
	case err != nil:
		return err
	case p != nil && p.decisive().decision == refused:
		return p.refuse(w, r)
	case turn.left():
		w.WriteHeader(statusGone)
		return nil
	case bill != nil:
		return bill.serve(w, r, next)
	}
	return next.ServeHTTP(w, r)
}

// decide asks the zones whose bucket to charge and the store whether it fits,
// and makes the answer known. It returns nil if no zone is concerned.
func (h *Handler) decide(q *question, r *http.Request) (*passage, error) {
	q.begin(r)
	defer func() {
		if q.turn == nil {
			q.vacate() // the request goes nowhere
		}
	}()
	if err := h.gather(q); err != nil {
		return nil, err
	}
	if q.unread > 0 {
		// First for the least it can cost: who is refused uploads nothing.
		if !q.waits {
			q.peek()
		}
		q.probe()
		if err := h.take(q); err != nil || q.refused {
			return q.conclude(h), nil
		}
		q.look()
		if err := h.gather(q); err != nil {
			return nil, err
		}
	}
	if !q.waits {
		q.occupy()
	}
	_ = h.take(q) // if it failed, there is nothing left to conclude
	return q.conclude(h), nil
}

// gather asks each zone whether it is about the request, and if so whose
// bucket is charged, how much it holds, and how much is poured.
func (h *Handler) gather(q *question) error {
	charged, failed := isNot(h.app.exempt, q.r)
	if !charged && failed == nil {
		return nil
	}
	h.app.watchProxies(q.r)
	for _, z := range h.app.everywhere {
		if !q.passage.charged(z.Name) {
			if c, b, found := z.blockOf(&q.subject, &q.keys); found {
				q.bar(z, &c, b)
			}
		}
	}
	for _, z := range h.zones {
		if q.passage.charged(z.Name) || q.decided(z.Name) {
			continue
		}
		err := failed
		if err == nil {
			err = q.add(z)
		}
		if err != nil && !z.shadow {
			return err
		}
	}
	return nil
}

// take asks the store. With a refusal that needs no asking there is nothing to
// take: the buckets of the other zones must not pay for it. If even the memory
// fails, the request passes.
func (h *Handler) take(q *question) error {
	if q.refused {
		q.charges = q.charges[:0]
	}
	q.refused = q.refused || q.crowded
	if len(q.charges) == 0 {
		return nil
	}
	q.decisions = append(q.decisions[:0], make([]leakybucket.Decision, len(q.charges))...)
	if err := h.app.ask(q); err != nil {
		h.app.logger.Error("asking the store; the request passes", zap.Error(err))
		q.charges, q.zones, q.verdicts = q.charges[:0], q.zones[:0], q.verdicts[:0]
		return err
	}
	if q.waits {
		q.asked = time.Now()
	}
	for i := range q.charges {
		q.refused = q.refused || !q.charges[i].Shadow && !q.decisions[i].Fits
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
