package leakybucket_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/caddy-throttle/caddy-throttle"

// list runs go list at the root of the repository and returns its lines. Tests
// are not among what it lists.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is not on the PATH")
	}
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// foreign returns the packages that are neither the standard library's nor ours.
func foreign(t *testing.T, pattern string) []string {
	t.Helper()
	deps := list(t, "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", pattern)
	return slices.DeleteFunc(deps, func(path string) bool {
		return path == "" || path == module || strings.HasPrefix(path, module+"/")
	})
}

func TestLeakybucketKnowsNothingOfCaddy(t *testing.T) {
	for _, path := range foreign(t, "./leakybucket/...") {
		if strings.HasPrefix(path, "github.com/caddyserver/") || strings.HasPrefix(path, "go.uber.org/zap") {
			t.Errorf("leakybucket/...: got %s among what it is built of, want nothing of Caddy", path)
		}
	}
	for _, path := range list(t, "-deps", "./leakybucket/...") {
		if strings.HasPrefix(path, module+"/caddymodule") {
			t.Errorf("leakybucket/...: got %s among what it is built of, want imports to point one way", path)
		}
	}
}

func TestTheAlgorithmAndTheMemoryStoreNeedTheStandardLibraryOnly(t *testing.T) {
	for _, pattern := range []string{"./leakybucket", "./leakybucket/key", "./leakybucket/memstore"} {
		if got := foreign(t, pattern); len(got) > 0 {
			t.Errorf("%s: got %v among what it is built of, want the standard library only", pattern, got)
		}
	}
}

func TestStoresNeverImportEachOther(t *testing.T) {
	isStore := func(path string) bool {
		rest, ours := strings.CutPrefix(path, module+"/leakybucket/")
		return ours && strings.HasSuffix(strings.Split(rest, "/")[0], "store")
	}
	for _, path := range list(t, "./leakybucket/...") {
		if !isStore(path) {
			continue
		}
		for _, dep := range list(t, "-deps", path) {
			if isStore(dep) && !strings.HasPrefix(dep, path) && !strings.HasPrefix(path, dep) {
				t.Errorf("%s: got %s among what it is built of, want no other store", path, dep)
			}
		}
	}
}

// The clients are 14 MB that most users do not need. Caddy itself brings a
// driver for PostgreSQL for its certificate authority, so what is looked at is
// what our own packages import.
func TestCaddymoduleNeedsNoDatabaseClient(t *testing.T) {
	lines := list(t, "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}} {{join $.Imports \" \"}}{{end}}{{end}}", "./caddymodule")
	seen := false
	for _, line := range lines {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		seen = seen || fields[0] == module+"/caddymodule"
		for _, path := range fields[1:] {
			if strings.HasPrefix(path, "github.com/redis/") || strings.HasPrefix(path, "github.com/jackc/") {
				t.Errorf("caddymodule: got %s, which imports %s, among what it is built of, want no database client", fields[0], path)
			}
		}
	}
	if !seen {
		t.Errorf("caddymodule: got packages %q, want it among them", lines)
	}
}
