// Package tests drives the real binary over real sockets: Caddy with throttle
// in front of a PHP site and a Rack site. tests/run.sh runs it with everything
// else.
package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// builtBinary is the environment variable with caddyBinary, for tests that run themselves
// once more in another process.
const builtBinary = "THROTTLE_TESTS_CADDY"

// caddyBinary is Caddy with this checkout's module, built once for all tests.
var caddyBinary string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	if caddyBinary = os.Getenv(builtBinary); caddyBinary != "" {
		return m.Run() // one test, in a namespace
	}
	dir, err := os.MkdirTemp("", "throttle-tests-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a folder for the binary:", err)
		return 1
	}
	defer os.RemoveAll(dir)

	// Without -trimpath, so that packages compiled by `go vet` are used again, and without
	// go.work, so that what these tests require chooses nothing that ships.
	caddyBinary = filepath.Join(dir, "caddy")
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-w -s",
		"-tags", "nobadger,nomysql,nopgx", "-o", caddyBinary, "./caddymodule/cmd/caddy")
	build.Dir, build.Env = "..", append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building caddy: %v\n%s", err, out)
		return 1
	}

	defer stopServers()
	defer stopApplications()
	return m.Run()
}
