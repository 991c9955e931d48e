// Package system runs the real binary over real sockets, and the servers and clients beside it,
// for the tests in the folders next to it. tests/run.sh runs them with everything else.
package system

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// BuiltBinary is the environment variable with caddyBinary. Without it, each package asks
// build.sh, of which Go keeps the result.
const BuiltBinary = "THROTTLE_TESTS_CADDY"

// CaddyBinary is Caddy with this checkout's module, built once for all tests.
var CaddyBinary string

var ends struct {
	sync.Mutex
	all []func()
}

// AtEnd has a function called after the last test of the package.
func AtEnd(f func()) {
	ends.Lock()
	defer ends.Unlock()
	ends.all = append(ends.all, f)
}

// Main runs the tests of a package, in the folder tests, to which their paths are relative.
func Main(m *testing.M) {
	for range 3 {
		if _, err := os.Stat("build.sh"); err == nil {
			break
		}
		if err := os.Chdir(".."); err != nil {
			fail(err)
		}
	}
	// So that nothing of what servers and browsers leave stays.
	folder, err := servertest.Folder()
	if err == nil {
		err = os.Setenv("TMPDIR", folder)
	}
	if err != nil {
		fail(err)
	}
	if CaddyBinary = os.Getenv(BuiltBinary); CaddyBinary == "" {
		build := exec.Command("./build.sh")
		build.Stderr = os.Stderr
		path, err := build.Output()
		if err != nil {
			fail(fmt.Errorf("building caddy: %w", err))
		}
		CaddyBinary = string(bytes.TrimSpace(path))
	}
	code := m.Run()
	for _, end := range ends.all {
		end()
	}
	os.Exit(code)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
