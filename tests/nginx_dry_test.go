package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestShadowDecidesAsNginxDoesInADryRun: neither delays or refuses a request, and
// both report the same decisions.
func TestShadowDecidesAsNginxDoesInADryRun(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer("PASSED", "admitted", "DELAYED_DRY_RUN", "shadow_delayed", "REJECTED_DRY_RUN", "shadow_refused")
	cases := []struct{ name, limit, zone, want string }{
		{"without delay", "burst=3 nodelay", "limit 4 1/s", "PPPPRRR PR"},
		{"with delay", "burst=3", "limit 4 1/s\n delay", "PDDDRRR DR"},
		{"with delay after one", "burst=3 delay=1", "limit 4 1/s\n delay 1", "PPDDRRR DR"},
	}
	var zones, locations, sites strings.Builder
	for n, c := range cases {
		fmt.Fprintf(&zones, "limit_req_zone $binary_remote_addr zone=dry%d:1m rate=1r/s;", n)
		fmt.Fprintf(&locations, "location /%d {\n limit_req zone=dry%d %s;\n limit_req_dry_run on;\n try_files /page =404;\n }\n", n, n, c.limit)
		fmt.Fprintf(&sites, "throttle /%d {\n zone dry%d {\n %s\n shadow\n }\n }\n", n, n, c.zone)
	}
	nginx, ours := startNginx(t, zones.String(), locations.String()), freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf("http://:%d {\n header >Verdict {http.throttle.decision}\n %s\n respond ok\n}", ours, sites.String())})

	for n, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			play := func() (got string, err error) {
				v := newVisitor(t, "h1")
				for _, step := range c.want {
					if step == ' ' {
						time.Sleep(1500 * time.Millisecond) // lets one more fit
						got += " "
						continue
					}
					began := time.Now()
					a, b := v.get(t, fmt.Sprintf("http://127.0.0.1:%d/%d", nginx, n)), v.get(t, fmt.Sprintf("http://127.0.0.1:%d/%d", ours, n))
					theirs, own := a.header.Get("Verdict"), b.header.Get("Verdict")
					if a.status != 200 || b.status != 200 || words.Replace(theirs) != own {
						err = errors.Join(err, fmt.Errorf("got %d %s from nginx and %d %s from us, want the same, and 200", a.status, theirs, b.status, own))
					}
					if took := time.Since(began); long() && took > 500*time.Millisecond {
						err = errors.Join(err, fmt.Errorf("got both answers after %v, want them at once", took))
					}
					got += theirs[:min(1, len(theirs))]
				}
				return got, err
			}
			var got string
			var err error
			for range stalls {
				if got, err = play(); err == nil && got == c.want {
					return
				}
				t.Logf("once more, after %q: %v", got, err)
			}
			t.Errorf("got %q, %v, want %q and no difference", got, err, c.want)
		})
	}
}

// startNginx runs nginx with limits in its http block and locations in its only
// server. It says in a header what limit_req decided.
func startNginx(t *testing.T, zones, locations string) (port int) {
	t.Helper()
	binary := need(t, "nginx", "/usr/sbin/nginx")
	dir, port := t.TempDir(), freePort(t)
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
	p, err := startProcess(exec.Command(binary, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-e", "stderr"))
	if err != nil {
		t.Fatalf("starting nginx: %v", err)
	}
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Errorf("stopping nginx: %v\n%s", err, p.output.String())
		}
	})
	if err := p.waitUntil(func() bool { return listens("tcp", fmt.Sprintf("127.0.0.1:%d", port)) }); err != nil {
		t.Fatalf("waiting for nginx: %v\n%s", err, p.output.String())
	}
	return port
}
