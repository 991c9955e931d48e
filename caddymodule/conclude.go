package caddymodule

import (
	"slices"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// conclude turns the answers into outcomes, makes them known to placeholders
// and the access log, and notes what is left to do for the request. It returns
// nil if no zone is concerned.
func (q *question) conclude(h *Handler) *passage {
	if len(q.verdicts) == 0 && len(q.charges) == 0 && len(q.slots) == 0 {
		q.settleNothing(h)
		return nil
	}
	p := q.passage
	if p == nil {
		p = newPassage(q.r)
	}
	first := len(p.outcomes)
	for _, o := range q.verdicts {
		p.add(o)
	}
	for i := range q.charges {
		if o := q.outcomeOf(i); o.reason != none || !q.refused {
			p.add(o) // what fits while another refuses is as if it had not been asked
			if o.reason == none && o.zone.Settle != nil {
				q.settleLater(h, p, i)
			}
		}
		if q.zones[i].Block != nil {
			h.app.blocks.note(&q.charges[i], &q.decisions[i])
		}
	}
	for i := range q.slots {
		s := &q.slots[i]
		if slices.Contains(q.zones, s.zone) || q.decided(s.zone.Name) || q.refused && !s.lacking {
			continue
		}
		o := outcome{zone: s.zone, shadow: s.shadow, key: s.key}
		if s.lacking {
			o.decision, o.reason = refusal(s.shadow), inFlight
		}
		p.add(o)
	}
	if q.refused {
		return p
	}
	q.takeTurns(h, p, first)
	if q.bill == nil {
		q.settleNothing(h)
	}
	return p
}

// outcomeOf says what became of the i-th charge.
func (q *question) outcomeOf(i int) outcome {
	z, c, d := q.zones[i], &q.charges[i], &q.decisions[i]
	o := outcome{
		zone: z, shadow: c.Shadow, key: c.Key,
		limit: c.Limit, cost: c.Cost, ceiling: c.Ceiling, level: d.Level, at: d.At,
	}
	if d.BlockedUntil != 0 {
		o.block, o.began = d.BlockedUntil.Sub(d.At), d.Began || slices.Contains(q.began, z)
	}
	switch {
	case !d.Fits && c.Limit.Oversize(c.Cost):
		o.reason = oversize
	case !d.Fits && o.block > 0 && !o.began:
		o.reason = blocking
	case !d.Fits:
		o.reason = capacity
	case q.lacks(z):
		o.reason = inFlight
	}
	if o.reason != none {
		o.decision = refusal(c.Shadow)
		return o
	}
	if d.Poured {
		o.poured = c.Cost
	}
	if z.Delay != nil {
		o.delay = c.Limit.Delay(d.Level, z.undelayed(q.nodes))
	}
	switch {
	case o.delay > 0 && c.Shadow:
		o.decision = shadowDelayed
	case o.delay > 0:
		o.decision = delayed
	}
	return o
}

// lacks reports whether there was no slot in a zone.
func (q *question) lacks(z *Zone) bool {
	return slices.ContainsFunc(q.slots, func(s slot) bool { return s.zone == z && s.lacking })
}

// takeTurns hands on what the request must wait for, and the slots it has, if
// there is either.
func (q *question) takeTurns(h *Handler, p *passage, first int) {
	if len(q.slots) == 0 && !slices.ContainsFunc(p.outcomes[first:], func(o outcome) bool { return o.delay > 0 }) {
		return
	}
	t := &turn{handler: h, store: q.store, spent: q.spent, passage: p, bill: q.bill, first: first, asked: q.asked}
	t.slots = append(t.room[:0], q.slots...)
	slices.SortFunc(t.slots, byZone)
	for i := range q.charges {
		if q.waits && q.decisions[i].Poured {
			t.charges = append(t.charges, leakybucket.Settlement{Charge: q.charges[i], Was: q.decisions[i]})
		}
	}
	q.turn = t
}

// settleLater puts a charge on the bill; its outcome is the passage's last.
func (q *question) settleLater(h *Handler, p *passage, i int) {
	if q.bill == nil {
		q.bill = &bill{handler: h, store: q.store, spent: q.spent, passage: p}
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
