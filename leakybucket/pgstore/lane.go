package pgstore

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	// mostCharges bounds a batch, so that nobody waits for a statement of
	// thousands of rows.
	mostCharges = 500

	// A batch outlives callers who are in a hurry, since to leave a statement
	// is to lose its connection. It is given up when it can no longer be of use:
	// PostgreSQL hangs, or the network has lost a packet, and a new connection
	// would be sooner.
	leastPatience = 500 * time.Millisecond
	mostPatience  = 10 * time.Second
)

// A call is a Take or a Settle that waits for its answer. It has copies of what
// it was asked, since who asked may leave before it is done.
type call struct {
	names       []string // of the buckets, one for each charge or settlement
	charges     []leakybucket.Charge
	decisions   []leakybucket.Decision
	settlements []leakybucket.Settlement

	gone     <-chan struct{} // closed when the caller has left
	deadline time.Time       // when the caller leaves at the latest; zero if never
	answer   chan error      // has room for it
}

// A lane works off calls, a batch at a time. Those that come while one is under
// way make up the next, which leaves when it returns: nobody waits for a timer.
type lane struct {
	mu      sync.Mutex
	waiting []*call // in the order in which they came
	closed  bool

	wake chan struct{} // has room for one
}

func newLane() *lane { return &lane{wake: make(chan struct{}, 1)} }

// join lets a call wait for the next batch.
func (l *lane) join(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	l.waiting = append(l.waiting, c)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// leave takes back a call that no batch has in hand yet.
func (l *lane) leave(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, c); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// next moves the calls of the next batch to those given, but for callers who
// have left and only must still notice it.
func (l *lane) next(calls []*call) []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	charges, taken := 0, 0
	for _, c := range l.waiting {
		if charges += len(c.names); charges > mostCharges && len(calls) > 0 {
			break
		}
		taken++
		select {
		case <-c.gone:
			charges -= len(c.names)
		default:
			calls = append(calls, c)
		}
	}
	l.waiting = slices.Delete(l.waiting, 0, taken)
	return calls
}

// work works off calls until ctx ends, and then turns away those that wait.
func (l *lane) work(ctx context.Context, do func(context.Context, *batch) error) {
	defer l.close()
	var b batch
	var calls []*call
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		for ctx.Err() == nil {
			clear(calls)
			if calls = l.next(calls[:0]); len(calls) == 0 {
				break
			}
			b.set(calls)
			b.answer(doWithin(b.patience(), &b, do))
			l.gather()
		}
	}
}

// gather lets those who were answered have a say before the next batch leaves,
// else they would find it gone and small. It yields as long as that brings in
// more, and waits for nobody.
func (l *lane) gather() {
	for before := -1; ; {
		l.mu.Lock()
		now := len(l.waiting)
		l.mu.Unlock()
		if now == before {
			return
		}
		before = now
		runtime.Gosched()
	}
}

// doWithin does a batch. It is not to end with the store: what was asked before
// the store was closed is answered.
func doWithin(patience time.Duration, b *batch, do func(context.Context, *batch) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return do(ctx, b)
}

// patience returns how long it can be of use to somebody to wait for the batch.
func (b *batch) patience() time.Duration {
	longest := leastPatience
	for _, c := range b.calls {
		if c.deadline.IsZero() {
			return mostPatience
		}
		longest = max(longest, time.Until(c.deadline))
	}
	return min(longest, mostPatience)
}

// answer answers all calls that were not answered yet.
func (b *batch) answer(err error) {
	for _, c := range b.calls {
		c.answer <- err
	}
	b.calls = b.calls[:0]
}

func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, c := range l.waiting {
		c.answer <- errClosed
	}
	l.waiting = nil
}
