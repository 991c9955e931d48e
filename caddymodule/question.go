package caddymodule

import (
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A question is what a handler asks about one request, in memory that is used
// again.
type question struct {
	subject
	passage *passage // what earlier handlers decided, or nil
	refused bool     // by an enforced zone
	unread  int64    // how much of the body must be read to know more
	upload  *upload  // the body that was read
	bill    *bill    // what the response will correct, if anything

	verdicts  []outcome // decided without asking the store
	zones     []*Zone   // whose charges are asked
	charges   []leakybucket.Charge
	decisions []leakybucket.Decision
	keys      keyRoom
}

var questions = sync.Pool{New: func() any { return new(question) }}

func (q *question) begin(r *http.Request) {
	q.r = r
	q.repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	q.passage = passageOf(r)
}

// release gives the memory back, with nothing of the request in it.
func (q *question) release() {
	q.reset()
	*q = question{verdicts: q.verdicts, zones: q.zones, charges: q.charges, decisions: q.decisions, keys: q.keys}
	questions.Put(q)
}

// reset forgets what was gathered.
func (q *question) reset() {
	clear(q.verdicts)
	clear(q.zones)
	clear(q.charges)
	clear(q.keys.parts[:cap(q.keys.parts)]) // a key that was not finished is in it too
	q.verdicts, q.zones, q.charges = q.verdicts[:0], q.zones[:0], q.charges[:0]
	q.unread = 0
}

// add gathers what a zone has to say.
func (q *question) add(z *Zone) error {
	if concerned, err := z.concerns(q.r); err != nil || !concerned {
		return err
	}
	if z.formKey && !q.looked {
		q.unread = max(q.unread, z.MaxBody)
		return nil
	}
	k, complete := z.keyOf(&q.subject, &q.keys)
	policy, why := "", none
	switch {
	case !complete:
		policy, why = z.MissingKey, missingKey
	case !k.listed && z.UnlistedKey != "":
		policy, why = z.UnlistedKey, unlistedKey
	}
	switch policy {
	case "":
	case missingSkip:
		return nil
	case missingRefuse:
		q.refuse(z, k, why)
		return nil
	default:
		k = z.fallback(q.r, policy)
	}
	shadow := !z.enforces(k)
	if k.address && early(q.r) {
		// Whoever sends it may have made the address up.
		if !shadow {
			q.refuse(z, k, earlyData)
		}
		return nil
	}
	switch k.rule {
	case leakybucket.Unlimited:
		return nil
	case leakybucket.Blocked:
		q.refuse(z, k, banned)
		return nil
	}
	line, err := z.costLine(&q.subject)
	if err != nil {
		return err
	}
	if line.wantsBody(&q.subject) {
		q.unread = max(q.unread, z.MaxBody)
	}
	q.zones = append(q.zones, z)
	q.charges = append(q.charges, leakybucket.Charge{
		Zone: z.Name, Key: k.name, Shadow: shadow,
		Limit: k.limit, Debt: z.debt(k.limit),
		Cost: line.of(&q.subject, z, k.limit), Probe: z.Settle != nil && z.Settle.After,
	})
	return nil
}

// refuse notes a refusal for which no bucket need be asked.
func (q *question) refuse(z *Zone, k key, why reason) {
	shadow := !z.enforces(k)
	q.verdicts = append(q.verdicts, outcome{zone: z, shadow: shadow, key: k.name, decision: refusal(shadow), reason: why})
	q.refused = q.refused || !shadow
}

// probe turns all charges into questions.
func (q *question) probe() {
	for i := range q.charges {
		q.charges[i].Probe = true
	}
}

// look reads as much of the body as some zone wants, and makes room for what
// will be gathered with it.
func (q *question) look() {
	q.upload, q.body = look(q.r, q.unread)
	q.looked = true
	q.reset()
}

// conclude turns the answers into outcomes, counts them, and makes them known
// to placeholders and the access log. It returns nil if there are none.
func (q *question) conclude(h *Handler) *passage {
	if len(q.verdicts) == 0 && len(q.charges) == 0 {
		q.settleNothing(h)
		return nil
	}
	p := q.passage
	if p == nil {
		p = newPassage(q.r)
	}
	for _, o := range q.verdicts {
		p.add(o)
	}
	for i := range q.charges {
		c, d := &q.charges[i], &q.decisions[i]
		o := outcome{zone: q.zones[i], shadow: c.Shadow, key: c.Key, limit: c.Limit, cost: c.Cost, level: d.Level}
		switch {
		case !d.Fits && c.Limit.Oversize(c.Cost):
			o.decision, o.reason = refusal(c.Shadow), oversize
		case !d.Fits:
			o.decision, o.reason = refusal(c.Shadow), capacity
		case q.refused:
			continue // it fits, another refuses: as if it had not been asked
		case d.Poured:
			o.poured = c.Cost
		}
		p.add(o)
		if d.Fits && o.zone.Settle != nil {
			q.settleLater(h, p, i)
		}
	}
	if q.bill == nil && !q.refused {
		q.settleNothing(h)
	}
	return p
}

// settleLater puts a charge on the bill; its outcome is the passage's last.
func (q *question) settleLater(h *Handler, p *passage, i int) {
	if q.bill == nil {
		q.bill = &bill{handler: h, passage: p}
	}
	q.bill.add(q.zones[i], q.charges[i], q.decisions[i], len(p.outcomes)-1)
}

// settleNothing keeps what the upstream tells us from clients that were charged
// nothing.
func (q *question) settleNothing(h *Handler) {
	if len(h.strip) > 0 {
		q.bill = &bill{handler: h, passage: q.passage}
	}
}
