package caddymodule

import (
	"cmp"
	"math"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/topk"
)

// busiestFor is for how long keys are remembered as the busiest ones, at least.
const busiestFor = 5 * time.Minute

// busiestKeys finds the keys that hold slots for the longest time, in bounded memory.
type busiestKeys struct {
	mu          sync.Mutex
	since       time.Time
	last, count topk.Counter // of milliseconds
}

func (b *busiestKeys) add(key string, held time.Duration, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rotate(now)
	b.count.AddTimes(key, int(held/time.Millisecond))
}

// rotate forgets what is too old.
func (b *busiestKeys) rotate(now time.Time) {
	switch age := now.Sub(b.since); {
	case age > 2*busiestFor:
		b.since, b.last, b.count = now, topk.Counter{}, topk.Counter{}
	case age > busiestFor:
		b.since, b.last, b.count = now, b.count, topk.Counter{}
	}
}

// A busyKey is a key and for how long it has held slots lately.
type busyKey struct {
	Key     string  `json:"key"`
	Seconds float64 `json:"seconds"`
}

// top returns the busiest keys of the last five to ten minutes.
func (b *busiestKeys) top(n int, now time.Time) (keys []busyKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rotate(now)
	var both topk.Counter
	for _, counter := range []*topk.Counter{&b.last, &b.count} {
		for _, k := range counter.Top(math.MaxInt) {
			both.AddTimes(k.Key, k.AtLeast)
		}
	}
	for _, k := range both.Top(n) {
		keys = append(keys, busyKey{k.Key, float64(k.AtLeast) / 1000})
	}
	return keys
}

// A rowStatus is a row of a zone with share.
type rowStatus struct {
	Rank    string `json:"rank"`
	Waiting int    `json:"waiting"`
	Ahead   int    `json:"ahead"` // in the rows that are served before it
}

// A slotStatus is what the slots of a zone with share have to do.
type slotStatus struct {
	Busy        int         `json:"busy"`
	Slots       int         `json:"slots"`
	MeanSeconds float64     `json:"mean_seconds"`
	Rows        []rowStatus `json:"rows"`
	Top         []busyKey   `json:"top"` // by the seconds that they held slots
}

// busiestShown is how many of the busiest keys the status shows.
const busiestShown = 10

// describeShare describes the slots of a zone with share, or returns nil.
func (z *runningZone) describeShare(now time.Time) *slotStatus {
	if z.Share == nil {
		return nil
	}
	load, ahead := z.live.enforced.Load(), 0
	s := &slotStatus{
		Busy: load.Running, Slots: cmp.Or(load.Slots, z.InFlight), MeanSeconds: load.Mean.Seconds(),
		Top: z.live.busiest.top(busiestShown, now),
	}
	for _, rank := range allRanks {
		s.Rows = append(s.Rows, rowStatus{rank.String(), load.Waiting[rank], ahead})
		ahead += load.Waiting[rank]
	}
	return s
}
