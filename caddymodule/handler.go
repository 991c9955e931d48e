package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

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

	app   *App
	zones []*Zone
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

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return next.ServeHTTP(w, r) // in an error route: charged when it came
	}
	p, err := h.decide(r)
	if err != nil {
		return err
	}
	if p != nil && p.decisive().decision == refused {
		return p.refuse(w, r)
	}
	return next.ServeHTTP(w, r)
}

// decide asks the zones whose bucket to charge and the store whether it fits,
// and makes the answer known. It returns nil if no zone is concerned.
func (h *Handler) decide(r *http.Request) (*passage, error) {
	q := questions.Get().(*question)
	defer q.release()
	q.passage = passageOf(r)
	if err := h.gather(q, r); err != nil || q.empty() {
		return nil, err
	}
	if err := h.take(q, r); err != nil {
		h.app.logger.Error("asking the store; the request passes", zap.Error(err))
		return nil, nil
	}
	return q.conclude(r), nil
}

// gather asks each zone whether it is about the request, and if so whose
// bucket is charged, how much it holds, and how much is poured.
func (h *Handler) gather(q *question, r *http.Request) error {
	charged, failed := isNot(h.app.exempt, r)
	if !charged && failed == nil {
		return nil
	}
	h.app.watchProxies(r)
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	for _, z := range h.zones {
		if q.passage.charged(z.Name) {
			continue
		}
		err := failed
		if err == nil {
			err = q.add(z, r, repl)
		}
		if err != nil && !z.shadow {
			return err
		}
	}
	return nil
}

// take asks the store. With a refusal that needs no asking there is nothing to
// take: the buckets of the other zones must not pay for it.
func (h *Handler) take(q *question, r *http.Request) error {
	if q.refused {
		q.charges = q.charges[:0]
	}
	if len(q.charges) == 0 {
		return nil
	}
	q.decisions = append(q.decisions[:0], make([]leakybucket.Decision, len(q.charges))...)
	return h.app.store.Take(r.Context(), q.charges, q.decisions)
}

// A question is what a handler asks about one request, in memory that is used
// again.
type question struct {
	passage *passage // what earlier handlers decided, or nil
	refused bool     // by an enforced zone, without asking the store

	verdicts  []outcome // decided without asking the store
	zones     []*Zone   // whose charges are asked
	charges   []leakybucket.Charge
	decisions []leakybucket.Decision
	keys      keyRoom
}

var questions = sync.Pool{New: func() any { return new(question) }}

func (q *question) release() {
	clear(q.verdicts)
	clear(q.zones)
	clear(q.charges)
	clear(q.keys.parts[:cap(q.keys.parts)])
	q.passage, q.refused = nil, false
	q.verdicts, q.zones, q.charges = q.verdicts[:0], q.zones[:0], q.charges[:0]
	questions.Put(q)
}

func (q *question) empty() bool { return len(q.verdicts) == 0 && len(q.charges) == 0 }

func (q *question) add(z *Zone, r *http.Request, repl *caddy.Replacer) error {
	if concerned, err := z.concerns(r); err != nil || !concerned {
		return err
	}
	k, complete := z.keyOf(r, repl, &q.keys)
	if !complete {
		switch z.MissingKey {
		case missingSkip:
			return nil
		case missingRefuse:
			q.refuse(z, "", missingKey)
			return nil
		}
		k = z.fallback(r)
	}
	switch k.rule {
	case leakybucket.Unlimited:
		return nil
	case leakybucket.Blocked:
		q.refuse(z, k.name, banned)
		return nil
	}
	cost, err := z.costOf(r, repl, k.limit)
	if err != nil {
		return err
	}
	q.zones = append(q.zones, z)
	q.charges = append(q.charges, leakybucket.Charge{Zone: z.Name, Key: k.name, Limit: k.limit, Cost: cost, Shadow: z.shadow})
	return nil
}

// refuse notes a refusal for which no bucket need be asked.
func (q *question) refuse(z *Zone, key string, why reason) {
	q.verdicts = append(q.verdicts, outcome{zone: z, key: key, decision: z.refusal(), reason: why})
	q.refused = q.refused || !z.shadow
}

// conclude turns the answers into outcomes, counts them, and makes them known
// to placeholders and the access log.
func (q *question) conclude(r *http.Request) *passage {
	p := q.passage
	if p == nil {
		p = newPassage(r)
	}
	for i := range q.charges {
		q.refused = q.refused || !q.charges[i].Shadow && !q.decisions[i].Fits
	}
	for _, o := range q.verdicts {
		p.add(o)
	}
	for i := range q.charges {
		c, d := &q.charges[i], &q.decisions[i]
		o := outcome{zone: q.zones[i], key: c.Key, limit: c.Limit, cost: c.Cost, level: d.Level}
		switch {
		case !d.Fits && c.Limit.Oversize(c.Cost):
			o.decision, o.reason = o.zone.refusal(), oversize
		case !d.Fits:
			o.decision, o.reason = o.zone.refusal(), capacity
		case q.refused:
			continue // it fits, another refuses: as if it had not been asked
		}
		p.add(o)
	}
	return p
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
