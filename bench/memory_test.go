package bench

import (
	"math"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
		stopped, began := m.PauseTotalNs, clock(unix.CLOCK_PROCESS_CPUTIME_ID)
		runtime.GC()
		took := clock(unix.CLOCK_PROCESS_CPUTIME_ID) - began
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
