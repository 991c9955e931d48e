package memstore

import (
	"math"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func TestPutIgnoresWhatIsNoState(t *testing.T) {
	for _, state := range []leakybucket.State{{Level: math.Inf(1)}, {Level: math.NaN()}, {Level: -1}, {Level: 1, Leak: math.Inf(1)}} {
		s := New(Options{})
		c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 1, Leak: 1}}
		state.At = s.Now()
		s.Put(&c, state)
		if got := s.Buckets(); len(got) > 0 {
			t.Errorf("put of %+v: got buckets %v, want none", state, got)
		}
	}
}
