package pgstore

import (
	"math"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Whatever stands in the table, what is read of it is a state that limits can work with.
func FuzzRow(f *testing.F) {
	column := func(size int, first byte) []byte {
		value := make([]byte, size)
		if size > 0 {
			value[0] = first
		}
		return value
	}
	f.Add([]byte("~login/203.0.113.7"), column(6, 0), column(8, 0x40), column(8, 0), column(8, 0), column(8, 0), column(8, 0x3f))
	f.Add([]byte{}, column(6, 1), column(8, 0x7f), column(8, 0x7f), column(8, 0x80), column(8, 0xff), column(8, 0xff))
	f.Add([]byte{0xff}, column(0, 0), column(4, 1), column(9, 1), column(1, 1), column(8, 1), column(2, 1))
	f.Fuzz(func(t *testing.T, name, tid, level, at, blockedUntil, step, leak []byte) {
		_, s := decodeRow([][]byte{name, tid, level, at, blockedUntil, step, leak})
		c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 3, Leak: 1.5}, Cost: 1}
		var d leakybucket.Decision
		c.Take(&s, leakybucket.Instant(1e15), &d)
		if !(s.Level >= 0 && s.Level <= 4e12+1) || !(d.Level >= 0) || math.IsInf(d.Level, 0) {
			t.Errorf("got the state %+v and the decision %+v", s, d)
		}
		if d.Fits != d.Poured {
			t.Errorf("got %+v, want a charge that fits to be poured", d)
		}
	})
}
