package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestTheAdvisorReadsPHPsStatus: php-fpm has five workers. The advisor says so, and says
// that in_flight is too high while requests wait in php-fpm itself.
func TestTheAdvisorReadsPHPsStatus(t *testing.T) {
	t.Parallel()
	_, socket := startSwarmPHP(t)
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	root, _ := startSwarmPHPAt(t, address)
	port := freePort(t)
	caddy := startCaddy(t, config{sites: fmt.Sprintf(`http://:%d {
		handle /fpm-status {
			reverse_proxy %s {
				transport fastcgi {
					split /fpm-status
				}
			}
		}
		handle {
			throttle {
				zone php {
					key text everybody
					in_flight 50
				}
			}
			root * %s
			php_fastcgi %[2]s
		}
	}`, port, address, root)})
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	for _, source := range [][]string{
		{url + "/fpm-status"},
		{url + "/fpm-status?json"},
		{url + "/fpm-status?full"},
		{url + "/fpm-status?json&full"},
		{"fcgi://" + address + "/fpm-status?json&full"},
		{"fcgi://" + socket, "--path", "/fpm-status"},
		{"fcgi://" + socket, "--path", "/fpm-status?json&full"},
	} {
		out := caddy.throttle(append([]string{"advise"}, source...)...)
		if !strings.HasPrefix(out, "in_flight 5\n") || !strings.Contains(out, "pm is static") || !strings.Contains(out, "zone php has in_flight 50, which is too high") {
			t.Errorf("%q: got %s", source, out)
		}
		if hidden := strings.HasPrefix(source[0], "fcgi:///"); strings.Contains(out, "cannot see how many requests wait") != hidden {
			t.Errorf("%q: got %s, want it to say that the queue is hidden: %v", source, out, hidden)
		}
	}
	var report struct {
		Advice struct {
			InFlight int  `json:"in_flight"`
			TooHigh  bool `json:"too_high"`
		}
	}
	advice := func() bool {
		t.Helper()
		report.Advice.TooHigh = false
		if err := json.Unmarshal([]byte(caddy.throttle("advise", "--json", "fcgi://"+address+"/fpm-status?json")), &report); err != nil {
			t.Fatal(err)
		}
		if report.Advice.InFlight != swarmWorkers {
			t.Errorf("got in_flight %d, want %d", report.Advice.InFlight, swarmWorkers)
		}
		return report.Advice.TooHigh
	}
	if advice() {
		t.Error("in_flight is too high although nobody waits")
	}

	// Long pages keep all workers busy and the row full. The status itself waits there,
	// too, until the first ones end.
	var all sync.WaitGroup
	v := newVisitor(t, "h1")
	busy := make(chan struct{})
	all.Go(func() {
		for {
			for range 4 * swarmWorkers {
				all.Go(func() {
					if response, err := v.Get(url + "/page.php?ms=300"); err == nil {
						response.Body.Close()
					}
				})
			}
			select {
			case <-busy:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	eventually(t, "the advisor to see the row in php-fpm", advice)
	close(busy)
	all.Wait()

	for _, wrong := range []struct{ source, says string }{
		{"localhost:9000", "want http://"},
		{"ftp://localhost/x", "want http://"},
		{url + "/nothing.php", "from http://127.0.0.1"},
		{url + "/page.php?secret", "neither the status page of php-fpm"},
		{"fcgi:///no/such.sock", "no such file"},
		{"fcgi://" + socket, "is pm.status_path this path?"},
	} {
		if out, err := caddy.tryThrottle("advise", wrong.source); err == nil || !strings.Contains(out, wrong.says) || strings.Contains(out, "secret") {
			t.Errorf("%s: got %v and %s, want an error with %q", wrong.source, err, out, wrong.says)
		}
	}
}

// TestTheAdvisorReadsPumasStats asks the control servers of a Puma with two processes
// and of one without.
func TestTheAdvisorReadsPumasStats(t *testing.T) {
	t.Parallel()
	puma := need(t, "puma")
	for _, test := range []struct{ workers, want string }{{"0", "in_flight 3\n"}, {"2", "in_flight 6\n"}} {
		dir, err := os.MkdirTemp("", "throttle-puma-") // not t.TempDir, whose names are too long for a socket
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		control := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		cmd := exec.Command(puma, "--config", "-", "--environment", "production", "--threads", "3:3", "--workers", test.workers,
			"--bind", "unix://"+filepath.Join(dir, "puma.sock"), "--control-url", "tcp://"+control, "--control-token", "secret", "config.ru")
		cmd.Dir = "testdata/rack"
		p := startServer(t, cmd, filepath.Join(dir, "puma.sock"))
		t.Cleanup(func() {
			if err := p.stop(); err != nil {
				t.Errorf("stopping puma: %v", err)
			}
		})
		advise := func(token string) (string, error) {
			out, err := caddyCommand(t, "throttle", "advise", "http://"+control+"/stats?token="+token, "--address", fmt.Sprintf("127.0.0.1:%d", freePort(t))).CombinedOutput()
			return string(out), err
		}
		out := ""
		eventually(t, "Puma's workers to start", func() bool {
			text, err := advise("secret")
			out = text
			return err == nil && strings.HasPrefix(text, test.want)
		})
		if !strings.Contains(out, "threads in all its workers") {
			t.Errorf("got %s", out)
		}
		if out, err := advise("wrong"); err == nil || !strings.Contains(out, "is the token right?") || strings.Contains(out, "token=") {
			t.Errorf("with a wrong token: got %v and %s, want an error", err, out)
		}
	}
}
