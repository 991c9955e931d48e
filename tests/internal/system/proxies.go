package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// Stalls is how often a test tries again: a stall of the machine makes waits longer, but not
// again and again.
const Stalls = 20

// StartNginx runs nginx with limits in its http block and locations in its only
// server. It says in a header what limit_req decided.
func StartNginx(t *testing.T, zones, locations string) (port int) {
	t.Helper()
	binary := Need(t, "nginx", "/usr/sbin/nginx")
	dir, port := t.TempDir(), servertest.FreePort(t)
	var temporary strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temporary, "%s_temp_path %s/%s;\n", kind, dir, kind)
	}
	for name, text := range map[string]string{"page": "ok\n", "nginx.conf": fmt.Sprintf(`
daemon off;
master_process off;
pid %s/pid;
error_log stderr error;
events {
	worker_connections 1024;
}
http {
	access_log off;
	%s
	limit_req_status 429;
	%s
	server {
		listen 127.0.0.1:%d;
		root %s;
		add_header Verdict $limit_req_status always;
		%s
	}
}
`, dir, temporary.String(), zones, port, dir, locations)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := StartProcess(exec.Command(binary, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-e", "stderr"))
	if err != nil {
		t.Fatalf("starting nginx: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("stopping nginx: %v\n%s", err, p.Output.String())
		}
	})
	if err := p.WaitUntil(func() bool { return Listens("tcp", fmt.Sprintf("127.0.0.1:%d", port)) }); err != nil {
		t.Fatalf("waiting for nginx: %v\n%s", err, p.Output.String())
	}
	return port
}

// StartHAProxy runs HAProxy with a configuration, until it listens on its port.
func StartHAProxy(t *testing.T, port int, config string) {
	t.Helper()
	p, err := StartProcess(exec.Command(Need(t, "haproxy", "/usr/sbin/haproxy"), "-db", "-f", WriteFile(t, "haproxy.cfg", config)))
	if err != nil {
		t.Fatalf("starting haproxy: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil && !strings.Contains(err.Error(), "143") {
			t.Errorf("stopping haproxy: %v", err)
		}
	})
	if err := p.WaitUntil(func() bool { return Listens("tcp", fmt.Sprint("127.0.0.1:", port)) }); err != nil {
		t.Fatalf("waiting for haproxy: %v\n%s", err, p.Output.String())
	}
}
