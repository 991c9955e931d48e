package gate

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
)

// newSlot returns the slot of a request that is about to arrive.
func newSlot(g *Gate, r Request) *Slot {
	s := &Slot{Request: r, gate: g}
	s.turn.Owner, s.turn.Claim = s, cmp.Or(r.Claim, &noClaim)
	return s
}

// BenchmarkQueue is one request that gives its slot back, so that another one gets it, and one
// that arrives, while so many wait. It reports the 99th percentile of both together, of the best
// 200 in a row, because the machine may be busy.
func BenchmarkQueue(b *testing.B) {
	for _, share := range []bool{false, true} {
		for _, waiting := range []int{20, 200, 2000} {
			b.Run(fmt.Sprintf("share=%v/waiting=%d", share, waiting), func(b *testing.B) {
				g, l := new(Gate), Limits{Slots: 5, Wait: 24 * time.Hour, Queue: waiting, Share: share}
				var slots []*Slot
				arrive := func(n int) *Slot {
					s := newSlot(g, turn(n, fairqueue.Rank(n%fairqueue.Ranks), fmt.Sprint(n)))
					g.arrive(s, l)
					return s
				}
				for n := range waiting + l.Slots {
					slots = append(slots, arrive(n))
				}
				took, p99 := make([]time.Duration, 0, 200), time.Hour
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					served := slices.IndexFunc(slots, func(s *Slot) bool { return s.place == 0 })
					began := time.Now()
					slots[served].Release(true)
					slots[served] = arrive(n)
					if took = append(took, time.Since(began)); len(took) == cap(took) {
						slices.Sort(took)
						p99, took = min(p99, took[198]), took[:0]
					}
				}
				b.ReportMetric(float64(p99.Nanoseconds()), "p99-ns")
			})
		}
	}
}
