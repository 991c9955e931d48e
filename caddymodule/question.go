package caddymodule

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A question is what a handler asks about one request, in memory that is used
// again.
type question struct {
	subject
	passage *passage  // what earlier handlers decided, or nil
	refused bool      // by an enforced zone
	crowded bool      // an enforced zone has no slot
	waits   bool      // some zone lets requests wait, so that slots are taken after that
	unread  int64     // how much of the body must be read to know more
	upload  *upload   // the body that was read
	bill    *bill     // what the response will correct, if anything
	turn    *turn     // what the request must wait for and keep, if anything
	asked   time.Time // when the store decided, if somebody may have to wait

	store leakybucket.Store // that took the charges
	nodes int               // by how many the limits are divided

	verdicts  []outcome // decided without asking the store
	zones     []*Zone   // whose charges are asked
	charges   []leakybucket.Charge
	decisions []leakybucket.Decision
	slots     []slot
	began     []*Zone // shadows that began a block when they were first asked
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
	*q = question{verdicts: q.verdicts, zones: q.zones, charges: q.charges, decisions: q.decisions, slots: q.slots, keys: q.keys}
	questions.Put(q)
}

// reset forgets what was gathered.
func (q *question) reset() {
	clear(q.verdicts)
	clear(q.zones)
	clear(q.charges)
	clear(q.slots)
	clear(q.keys.parts[:cap(q.keys.parts)]) // a key that was not finished is in it too
	q.verdicts, q.zones, q.charges, q.slots = q.verdicts[:0], q.zones[:0], q.charges[:0], q.slots[:0]
	q.unread, q.waits = 0, false
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
	case bucketkey.Unlimited:
		return nil
	case bucketkey.Deny:
		q.refuse(z, k, banned)
		return nil
	}
	if !z.bucketless() {
		if asked, err := q.charge(z, k, shadow); err != nil || !asked {
			return err
		}
	}
	if z.InFlight > 0 {
		q.slots = append(q.slots, slot{zone: z, key: k.name, shadow: shadow})
	}
	q.waits = q.waits || z.letsWait()
	return nil
}

// charge gathers what the zone's bucket is to be asked. It reports false if that
// is known to be blocked.
func (q *question) charge(z *Zone, k key, shadow bool) (asked bool, err error) {
	line, err := z.costLine(&q.subject)
	if err != nil {
		return false, err
	}
	cost := line.of(&q.subject, z, k.limit)
	charge := leakybucket.Charge{
		Zone: z.Name, Key: k.name, Shadow: shadow,
		Limit: k.limit, Debt: z.debt(k.limit), Ceiling: z.ceiling(k.limit, cost), Block: z.ladder(),
		Cost: cost, Probe: z.Settle != nil && z.Settle.After,
	}
	if b, known := z.shared.app.knownBlocked(&charge); known {
		q.bar(z, &charge, b)
		return false, nil
	}
	if line.wantsBody(&q.subject) {
		q.unread = max(q.unread, z.MaxBody)
	}
	q.zones = append(q.zones, z)
	q.charges = append(q.charges, charge)
	return true, nil
}

// refuse notes a refusal for which no bucket need be asked.
func (q *question) refuse(z *Zone, k key, why reason) {
	q.verdict(outcome{zone: z, shadow: !z.enforces(k), key: k.name, reason: why})
}

func (q *question) verdict(o outcome) {
	o.decision = refusal(o.shadow)
	q.verdicts = append(q.verdicts, o)
	q.refused = q.refused || !o.shadow
}

// bar notes a refusal by a block that is known of.
func (q *question) bar(z *Zone, c *leakybucket.Charge, b block) {
	now := time.Now()
	passed := leakybucket.Instant(now.Sub(b.at).Microseconds())
	q.verdict(outcome{
		zone: z, shadow: c.Shadow, key: c.Key, reason: blocking, block: b.until.Sub(now),
		limit: b.limit, cost: c.Cost, level: b.limit.Level(leakybucket.State{Level: b.level}, passed),
	})
}

// decided reports whether the zone of a name has refused without being asked.
func (q *question) decided(zone string) bool {
	return slices.ContainsFunc(q.verdicts, func(o outcome) bool { return o.zone.Name == zone })
}

// probe turns all charges into questions.
func (q *question) probe() {
	for i := range q.charges {
		q.charges[i].Probe = true
	}
}

// occupy takes the slots. With one missing that is enforced, all else is only
// asked; with one that is not, only its own zone's charge.
func (q *question) occupy() {
	for i := range q.slots {
		s := &q.slots[i]
		switch {
		case s.take():
		case s.shadow:
			if of := slices.Index(q.zones, s.zone); of >= 0 {
				q.charges[of].Probe = true
			}
		default:
			q.crowded = true
		}
	}
	if q.crowded {
		q.probe()
	}
}

// peek asks whether there are slots, before the body is read.
func (q *question) peek() {
	for i := range q.slots {
		s := &q.slots[i]
		s.lacking = !s.room().vacant(s.key, s.zone.InFlight)
		q.crowded = q.crowded || s.lacking && !s.shadow
	}
}

// vacate gives the slots back that nobody goes on with.
func (q *question) vacate() {
	for i := range q.slots {
		q.slots[i].release()
	}
}

// look reads as much of the body as some zone wants, and makes room for what
// will be gathered with it.
func (q *question) look() {
	q.upload, q.body = look(q.r, q.unread)
	q.looked = true
	for i := range q.charges {
		if q.charges[i].Shadow && q.decisions[i].Began {
			q.began = append(q.began, q.zones[i])
		}
	}
	q.reset()
}
