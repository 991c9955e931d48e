// Package testseed gives randomized tests their seeds.
package testseed

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"testing"
)

// Of returns the seed of a test: always the same one, so that a run of all tests
// says the same each time. With TEST_LONG=1 it is a new one. A test that fails
// should say its seed.
func Of(tb testing.TB) uint64 {
	tb.Helper()
	if os.Getenv("TEST_LONG") == "1" {
		return rand.Uint64()
	}
	name := fnv.New64a()
	_, _ = name.Write([]byte(tb.Name()))
	return name.Sum64()
}
