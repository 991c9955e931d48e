package caddymodule

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// owed is what this node has poured into buckets of its own while the shared
// store was down, and has not told the store yet. Without it everybody would find
// an empty bucket at the end of an outage.
type owed struct {
	some    atomic.Bool // anything: mostly nothing is
	mu      sync.Mutex
	carried map[bucketName]carried
	broom   broom
}

// carried is how full a bucket was before the first charge of an outage. What it
// holds beyond what is left of that is this node's own.
type carried struct {
	level float64
	leak  float64 // units a second
	at    time.Time
	until time.Time // when a full bucket would be empty: then nothing is owed
}

// note remembers a bucket that is charged without the store, and how full it was
// when it first was.
func (o *owed) note(c *leakybucket.Charge, d *leakybucket.Decision) {
	now := time.Now()
	name := bucketName{c.Zone, c.Key, c.Shadow}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.carried == nil {
		o.carried = make(map[bucketName]carried)
	}
	if o.broom.due(len(o.carried), now) {
		maps.DeleteFunc(o.carried, func(_ bucketName, was carried) bool { return now.After(was.until) })
		o.broom.done(len(o.carried), now)
	}
	was, known := o.carried[name]
	if !known && len(o.carried) >= mostKept {
		return
	}
	if !known {
		was = carried{level: d.Level, leak: c.Limit.Leak, at: now}
	}
	was.until = now.Add(c.Limit.TimeToEmpty(c.Limit.Capacity + c.Debt))
	o.carried[name] = was
	o.some.Store(true)
}

// settled returns how much of what a bucket holds is owed, once.
func (o *owed) settled(c *leakybucket.Charge, level float64) float64 {
	name := bucketName{c.Zone, c.Key, c.Shadow}
	o.mu.Lock()
	defer o.mu.Unlock()
	was, known := o.carried[name]
	if !known {
		return 0
	}
	delete(o.carried, name)
	o.some.Store(len(o.carried) > 0)
	return level - max(0, was.level-was.leak*time.Since(was.at).Seconds())
}

// repay pours what is owed into the shared bucket of the i-th charge, of which
// local is this node's share. The request does not wait for it.
func (a *App) repay(q *question, i int, local *leakybucket.Charge) {
	asked := *local
	asked.Cost, asked.Probe = -1, true // fits nowhere and begins nothing
	var now [1]leakybucket.Decision
	if a.local.Take(context.Background(), []leakybucket.Charge{asked}, now[:]) != nil {
		return
	}
	diff := a.remote.owed.settled(local, now[0].Level)
	if diff <= 0 {
		return
	}
	settlement := leakybucket.Settlement{Charge: q.charges[i], Was: q.decisions[i], Diff: diff}
	a.remote.enter()
	go func() {
		defer a.remote.leave()
		// What fails is said and counted by the remote, and stays unpaid.
		_ = a.settle(context.Background(), a.remote, 0, []leakybucket.Settlement{settlement})
	}()
}
