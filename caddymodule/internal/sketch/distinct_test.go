package sketch

import (
	"math"
	"sync"
	"testing"
)

// Three standard errors and a half, and near zero three keys that meet, are never exceeded.
func TestDistinct(t *testing.T) {
	c := new(Distinct)
	if got := c.Estimate(); got != 0 {
		t.Errorf("without keys: got %d", got)
	}
	for n := range 2_000_000 {
		c.Add(Hash(n))
		c.Add(Hash(n / 2)) // which came before
		switch n + 1 {
		case 1, 10, 100, 1000, 10_000, 45_000, 58_000, 100_000, 1_000_000, 2_000_000:
			got, want := float64(c.Estimate()), float64(n+1)
			if math.Abs(got-want) > max(want*0.055, 5) {
				t.Errorf("after %v keys: got %v, want within 5.5 %%", want, got)
			}
		}
	}
	if c.Reset(); c.Estimate() != 0 {
		t.Errorf("after a reset: got %d", c.Estimate())
	}
}

func TestDistinctOfManyCallers(t *testing.T) {
	const callers, keys = 8, 300
	c := new(Distinct)
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range keys {
				c.Add(Hash((i + caller*37) % keys))
			}
		})
	}
	all.Wait()
	if got := c.Estimate(); got < keys*0.9 || got > keys*1.1 {
		t.Errorf("%d callers with the same %d keys: got %d", callers, keys, got)
	}
}
