package settlement

import (
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// A Meter divides the time of an upstream's workers among the requests that they
// serve. A request is running while the upstream works on it: it has been sent
// wholly, it has not been answered wholly, and nobody waits for the client to take
// in more of the answer. Each running request is charged min(1, workers / running)
// seconds a second, so all of them together are never charged more than the workers
// have to give. Clients that send or read slowly run only while the upstream works,
// and make nobody's share smaller by being slow.
//
// A Meter outlives configs. The zero value is ready for use, and safe for concurrent
// use. Each event costs the same, however many requests there are.
type Meter struct {
	// Clock is the time that the meter goes by. If nil, it is the process's. It must not
	// change.
	Clock clock.Clock

	mu      sync.Mutex
	workers float64   // as the last request to begin gave them
	running int       // requests
	share   float64   // seconds that a request is charged that runs since running was 0
	at      time.Time // when share was true
}

// Running returns how many requests the upstream works on.
func (m *Meter) Running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running
}

// advance brings the share up to date. The caller holds the lock.
func (m *Meter) advance() {
	now := clock.Now(m.Clock)
	if m.running > 0 {
		m.share += now.Sub(m.at).Seconds() * min(1, m.workers/float64(m.running))
	}
	m.at = now
}

// A Metered is one request on a meter, by a rule with Workers. Its methods may be called by
// several goroutines: a proxy sends the body beside reading the answer.
type Metered struct {
	Rule  *Rule
	Meter *Meter

	// Guarded by the meter's lock:
	sent   bool    // wholly, to the next handler
	paused int     // how many reasons there are why the upstream is not at work
	over   bool    // it is answered, or has become a tunnel
	since  float64 // the meter's share when it began to run, if it runs
	share  float64 // seconds that it is charged for the time before
}

func (r *Metered) running() bool { return r.sent && r.paused == 0 && !r.over }

// change applies a change, at this instant.
func (r *Metered) change(apply func(*Metered)) {
	m := r.Meter
	m.mu.Lock()
	defer m.mu.Unlock()
	before := r.running()
	apply(r)
	after := r.running()
	if before == after {
		return
	}
	m.advance()
	if after {
		m.running++
		r.since = m.share
		return
	}
	m.running--
	r.share += m.share - r.since
	if m.running == 0 {
		m.share = 0 // large numbers would be less exact
	}
}

// begin says that the request has been sent wholly. From now on its number of workers
// counts, for all that run.
func (r *Metered) begin() {
	r.change(func(r *Metered) {
		if !r.sent && !r.over {
			r.Meter.advance() // with the workers there were
			r.Meter.workers = float64(r.Rule.Workers)
		}
		r.sent = true
	})
}

func (r *Metered) pause()  { r.change(func(r *Metered) { r.paused++ }) }
func (r *Metered) resume() { r.change(func(r *Metered) { r.paused-- }) }
func (r *Metered) end()    { r.change(func(r *Metered) { r.over = true }) }

// seconds returns what the request is charged, and whether it was sent wholly. Call
// it after end.
func (r *Metered) seconds() (share float64, sent bool) {
	r.Meter.mu.Lock()
	defer r.Meter.mu.Unlock()
	return r.share, r.sent
}
