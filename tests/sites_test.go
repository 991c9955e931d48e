package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// site is a real application server and the directives that lead to it.
type site struct {
	name       string
	directives string
	executed   string // what its pages say of themselves
}

// server starts an application server for the first test that needs it, and keeps
// it for the others.
type server struct {
	once  sync.Once
	start func(t *testing.T, dir string) (directives string, p *process)

	dir        string
	process    *process
	directives string
}

var (
	phpServer  = server{start: startPHP}
	rackServer = server{start: startPuma}
)

// phpSite is testdata/php under php-fpm.
func phpSite(t *testing.T) site {
	t.Helper()
	return site{"php", phpServer.use(t), "executed: index.php"}
}

// rackSite is testdata/rack under Puma.
func rackSite(t *testing.T) site {
	t.Helper()
	return site{"rack", rackServer.use(t), "executed: rack"}
}

func (s *server) use(t *testing.T) string {
	t.Helper()
	s.once.Do(func() {
		// Not t.TempDir: it ends with this test, and its names are too long for a
		// socket.
		dir, err := os.MkdirTemp("", "throttle-site-")
		if err != nil {
			t.Fatal(err)
		}
		s.dir = dir
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		s.directives, s.process = s.start(t, dir)
	})
	if s.directives == "" {
		t.Skip("SKIPPED: the server for this test was missing or did not start before")
	}
	return s.directives
}

func stopServers() {
	for _, s := range []*server{&phpServer, &rackServer, &apacheSite, &passengerSite} {
		if s.process != nil {
			if err := s.process.stop(); err != nil {
				fmt.Fprintln(os.Stderr, "stopping a server:", err)
			}
		}
		if s.dir != "" {
			os.RemoveAll(s.dir)
		}
	}
}

func startPHP(t *testing.T, dir string) (string, *process) {
	t.Helper()
	fpm := need(t, "php-fpm", "/usr/sbin/php-fpm[0-9]*")
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
	p := startServer(t, exec.Command(fpm, "--nodaemonize", "--fpm-config", conf), socket)
	return fmt.Sprintf("root * %s\nphp_fastcgi unix/%s\nfile_server", root, socket), p
}

func startPuma(t *testing.T, dir string) (string, *process) {
	t.Helper()
	puma := need(t, "puma")
	socket := filepath.Join(dir, "puma.sock")
	cmd := exec.Command(puma, "--config", "-", "--environment", "production",
		"--threads", "8:8", "--bind", "unix://"+socket, "config.ru")
	cmd.Dir = "testdata/rack"
	p := startServer(t, cmd, socket)
	return "reverse_proxy unix/" + socket, p
}

func startServer(t *testing.T, cmd *exec.Cmd, socket string) *process {
	t.Helper()
	p, err := startProcess(cmd)
	if err != nil {
		t.Fatalf("starting %s: %v", cmd.Path, err)
	}
	if err := p.waitUntil(func() bool { return listens("unix", socket) }); err != nil {
		t.Fatalf("waiting for %s: %v\n%s", cmd.Path, err, p.output.String())
	}
	return p
}

// need finds a tool in PATH or by one of the patterns. Without the tool the test
// is skipped, or fails where the whole system is required.
func need(t *testing.T, tool string, patterns ...string) string {
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
