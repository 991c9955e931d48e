package admission

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
)

func BenchmarkAdmit(b *testing.B) {
	ctx := context.Background()
	for _, held := range []bool{false, true} { // another request of the key, so that its state is kept
		for _, zones := range []int{1, 3} {
			b.Run(fmt.Sprintf("slots=free/held=%v/zones=%d", held, zones), func(b *testing.B) {
				gate := &Gate{Exiting: make(chan struct{})}
				var entries []Entry
				for i := range zones {
					entries = append(entries, Entry{Zone: &Zone{Name: fmt.Sprint(i)}, Key: "203.0.113.7", InFlight: 5})
				}
				if held {
					p, _ := gate.Admit(ctx, time.Time{}, entries, nil)
					defer p.Release()
				}
				b.ReportAllocs()
				for b.Loop() {
					p, _ := gate.Admit(ctx, time.Time{}, entries, nil)
					p.Release()
				}
			})
		}
	}
	b.Run("slots=none", func(b *testing.B) {
		gate, entries := new(Gate), []Entry{{Zone: new(Zone), Key: "203.0.113.7", InFlight: 1}}
		p, _ := gate.Admit(ctx, time.Time{}, entries, nil)
		defer p.Release()
		b.ReportAllocs()
		for b.Loop() {
			gate.Admit(ctx, time.Time{}, entries, nil)
		}
	})
}

// BenchmarkQueue is a request that comes to the end of a queue, and one at its
// head that gets a slot, wakes up and gives it back.
func BenchmarkQueue(b *testing.B) {
	for _, waiting := range []int{1, 1000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			entry := Entry{Zone: new(Zone), Key: "203.0.113.7", InFlight: 1, MaxWait: time.Hour, MaxWaiting: waiting + 1}
			come := func() *request {
				r := &request{open: true}
				r.steps = append(r.room[:0], step{Entry: entry})
				r.start(time.Time{})
				return r
			}
			ring := make([]*request, waiting+1) // the one that is served, and behind it those that wait
			for i := range ring {
				ring[i] = come()
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % len(ring) {
				served, next := ring[i], ring[(i+1)%len(ring)]
				ring[i] = come()
				served.release()
				<-next.done
				next.awake()
			}
		})
	}
}

func BenchmarkSimulate(b *testing.B) {
	entry := Entry{Zone: new(Zone), Key: "203.0.113.7", InFlight: 5}
	since := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		s := Simulate(since, entry, func(Result) {})
		s.Passed()
		s.Release()
	}
}

// BenchmarkTurns is one request that arrives and another one that gets a slot, while
// so many wait for their turn. It reports the 99th percentile of both together.
func BenchmarkTurns(b *testing.B) {
	for _, waiting := range []int{20, 200} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			zone, n := new(Zone), 0
			come := func() *request {
				r := &request{open: true}
				e := shared(zone, 5, fairqueue.Rank(n%fairqueue.Ranks), fmt.Sprint("client", n))
				n++
				r.steps = append(r.room[:0], step{Entry: e})
				r.start(time.Time{})
				return r
			}
			var all []*request
			for range waiting + 5 {
				all = append(all, come())
			}
			took := make([]time.Duration, 0, 1<<20)
			b.ReportAllocs()
			for b.Loop() {
				served := slices.IndexFunc(all, func(r *request) bool { return r.over })
				began := time.Now()
				all[served].release()
				all[served] = come()
				if len(took) < cap(took) {
					took = append(took, time.Since(began))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
			for _, r := range all {
				r.cancel(Left)
				r.release()
			}
		})
	}
}
