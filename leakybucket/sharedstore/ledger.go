package sharedstore

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	mostEntries = 200_000 // of some 400 bytes

	// mostWatched is how many entries there may be for one more bucket to be watched. Watched
	// buckets are kept for long, and leave room for charges that are to be told.
	mostWatched = 100_000

	// patience is how long a call may still be executed after its caller gave up.
	// Until then its cost is not poured a second time.
	patience = time.Second

	// dust, in capacities, is too little to tell the store.
	dust = 1e-9

	// reserved is how long an entry waits for the pour it was opened for.
	reserved = time.Second
)

type bucket struct {
	zone, key string
	shadow    bool
}

func bucketOf(c *leakybucket.Charge) bucket { return bucket{c.Zone, c.Key, c.Shadow != 0} }

// An entry is the ledger of one bucket. All amounts are in units of cost, at the
// instant at.
//
// The store's bucket holds seen, some part of the doubtful amounts, and what
// other nodes poured. seen + own is the level that the bucket would have if the
// store had taken every charge that this node admitted.
type entry struct {
	at    time.Time
	limit leakybucket.Limit // of the shared bucket
	share float64           // this node's part of the leak, units a second
	debt  float64
	block *leakybucket.Ladder

	// seen is the level that the store last showed, with the amounts that it has
	// confirmed since.
	seen      float64
	shownAt   leakybucket.Instant // when it was shown, on the store's clock
	shown     float64             // the level then, with what the call poured
	notedAt   leakybucket.Instant // of the last decision that was noted without its level
	confirmed time.Time           // by the store; calls that began before may not show it

	// excess is the amount that the store showed lately beyond seen. executed is
	// the part of it that was taken for doubtful calls. Both count until
	// excessEnd.
	excess, executed float64
	excessEnd        time.Time

	// own is the amount that this node admitted and the store has not confirmed.
	// A negative own is to be given back.
	own float64

	// sent is the amount that a call is telling the store now.
	sent    float64
	telling bool

	// doubtful is the amount that calls without an answer may have poured, and may
	// yet pour until ripe. It is part of own as well, as long as it is not known to be
	// in the store's bucket.
	doubtful float64
	ripe     time.Time

	// blocked is the end of a block that began here and that the store has not
	// confirmed, and step its step. It is zero if there is none.
	blocked time.Time
	step    uint8

	// whole is what the bucket would be if it had its whole limit and nobody but this node
	// poured into it since the outage began. It is on the clock of this node's own store, and
	// is kept until wholeUntil.
	whole      leakybucket.State
	wholeUntil time.Time

	reserved time.Time // the entry is kept until then at least
}

// setLimit notes the limit of a charge to the whole bucket.
func (e *entry) setLimit(whole *leakybucket.Charge) {
	e.limit, e.debt, e.block = whole.Limit, whole.Debt, whole.Block
}

// probe returns a charge to the whole bucket that changes nothing.
func (e *entry) probe(name bucket) leakybucket.Charge {
	return leakybucket.Charge{
		Zone: name.zone, Key: name.key, Shadow: leakybucket.ShadowIf(name.shadow),
		Limit: e.limit, Debt: e.debt, Block: e.block, Cost: -1, Probe: true,
	}
}

// advance lets all amounts leak until now, as one bucket would. What the store
// holds leaks first.
func (e *entry) advance(now time.Time) {
	elapsed := now.Sub(e.at).Seconds()
	if elapsed <= 0 {
		return
	}
	dry := elapsed - e.seen/e.limit.Leak // for so long the store's bucket is empty but for doubtful amounts
	e.at = now
	e.seen = max(0, e.seen-e.limit.Leak*elapsed)
	if e.own < 0 {
		e.own = min(0, e.own+e.limit.Leak*elapsed)
	}
	if dry > 0 {
		leaked := e.share * dry
		drain(&leaked, &e.sent)
		drain(&leaked, &e.own)
		leaked = e.limit.Leak * dry
		drain(&leaked, &e.doubtful)
	}
}

// drain takes as much of an amount from another as there is in both.
func drain(amount, from *float64) {
	out := min(*amount, max(0, *from))
	*amount -= out
	*from -= out
}

// admit records a cost that this node has admitted. If doubtful, a call without an answer
// may have poured it.
func (e *entry) admit(cost float64, doubtful bool) {
	e.own += cost
	if doubtful {
		e.doubtful += cost
		e.ripe = e.at.Add(patience)
	}
}

// observe records a decision of the store, which poured a cost and was asked for at began.
// It returns how much the store can be told now without pouring anything twice.
func (e *entry) observe(d *leakybucket.Decision, poured float64, began, now time.Time) (untold float64) {
	switch {
	case d.At < e.shownAt || d.At == e.shownAt && d.Level < e.shown:
		e.explain(poured, now) // a later decision was noted before
	case e.telling || !began.After(e.confirmed) || d.At <= e.notedAt:
		// The level may have more than seen, or less, that is known well.
		e.seen += poured
		e.notedAt = max(e.notedAt, d.At)
	default:
		e.show(d, now)
		e.seen += poured
		e.shown += poured
	}
	if e.own <= 0 || e.telling {
		return min(0, e.own)
	}
	return max(0, e.own-e.doubtful)
}

// show compares the level that the store shows with seen. An excess was poured by
// other nodes, or by calls of ours that were executed after all. The latter is
// assumed, as far as there are such calls.
func (e *entry) show(d *leakybucket.Decision, now time.Time) {
	excess := max(0, d.Level-e.seen)
	executed := min(excess, e.doubtful)
	if !now.Before(e.excessEnd) {
		e.excess, e.executed = 0, 0
	}
	if excess > 0 {
		e.excess, e.executed = e.excess+excess, e.executed+executed
		e.excessEnd = now.Add(patience)
	}
	e.own = min(e.own, max(0, e.own-executed))
	drain(&executed, &e.doubtful)
	if !now.Before(e.ripe) {
		e.doubtful = 0 // it was never executed
	}
	e.seen = d.Level
	e.shown, e.shownAt = d.Level, d.At
}

// explain records a cost that the store has poured, and may have shown already.
// The part of it that was taken for a doubtful call becomes doubtful again.
func (e *entry) explain(poured float64, now time.Time) (rest float64) {
	if !now.Before(e.excessEnd) {
		return poured
	}
	rest = max(0, poured-e.excess)
	e.excess -= poured - rest
	again := max(0, e.executed-e.excess)
	e.executed -= again
	e.admit(again, true)
	return rest
}

// tell records that a call is telling the store an amount.
func (e *entry) tell(amount float64) {
	e.own -= amount
	if amount < 0 {
		e.seen = max(0, e.seen+amount) // an answer changes nothing: at worst it is not given back
		return
	}
	e.sent, e.telling = amount, true
}

// told records the end of such a call: whether it reached the store, and whether
// the store confirmed it. Calls in flight end within the timeout.
func (e *entry) told(reached, confirmed bool, now time.Time, timeout time.Duration) {
	if confirmed {
		e.seen += e.sent
		e.confirmed = now
		e.reserve(now.Add(timeout)) // for calls that began before
	} else {
		e.admit(e.sent, reached)
	}
	e.sent, e.telling = 0, false
}

// settleWhole corrects a whole bucket as its share is corrected.
func (e *entry) settleWhole(of leakybucket.Settlement, now leakybucket.Instant) {
	of.Charge.Limit, of.Charge.Debt, of.Charge.Block = e.limit, e.debt, nil
	if of.Cancel {
		of.Cancel, of.Diff = false, -of.Charge.Cost
	}
	e.whole = of.Apply(e.whole, now)
}

// reserve keeps the entry until then at least.
func (e *entry) reserve(until time.Time) {
	if until.After(e.reserved) {
		e.reserved = until
	}
}

// needed reports whether the entry is still needed.
func (e *entry) needed(now time.Time) bool {
	return math.Abs(e.own) > dust*e.limit.Capacity || e.telling ||
		e.reserved.After(now) || e.blocked.After(now) || e.wholeUntil.After(now)
}

// A ledger is a bounded map of entries. While it is full it takes no new ones. An entry that
// is no longer needed holds its place until it is updated, as the reconciler does. It is safe
// for concurrent use.
type ledger struct {
	some    atomic.Bool // anything at all: most of the time nothing is, and nobody takes the lock
	mu      sync.RWMutex
	entries map[bucket]*entry
}

// empty reports, without a lock, whether there are no entries.
func (l *ledger) empty() bool { return !l.some.Load() }

// get returns the entry of a bucket as it is now, and false if there is none.
func (l *ledger) get(name bucket, now time.Time) (e entry, found bool) {
	if l.empty() {
		return e, false
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	kept := l.entries[name]
	if kept == nil {
		return e, false
	}
	e = *kept
	e.advance(now)
	return e, e.needed(now)
}

// find brings the entry of a bucket up to date. It returns nil if there is none. The lock
// must be held.
func (l *ledger) find(name bucket, now time.Time) *entry {
	e := l.entries[name]
	if e == nil {
		return nil
	}
	if e.advance(now); !e.needed(now) {
		return nil
	}
	return e
}

// update changes the entry of a bucket in one step, and drops it if it is no longer needed.
// f is called with the lock held, and with a new entry if there is none. update reports
// whether there was room.
func (l *ledger) update(name bucket, now time.Time, f func(e *entry, found bool)) (room bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.find(name, now)
	found := e != nil
	if !found {
		e = &entry{at: now}
	}
	f(e, found)
	_, known := l.entries[name]
	switch {
	case !e.needed(now):
		delete(l.entries, name)
	case known || len(l.entries) < mostEntries:
		l.entries[name] = e
	default:
		return false
	}
	l.some.Store(len(l.entries) > 0)
	return true
}

// mayWatch reports whether there is room to watch one more bucket.
func (l *ledger) mayWatch() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.entries) < mostWatched
}

// names returns the buckets of all entries.
func (l *ledger) names() []bucket {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.AppendSeq(make([]bucket, 0, len(l.entries)), maps.Keys(l.entries))
}

// forget drops the entry of a bucket.
func (l *ledger) forget(name bucket) {
	l.update(name, time.Now(), func(e *entry, _ bool) { *e = entry{} })
}

// enter changes the ledger's entry of a bucket, of which c charges this node's
// share, and reports whether the ledger has one now.
func (s *Store) enter(c *leakybucket.Charge, now time.Time, change func(*entry)) (entered bool) {
	return s.backend.ledger.update(bucketOf(c), now, func(e *entry, found bool) {
		if !found {
			e.setLimit(c) // about that of the shared bucket, until that is known
			e.limit.Capacity, e.debt = c.Limit.Capacity*s.nodes, c.Debt*s.nodes
			e.seen = s.backend.localLevel(c) * s.nodes
			s.keepReconciling()
		}
		e.share, e.limit.Leak = c.Limit.Leak, c.Limit.Leak*s.nodes
		change(e)
	})
}
