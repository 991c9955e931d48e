package sketch

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestAFewKeysAreCountedExactly(t *testing.T) {
	var c Counter[string]
	for i := range 60 {
		for range i + 1 {
			c.Add(strconv.Itoa(i), 1)
		}
	}
	want := []Key[string]{{"59", 60}, {"58", 59}, {"57", 58}}
	got := c.Top(3)
	check.That(t, slices.Equal(got, want), "got %v, want %v", got, want)
}

func TestAnEmptyCounterHasNoKeys(t *testing.T) {
	got := new(Counter[string]).Top(3)
	check.That(t, len(got) == 0, "got %v, want none", got)
}

// TestHeavyKeysAreFoundAmongAFloodOfOthers adds three keys among 200,000 that come
// once each. Memory stays bounded, and no key is said to come more often than it did.
func TestHeavyKeysAreFoundAmongAFloodOfOthers(t *testing.T) {
	var c Counter[string]
	random := rand.New(rand.NewPCG(1, 2))
	came := make(map[string]int)
	for i := range 200_000 {
		key := "once" + strconv.Itoa(i)
		switch n := random.IntN(100); {
		case n < 20:
			key = "a"
		case n < 35:
			key = "b"
		case n < 45:
			key = "c"
		}
		came[key]++
		c.Add(key, 1)
	}
	got := c.Top(3)
	for i, key := range []string{"a", "b", "c"} {
		check.Assume(t, got[i].Key == key, "got %v, want a, b and c", got)
		check.That(t, got[i].AtLeast <= came[key] && got[i].AtLeast >= came[key]*9/10, "got %d of key %s, want at most %d and not much less", got[i].AtLeast, key, came[key])
	}
	check.That(t, len(c.at) == standard && len(c.entries) == standard, "got %d and %d entries, want %d", len(c.at), len(c.entries), standard)
}

// Three standard errors and a half, and near zero three keys that meet, are never exceeded.
func TestDistinct(t *testing.T) {
	c := new(Distinct)
	check.Equal(t, c.Estimate(), 0, "without keys")
	for n := range 2_000_000 {
		c.Add(Hash(n))
		c.Add(Hash(n / 2)) // which came before
		switch n + 1 {
		case 1, 10, 100, 1000, 10_000, 45_000, 58_000, 100_000, 1_000_000, 2_000_000:
			got, want := float64(c.Estimate()), float64(n+1)
			check.That(t, math.Abs(got-want) <= max(want*0.055, 5), "after %v keys: got %v, want within 5.5 %%", want, got)
		}
	}
	c.Reset()
	check.Equal(t, c.Estimate(), 0, "after a reset")
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
	got := c.Estimate()
	check.That(t, got >= keys*0.9 && got <= keys*1.1, "%d callers with the same %d keys: got %d", callers, keys, got)
}
