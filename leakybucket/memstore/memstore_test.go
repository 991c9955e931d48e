package memstore

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func BenchmarkQuick(b *testing.B) {
	lim := leakybucket.Limit{Capacity: 1e9, Leak: 1e9}
	for _, n := range []int{1, 1000000} {
		s := New(Options{MaxBuckets: 2000000})
		cs := make([]leakybucket.Charge, n)
		for i := range cs {
			cs[i] = leakybucket.Charge{Zone: "site", Key: "203.0." + string(rune('a'+i%26)) + itoa(i), Limit: lim, Cost: 1}
		}
		if n > 1 {
			for i := range cs {
				cs[i].Limit.Leak = 1e-3
				cs[i].Limit.Capacity = 1e5
			}
		}
		var d [1]leakybucket.Decision
		x := uint32(1)
		b.Run(itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				x = x*1664525 + 1013904223
				i := int(uint64(x) * uint64(n) >> 32)
				s.Take(nil, cs[i:i+1], d[:])
			}
		})
	}
}
func itoa(i int) string {
	var b [8]byte
	p := 8
	for {
		p--
		b[p] = byte('0' + i%10)
		i /= 10
		if i == 0 {
			return string(b[p:])
		}
	}
}
