package fairqueue

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"
)

// BenchmarkFreeSlot is a request that gets a slot at once and gives it back.
func BenchmarkFreeSlot(b *testing.B) {
	q := newQueue(5)
	r := &Request{Claim: &Claim{Rank: Returned, Keys: [2]string{"203.0.113.7", "pass:0123456789abcdef"}}}
	b.ReportAllocs()
	for b.Loop() {
		q.Arrive(r)
		q.Release(r, time.Millisecond)
	}
}

// BenchmarkDecision is one request that arrives and another one that gets a slot,
// while so many wait. It reports the 99th percentile of both together.
func BenchmarkDecision(b *testing.B) {
	for _, waiting := range []int{20, 200, 2000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			q := &Queue{Common: new(Common)}
			q.SetLimits(Limits{InFlight: 5, MaxWait: time.Hour, MaxWaiting: waiting + 1})
			var running []*Request
			n := 0
			arrive := func(r *Request) {
				r.Rank = Rank(n % Ranks)
				if n++; q.Arrive(r).Outcome == Served {
					running = append(running, r)
				}
			}
			free := make([]*Request, 0, 2)
			for i := range waiting + 6 {
				arrive(&Request{Claim: &Claim{Keys: [2]string{"address" + strconv.Itoa(i), "pass" + strconv.Itoa(i)}}})
			}
			free = append(free, &Request{Claim: &Claim{Keys: [2]string{"address", "pass"}}})
			took := make([]time.Duration, 0, 1<<20)
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % len(running) {
				began := time.Now()
				q.Release(running[i], time.Second)
				next := q.Next()
				free = append(free, running[i])
				running[i] = next
				arrive(free[0])
				if len(took) < cap(took) {
					took = append(took, time.Since(began))
				}
				free = append(free[:0], free[1:]...)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}
