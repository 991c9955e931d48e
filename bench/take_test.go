package bench

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkTake measures one decision, by the clock and by the processor time of the
// process, which other work on the machine changes less. The limiters take turns within
// each case, so that they meet the same conditions. For several samples, run it several
// times: with -count they would not take turns.
func BenchmarkTake(b *testing.B) {
	cases := []struct {
		name string
		run  func(*testing.B, limiter)
	}{
		{"keys=1/result=allowed", benchmarkAllowed},
		{"keys=1/result=refused", benchmarkRefused},
		{"keys=1e6/order=uniform", benchmarkUniform},
		{"keys=1e6/order=zipf", benchmarkZipf},
		{"keys=1e6/order=first-touch", benchmarkFirstTouch},
	}
	for _, c := range cases {
		for _, l := range limiters {
			c.run(b, limiter{"limiter=" + l.name + "/" + c.name, l.open})
		}
	}
}

func benchmarkAllowed(b *testing.B, l limiter) {
	b.Run(l.name, func(b *testing.B) {
		s := l.open(bottomless)
		defer s.close()
		benchmarkTakes(b, s, one(), true)
	})
}

func benchmarkRefused(b *testing.B, l limiter) {
	b.Run(l.name, func(b *testing.B) {
		s := l.open(closed)
		defer s.close()
		s.taker()(one().at(0))
		benchmarkTakes(b, s, one(), false)
	})
}

func benchmarkUniform(b *testing.B, l limiter) { benchmarkFilled(b, l, uniform()) }
func benchmarkZipf(b *testing.B, l limiter)    { benchmarkFilled(b, l, zipf()) }

// benchmarkFilled fills a store once for all runs of the testing package.
func benchmarkFilled(b *testing.B, l limiter, order *keys) {
	var s store
	b.Run(l.name, func(b *testing.B) {
		if s.taker == nil {
			s = l.open(roomy)
			fill(s.taker())
		}
		benchmarkTakes(b, s, order, true)
	})
	if s.close != nil { // -bench may have left it out
		s.close()
	}
}

// benchmarkTakes asks for one key after the other. Each goroutine starts at a
// different key.
func benchmarkTakes(b *testing.B, s store, order *keys, want bool) {
	var goroutines atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	began := processTime()
	b.RunParallel(func(pb *testing.PB) {
		take := s.taker()
		i := int(goroutines.Add(1)) * 104_729 % order.len()
		for pb.Next() {
			if take(order.at(i)) != want {
				b.Errorf("take: got allowed %v, want %v", !want, want)
				return
			}
			if i++; i == order.len() {
				i = 0
			}
		}
	})
	b.ReportMetric(float64(processTime()-began)/float64(b.N), "cpu-ns/op")
}

// benchmarkFirstTouch asks for a million new clients in a new store, again and
// again until b.N is reached.
func benchmarkFirstTouch(b *testing.B, l limiter) {
	b.Run(l.name, func(b *testing.B) {
		all, used := everyoneOnce(), time.Duration(0)
		b.ReportAllocs()
		b.ResetTimer()
		for left := b.N; left > 0; left -= all.len() {
			b.StopTimer()
			s := l.open(lasting)
			runtime.GC() // what the last store left behind
			b.StartTimer()
			began := processTime()
			n, workers := min(left, all.len()), runtime.GOMAXPROCS(0)
			var done sync.WaitGroup
			for w := range workers {
				done.Go(func() {
					take := s.taker()
					for i := n * w / workers; i < n*(w+1)/workers; i++ {
						if !take(all.at(i)) {
							b.Error("take: got refused, want allowed")
							return
						}
					}
				})
			}
			done.Wait()
			b.StopTimer()
			used += processTime() - began
			s.close()
		}
		b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
	})
}

// BenchmarkMemory fills a store with a million clients. It reports the heap per client,
// and what the garbage collector has to do while the store is there: how long a
// collection takes and how long it stops the program. Its own time means nothing.
func BenchmarkMemory(b *testing.B) {
	for _, l := range limiters {
		b.Run("limiter="+l.name+"/keys=1e6", func(b *testing.B) {
			var f footprint
			for range b.N {
				f = footprintOf(l)
			}
			b.ReportMetric(f.bytes, "B/key")
			b.ReportMetric(f.objects, "objects/key")
			b.ReportMetric(float64(f.collection.Microseconds())/1000, "gc-cpu-ms")
			b.ReportMetric(float64(f.pause.Microseconds()), "gc-pause-us")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A footprint is what a store of a million clients costs.
type footprint struct {
	bytes, objects    float64       // of the heap, for each client
	collection, pause time.Duration // of the least of some collections
}

func footprintOf(l limiter) (f footprint) {
	everyoneOnce()
	before := heap()
	s := l.open(lasting)
	fill(s.taker())
	after := heap()
	f = footprint{
		bytes:   (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / manyKeys,
		objects: (float64(after.HeapObjects) - float64(before.HeapObjects)) / manyKeys,
	}
	f.collection, f.pause = math.MaxInt64, math.MaxInt64
	for range 5 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		stopped, began := m.PauseTotalNs, processTime()
		runtime.GC()
		took := processTime() - began
		runtime.ReadMemStats(&m)
		f.collection, f.pause = min(f.collection, took), min(f.pause, time.Duration(m.PauseTotalNs-stopped))
	}
	s.close()
	runtime.KeepAlive(s)
	return f
}

// heap collects twice, so that finalizers and pools keep nothing.
func heap() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}
