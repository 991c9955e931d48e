// Package servertest runs real Redis and PostgreSQL servers for tests and
// benchmarks. Each server is a process of its own on loopback ports, with a
// directory of its own that is removed when the test ends. If the test runs as
// root, PostgreSQL and PgBouncer run as the user postgres.
//
// If a program is not installed, the test that needs it is skipped. With CI=true
// or REQUIRE_SYSTEM=1 it fails instead.
package servertest

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// patience is how long Eventually waits. It is long because the machine may be
// busy.
const patience = time.Minute

// Eventually calls check until it returns nil. It fails the test with the last
// error if that takes longer than a minute.
func Eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	if err := Within(patience, check); err != nil {
		tb.Fatalf("waiting until %s: %v", what, err)
	}
}

// Within calls check every few milliseconds until it returns nil, and for no
// longer than d. It returns the last error of check.
func Within(d time.Duration, check func() error) error {
	for began := time.Now(); ; {
		err := check()
		if err == nil || time.Since(began) > d {
			return err
		}
		<-time.After(5 * time.Millisecond)
	}
}

func skipOnWindows(tb testing.TB) {
	tb.Helper()
	if runtime.GOOS == "windows" {
		tb.Skip("SKIPPED: no server is tested on Windows, which cannot pause one")
	}
}

// need skips the test if a program is not on the PATH.
func need(tb testing.TB, programs ...string) {
	tb.Helper()
	skipOnWindows(tb)
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing(tb, program)
		}
	}
}

// missing skips the test because something is not installed, or fails it if
// skipping is not allowed.
func missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("REQUIRE_SYSTEM") == "1" || os.Getenv("CI") == "true" {
		tb.Fatalf("%s is not installed, and REQUIRE_SYSTEM or CI says it must be", what)
	}
	tb.Skipf("SKIPPED: %s is not installed", what)
}
