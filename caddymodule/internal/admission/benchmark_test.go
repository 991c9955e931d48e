package admission

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
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
			ring := make([]*Grant, waiting+1) // the one that is served, and behind it those that wait
			for i := range ring {
				ring[i] = arrive(entry)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % len(ring) {
				served, next := ring[i], ring[(i+1)%len(ring)]
				ring[i] = arrive(entry)
				served.Release()
				<-next.steps[0].slot.done
			}
		})
	}
}

// arrive lets a request come for a slot.
func arrive(e Entry) *Grant {
	g := new(Grant)
	g.setSteps([]Entry{e})
	g.take(0, nil)
	return g
}

func BenchmarkSimulate(b *testing.B) {
	entry := Entry{Zone: new(Zone), Key: "203.0.113.7", InFlight: 5}
	since := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		s := Simulate(since, []Entry{entry}, func(Result) {})
		s.Begin()
		s.Release()
	}
}

// A crowd are requests that hold the five slots of a zone or wait for their turn.
type crowd struct {
	zone     *Zone
	requests []*Grant
	came     int
	took     []time.Duration
}

func newCrowd(waiting int) *crowd {
	c := &crowd{zone: new(Zone)}
	for range waiting + 5 {
		c.requests = append(c.requests, arrive(c.next()))
	}
	return c
}

// next returns what the next request wants.
func (c *crowd) next() Entry {
	c.came++
	return shared(c.zone, 5, fairqueue.Rank(c.came%fairqueue.Ranks), fmt.Sprint("client", c.came))
}

// decide lets a request end, so that another one gets its slot, and one more arrive.
func (c *crowd) decide() (took time.Duration) {
	served := slices.IndexFunc(c.requests, func(g *Grant) bool { return !g.steps[0].slot.waits })
	last, next := c.requests[served], c.next()
	began := time.Now()
	last.Release()
	c.requests[served] = arrive(next)
	return time.Since(began)
}

// decisions returns for how long half of n decisions take at most, and 99 % of them.
func (c *crowd) decisions(n int) (half, most time.Duration) {
	c.took = c.took[:0]
	for range n {
		c.took = append(c.took, c.decide())
	}
	slices.Sort(c.took)
	return c.took[n/2], c.took[n*99/100]
}

func (c *crowd) leave() {
	for _, g := range c.requests {
		c.zone.stop(g.steps[0].slot, Left)
		g.Release()
	}
}

// BenchmarkTurns is one request that arrives and another one that gets a slot, while
// so many wait for their turn. It reports the 99th percentile of both together.
func BenchmarkTurns(b *testing.B) {
	for _, waiting := range []int{20, 200} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			c := newCrowd(waiting)
			defer c.leave()
			took := make([]time.Duration, 0, 1<<20)
			b.ReportAllocs()
			for b.Loop() {
				if d := c.decide(); len(took) < cap(took) {
					took = append(took, d)
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}

// A decision is one request that arrives and another one that gets its slot. With ten
// times as many in the rows it takes a little longer, and not ten times as long.
func TestADecisionBesideTwoHundredThatWaitIsQuick(t *testing.T) {
	few, many := newCrowd(20), newCrowd(200)
	defer few.leave()
	defer many.leave()
	if waiting, served := many.zone.Counts(); waiting != 200 || served != 5 {
		t.Fatalf("got %d waiting and %d served, want 200 and 5", waiting, served)
	}
	ratio, slowest := math.Inf(1), time.Hour
	for range 20 { // short parts in turn, because the machine may be busy
		ofFew, _ := few.decisions(200)
		ofMany, p99 := many.decisions(200)
		ratio = min(ratio, float64(ofMany)/float64(ofFew))
		slowest = min(slowest, p99)
	}
	t.Logf("%.1f times as long with 200 as with 20; 99 %% take at most %v", ratio, slowest)
	if ratio > 5 {
		t.Errorf("got a decision that takes %.1f times as long, want at most 5 times", ratio)
	}
	if limit := 50 * time.Microsecond; slowest > limit && long && !raceDetector {
		t.Errorf("got %v for the 99th percentile, want at most %v", slowest, limit)
	}
	if waiting, served := many.zone.Counts(); waiting != 200 || served != 5 {
		t.Errorf("got %d waiting and %d served in the end, want 200 and 5", waiting, served)
	}
}
