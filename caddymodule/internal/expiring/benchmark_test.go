package expiring

import (
	"testing"
	"time"
)

// BenchmarkPut is what a new entry costs in a flood, while as many end.
func BenchmarkPut(b *testing.B) {
	for name, entries := range map[string]int{"hundred": 100, "hundred_thousand": 100_000} {
		b.Run("entries="+name, func(b *testing.B) {
			m, now, n := New[int, int](1_000_000), time.Now(), 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				now = now.Add(time.Millisecond)
				m.Put(n, n, now.Add(time.Duration(entries)*time.Millisecond), now)
			}
		})
	}
}
