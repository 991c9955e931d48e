package servertest

import (
	"runtime"
	"testing"
	"time"
)

// Soon waits until something is so. It waits for long, because the machine may be
// busy.
func Soon(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("got no end of waiting for %s:\n%s", what, stacks[:runtime.Stack(stacks, true)])
		}
	}
}
