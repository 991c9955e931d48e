// Package gate limits how many requests an upstream works on at once, and lets the others wait
// in a queue. Begin with [Gate.Enter].
//
// Package fairqueue decides who gets a free slot. The gate adds the lock, the timers, and the
// bound of a client: no client prefix may fill the queue.
//
//   - Without share, a request gets a place if its client holds fewer than are still free.
//     Otherwise the client that holds most gives up its last place, if it holds at least two more.
//     So a client alone has half of the queue, and nobody is kept out as long as anybody holds
//     two places.
//   - With share, a client may always hold a tenth of the places, and more as long as it holds
//     fewer than are still free. Otherwise its own last in order is displaced. If no place is
//     free, the last of all is.
//
// A gate keeps no configuration. Limits come with each request, so that slots, queues and the
// order in them survive a reload.
package gate

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// Limits are those of a gate in one config: Slots are those of each key, Queue is for requests of
// all keys. Without Share the first to arrive is the first to be served.
type Limits = fairqueue.Limits

// A Sender says which client a request is of, which is asked only if requests wait. All clients of
// an IPv6 /48 count as one, because anybody has many.
type Sender interface{ Client() netip.Prefix }

// Why says what became of a request.
type Why uint8

const (
	// Admitted requests hold a slot.
	Admitted Why = iota
	// Busy means that no slot was free and the request may not wait.
	Busy
	// TooLong means that no slot came free in time, or that none would.
	TooLong
	// QueueFull means that no place was free, that the client holds as many as it may, or that
	// the request lost its place to another one.
	QueueFull
	// Exiting means that the process is about to end.
	Exiting
	// Left means that the client left, which is no refusal.
	Left
)

// A Result says what became of a request.
type Result struct {
	Why    Why
	Waited time.Duration // for its slot
}

// A Gate is the slots of a name, and who waits for them. It outlives configs. The zero value is
// ready for use. It is safe for concurrent use.
type Gate struct {
	mu      sync.Mutex
	keyless fairqueue.Queue             // of requests without a key
	keys    map[string]*fairqueue.Queue // while they have requests
	all     fairqueue.Common            // of all keys. Only requests with share count in the mean.
	clients map[netip.Prefix][]*Slot    // who waits, in the order of arrival
	places  uint64                      // how many were ever taken
}

// A Slot is the right of one request to have the upstream work on it. What is exported is set before
// [Gate.Enter], and it is not copied after that.
type Slot struct {
	Key               string // whose slots; "" if all requests share them
	From              Sender // who may not fill the queue
	fairqueue.Request        // of which the gate sets all but the Claim: who takes turns, with share

	gate  *Gate
	queue *fairqueue.Queue // while it waits for a slot or holds one
	since time.Time        // it is held; with share

	// While it waits:
	client netip.Prefix
	place  uint64        // when it got its place; 0 if it has none
	done   chan struct{} // closed when the wait is over
	why    Why           // how it ended
}

// Enter gives the request a slot, if need be after a wait, or says why it has none. A slot that
// was given must be released. Exiting is closed when the process is about to end: from then on
// nobody waits.
func (g *Gate) Enter(ctx context.Context, exiting <-chan struct{}, l Limits, s *Slot) Result {
	s.gate, s.Owner = g, s
	if !l.Share {
		s.Claim = fairqueue.Claim{Rank: fairqueue.First}
	}
	switch becomes := g.arrive(s, l); {
	case becomes == fairqueue.Waiting:
		return s.wait(ctx, exiting, l.Wait)
	case becomes == fairqueue.TooLong && l.Wait == 0:
		return Result{Why: Busy}
	default:
		return Result{Why: atOnce[becomes]}
	}
}

// atOnce says what becomes of a request that does not wait.
var atOnce = [...]Why{fairqueue.Served: Admitted, fairqueue.TooLong: TooLong, fairqueue.Full: QueueFull, fairqueue.Crowded: QueueFull}

// wait waits until the slot has come, or for so long.
func (s *Slot) wait(ctx context.Context, exiting <-chan struct{}, longest time.Duration) Result {
	began, why := time.Now(), Admitted
	select {
	case <-s.done:
	case <-time.After(longest):
		why = TooLong
	case <-ctx.Done():
		why = Left
	case <-exiting:
		why = Exiting
	}
	if why = s.gate.stop(s, why); why == Admitted && ctx.Err() != nil { // both have come
		s.Release(false)
		why = Left
	}
	return Result{why, time.Since(began)}
}

// arrive lets a request come for a slot: it gets one, a place in the queue, or is refused.
func (g *Gate) arrive(s *Slot, l Limits) fairqueue.Outcome {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queue(s.Key)
	q.SetLimits(l)
	if l.Share {
		s.since = time.Now()
	}
	if len(g.clients) > 0 {
		s.client = s.network()
		s.Crowded = g.crowded(s.client, l)
	}
	becomes, displaced := q.Arrive(&s.Request)
	var last *Slot
	switch {
	case g.all.Waiting > l.Queue: // it is shorter than before
	case l.Share && becomes == fairqueue.Crowded:
		last = g.lastOf(s)
	case !l.Share && becomes >= fairqueue.Full:
		last = g.heaviest(s.client)
	}
	if last != nil {
		g.leave(last, QueueFull)
		s.Crowded = false
		becomes, displaced = q.Arrive(&s.Request)
	}
	if displaced != nil {
		g.end(displaced.Owner.(*Slot), QueueFull)
	}
	switch becomes {
	case fairqueue.Served:
		s.queue = q
	case fairqueue.Waiting:
		s.queue = q
		g.place(s)
	}
	g.advance(s.Key, q) // the request may have brought more slots
	return becomes
}

// network returns what counts as one client here.
func (s *Slot) network() netip.Prefix { return bucketkey.ClientPrefix(s.From.Client().Addr(), 32, 48) }

// crowded reports whether a client holds as many places as it may.
func (g *Gate) crowded(client netip.Prefix, l Limits) bool {
	most := l.Queue - g.all.Waiting
	if l.Share {
		most = max(most, l.WaitingPerKey())
	}
	return len(g.clients[client]) >= most
}

// lastOf returns the request of the same client that goes last, if that is after this one, or nil.
func (g *Gate) lastOf(s *Slot) (last *Slot) {
	for _, o := range g.clients[s.client] {
		if cmp.Or(last, s).Before(&o.Request) {
			last = o
		}
	}
	return last
}

// heaviest returns the last request of the client that holds most places, at least two more
// than another one, or nil.
func (g *Gate) heaviest(than netip.Prefix) (last *Slot) {
	most := len(g.clients[than]) + 2
	for _, waiting := range g.clients {
		if n := len(waiting); n > most || n == most && (last == nil || waiting[n-1].place > last.place) {
			most, last = n, waiting[n-1]
		}
	}
	return last
}

// place gives a request a place in the queue.
func (g *Gate) place(s *Slot) {
	if g.clients == nil {
		g.clients = make(map[netip.Prefix][]*Slot)
	}
	s.client = s.network()
	g.clients[s.client] = append(g.clients[s.client], s)
	g.places++
	s.place, s.done = g.places, make(chan struct{})
}

// end takes the place of a request that waits for nothing any more, and tells it.
func (g *Gate) end(s *Slot, why Why) {
	waiting := g.clients[s.client]
	i := slices.Index(waiting, s)
	if waiting = slices.Delete(waiting, i, i+1); len(waiting) == 0 {
		delete(g.clients, s.client)
	} else {
		g.clients[s.client] = waiting
	}
	if s.place, s.why = 0, why; why != Admitted {
		s.queue = nil
	}
	close(s.done)
}

// leave lets a request give its place up. Its key keeps those that it waited for.
func (g *Gate) leave(s *Slot, why Why) {
	s.queue.Leave(&s.Request)
	g.end(s, why)
}

// stop ends a wait if it is not over, and returns how it has ended.
func (g *Gate) stop(s *Slot, why Why) Why {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.place > 0 {
		g.leave(s, why)
	}
	return s.why
}

// Release gives the slot back. Only the first call counts, and a slot that was not given is none.
// If the request was not served, its turn is refunded, and the time is no part of the mean.
// With share, Release returns for how long the slot was held, and zero otherwise. Any goroutine
// may call it.
func (s *Slot) Release(served bool) (held time.Duration) {
	g := s.gate
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	q := s.queue
	if q == nil || s.place > 0 {
		return 0
	}
	s.queue = nil
	if !s.since.IsZero() {
		held = max(1, time.Since(s.since))
	}
	counts := held
	if !served {
		counts = 0
	}
	q.Release(&s.Request, counts)
	g.advance(s.Key, q)
	return held
}

// SetLimits changes the limits of all who wait for slots, as a new config does. Those who have a
// place keep it, and wait for no longer than they were told.
func (g *Gate) SetLimits(l Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, key := range append(slices.Collect(maps.Keys(g.keys)), "") {
		q := g.queue(key)
		q.SetLimits(l)
		g.advance(key, q)
	}
}

// queue finds or makes that of a key.
func (g *Gate) queue(key string) *fairqueue.Queue {
	if key == "" {
		g.keyless.All = &g.all
		return &g.keyless
	}
	q := g.keys[key]
	if q == nil {
		if g.keys == nil {
			g.keys = make(map[string]*fairqueue.Queue)
		}
		q = &fairqueue.Queue{All: &g.all}
		g.keys[key] = q
	}
	return q
}

// advance gives free slots of a key to those whose turn it is, and forgets the key after its last
// request. It is called when a request comes, a slot is given back or limits change.
func (g *Gate) advance(key string, q *fairqueue.Queue) {
	for r := q.Next(); r != nil; r = q.Next() {
		s := r.Owner.(*Slot)
		if !s.since.IsZero() {
			s.since = time.Now()
		}
		g.end(s, Admitted)
	}
	if key != "" && q.Idle() {
		delete(g.keys, key)
	}
}

// watchedKey begins the keys of requests in shadow. Others never begin so, because a leading @ is escaped.
const watchedKey = "@shadow/"

// Watch gives a request in shadow a slot that is released as not served, and returns how many others of
// its key have one. They are apart from those of enforced requests, since slow clients keep them longer.
func (g *Gate) Watch(key string) (others int, s *Slot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s = &Slot{Key: watchedKey + key, gate: g}
	s.queue = g.queue(s.Key)
	return s.queue.Watch(&s.Request), s
}

// A Load is what a gate has to do.
type Load struct {
	Running int                  // requests that hold a slot, or are in flight in shadow
	Queued  int                  // requests that wait,
	Waiting [fairqueue.Ranks]int // by rank
	Mean    time.Duration        // for which a slot is held; with share
}

// Load returns what the gate has to do.
func (g *Gate) Load() (l Load) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.Running, l.Queued, l.Mean = g.all.Running, g.all.Waiting, g.all.Mean.Duration()
	for _, waiting := range g.clients {
		for _, s := range waiting {
			l.Waiting[s.Rank]++
		}
	}
	return l
}
