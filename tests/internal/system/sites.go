package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Server starts an application server for the first test that needs it, and keeps
// it for the others.
type Server struct {
	once  sync.Once
	Start func(t *testing.T, dir string) (directives string, p *Process)

	Dir        string
	process    *Process
	directives string
}

var (
	phpServer  = Server{Start: startPHP}
	rackServer = Server{Start: startPuma}
)

// PHPSite returns the directives that lead to testdata/php under php-fpm.
func PHPSite(t *testing.T) string {
	t.Helper()
	return phpServer.Use(t)
}

// RackSite returns those that lead to testdata/rack under Puma.
func RackSite(t *testing.T) string {
	t.Helper()
	return rackServer.Use(t)
}

// Use returns the directives that lead to the server, or skips the test if it did not start.
func (s *Server) Use(t *testing.T) string {
	t.Helper()
	s.once.Do(func() {
		// Not t.TempDir: it ends with this test, and its names are too long for a
		// socket.
		dir, err := os.MkdirTemp("", "site-")
		if err != nil {
			t.Fatal(err)
		}
		s.Dir = dir
		AtEnd(s.stop)
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		s.directives, s.process = s.Start(t, dir)
	})
	if s.directives == "" {
		t.Skip("SKIPPED: the server for this test was missing or did not start before")
	}
	return s.directives
}

func (s *Server) stop() {
	if s.process != nil {
		if err := s.process.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping a server:", err)
		}
	}
	os.RemoveAll(s.Dir)
}

func startPHP(t *testing.T, dir string) (string, *Process) {
	t.Helper()
	fpm := Need(t, "php-fpm", "/usr/sbin/php-fpm[0-9]*")
	// A copy, because the workers may not be allowed to read the checkout.
	root := filepath.Join(dir, "php")
	if err := os.CopyFS(root, os.DirFS("testdata/php")); err != nil {
		t.Fatal(err)
	}
	user := ""
	if os.Getuid() == 0 {
		user = "user = www-data\ngroup = www-data\n"
	}
	socket := filepath.Join(dir, "fpm.sock")
	conf := filepath.Join(dir, "fpm.conf")
	text := fmt.Sprintf(`[global]
error_log = /dev/stderr
daemonize = no
[www]
listen = %s
%spm = static
pm.max_children = 4
`, socket, user)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := StartServer(t, exec.Command(fpm, "--nodaemonize", "--fpm-config", conf), socket)
	return fmt.Sprintf("root * %s\nphp_fastcgi unix/%s\nfile_server", root, socket), p
}

func startPuma(t *testing.T, dir string) (string, *Process) {
	t.Helper()
	puma := Need(t, "puma")
	socket := filepath.Join(dir, "puma.sock")
	cmd := exec.Command(puma, "--config", "-", "--environment", "production",
		"--threads", "8:8", "--bind", "unix://"+socket, "config.ru")
	cmd.Dir = "testdata/rack"
	p := StartServer(t, cmd, socket)
	return "reverse_proxy unix/" + socket, p
}

// StartServer starts a command that listens on a socket.
func StartServer(t *testing.T, cmd *exec.Cmd, socket string) *Process {
	t.Helper()
	p, err := StartProcess(cmd)
	if err != nil {
		t.Fatalf("starting %s: %v", cmd.Path, err)
	}
	if err := p.WaitUntil(func() bool { return Listens("unix", socket) }); err != nil {
		t.Fatalf("waiting for %s: %v\n%s", cmd.Path, err, p.Output.String())
	}
	return p
}

// Need finds a tool in PATH or by one of the patterns. Without the tool the test
// is skipped, or fails where the whole system is required.
func Need(t *testing.T, tool string, patterns ...string) string {
	t.Helper()
	if path, err := exec.LookPath(tool); err == nil {
		return path
	}
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	if os.Getenv("CI") == "true" || os.Getenv("REQUIRE_SYSTEM") == "1" {
		t.Fatalf("got no %s on this machine, want one: install it or run tests/run.sh all", tool)
	}
	t.Skipf("SKIPPED: no %s on this machine; tests/run.sh all installs it", tool)
	return ""
}
