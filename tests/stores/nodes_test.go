package stores

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// node is one of several Caddys that share a store.
type node struct {
	*system.Caddy
	url string
}

// startNodes starts Caddys with one store. Their clocks differ from the machine's
// by these numbers of seconds.
func startNodes(t *testing.T, throttle string, site func(port int) string, clocks ...int) []node {
	t.Helper()
	var nodes []node
	for _, ahead := range clocks {
		port := servertest.FreePort(t)
		c := system.Config{Throttle: throttle, Sites: site(port)}
		n := node{url: fmt.Sprintf("http://127.0.0.1:%d/", port)}
		if ahead == 0 {
			n.Caddy = system.StartCaddy(t, c)
		} else {
			n.Caddy = startCaddyAhead(t, c, ahead)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// startCaddyAhead starts Caddy in a time namespace whose monotonic clock is some
// seconds ahead, or behind.
func startCaddyAhead(t *testing.T, c system.Config, seconds int) *system.Caddy {
	t.Helper()
	admin := fmt.Sprintf("127.0.0.1:%d", servertest.FreePort(t))
	file := system.WriteFile(t, "Caddyfile", c.Caddyfile(admin))
	cmd := system.CaddyCommand(t, "run", "--config", file, "--adapter", "caddyfile")
	by := inTimeNamespace(seconds)
	cmd.Path, cmd.Args = by.Path, append(by.Args, cmd.Args...)
	running := system.StartCaddyBy(t, admin, cmd)
	t.Cleanup(func() { // unshare keeps signals to itself
		running.Shut = true
		running.AskAdmin("POST", "/stop", "")
		<-running.Ended
	})
	return running
}

func inTimeNamespace(seconds int, args ...string) *exec.Cmd {
	ahead := fmt.Sprint(seconds)
	return exec.Command("unshare", append([]string{"-T", "--monotonic", ahead, "--boottime", ahead, "--fork", "--kill-child=KILL", "--"}, args...)...)
}

// clocksOfThree returns -60, 0 and 60 seconds, or as much of that as the system
// allows.
func clocksOfThree(t *testing.T) []int {
	t.Helper()
	here, err := uptime(exec.Command("cat", "/proc/uptime"))
	if err != nil {
		t.Logf("SKIPPED: clocks that differ: %v", err)
		return []int{0, 0, 0}
	}
	clocks := []int{0, 0, 0}
	for i, ahead := range []int{-60, 0, 60} {
		there, err := uptime(inTimeNamespace(ahead, "cat", "/proc/uptime"))
		if err != nil || math.Abs(there-here-float64(ahead)) > 30 {
			t.Logf("SKIPPED: a Caddy whose clock is at %d seconds: got an uptime of %v for %v, %v", ahead, there, here, err)
			continue
		}
		clocks[i] = ahead
	}
	return clocks
}

func uptime(cmd *exec.Cmd) (seconds float64, err error) {
	out, err := cmd.CombinedOutput()
	if err == nil {
		_, err = fmt.Sscan(string(out), &seconds)
	}
	if err != nil {
		err = fmt.Errorf("%w: %.200s", err, out)
	}
	return seconds, err
}

// pour is one admitted request, as its client saw it.
type pour struct{ call, back time.Duration }

// crowdNodes lets visitors of each protocol ask all nodes in turn for a while, and on a busy
// machine until so many were admitted, and returns the admitted requests.
func crowdNodes(t *testing.T, nodes []node, lasts time.Duration, enough int) []pour {
	t.Helper()
	var mu sync.Mutex
	var visits []pour
	var crowd sync.WaitGroup
	start := time.Now()
	for i := range 6 {
		v := system.NewVisitor(t, system.Protocols[i%2])
		crowd.Go(func() {
			going := func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(visits) < enough && time.Since(start) < system.StartTime
			}
			for n := i; time.Since(start) < lasts || going(); n++ {
				call := time.Since(start)
				a, err := v.Try("GET", nodes[n%len(nodes)].url)
				if err != nil || a.Status != 200 && a.Status != 429 {
					t.Errorf("got %d, %v, want 200 or 429", a.Status, err)
					return
				}
				if a.Status == 200 {
					mu.Lock()
					visits = append(visits, pour{call, time.Since(start)})
					mu.Unlock()
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	crowd.Wait()
	return visits
}

// wantBound checks that no window admits more than a bucket holds and leaks. A
// request that was sent and answered within a window was poured in it.
func wantBound(t *testing.T, visits []pour, capacity, leak float64) {
	t.Helper()
	worst := math.Inf(-1)
	for _, first := range visits {
		var backs []time.Duration
		for _, v := range visits {
			if v.call >= first.call {
				backs = append(backs, v.back)
			}
		}
		slices.Sort(backs)
		for i, back := range backs {
			lasts := (back - first.call).Seconds()
			if over := float64(i+1) - capacity*(1+1e-9) - leak*(lasts+1e-6); over > worst {
				if worst = over; worst > 0 {
					t.Errorf("got %d admitted within %vs, %v too many", i+1, lasts, over)
					return
				}
			}
		}
	}
	t.Logf("%d admitted, %.3f below the bound where it was nearest", len(visits), -worst)
}

// TestThreeCaddysKeepOneBucket: their clocks do not matter.
func TestThreeCaddysKeepOneBucket(t *testing.T) {
	t.Parallel()
	lasts := 3 * time.Second
	if system.Long() {
		lasts = time.Minute
	}
	eachStore(t, func(t *testing.T, s *storeServer) {
		clocks := []int{0, 0, 0}
		if os.Geteuid() == 0 {
			clocks = clocksOfThree(t)
		} else {
			t.Log("SKIPPED: clocks that differ, which only root can make")
		}
		const capacity, leak = 20, 10 // far less than a starved machine can ask for
		throttle := s.directive() + "\nstore_timeout 30s\non_store_error deny"
		nodes := startNodes(t, throttle, func(port int) string {
			return fmt.Sprintf(strings.TrimSpace(`
http://:%d {
	throttle {
		zone all {
			key text everybody
			limit %d %d/s
		}
	}
	respond ok
}`), port, capacity, leak)
		}, clocks...)
		least := capacity + int(leak*lasts.Seconds()/2)
		visits := crowdNodes(t, nodes, lasts, least)
		wantBound(t, visits, capacity, leak)
		check.That(t, len(visits) >= least, "got %d admitted, want at least %v: the clients ask for more", len(visits), least)
		for i, n := range nodes {
			check.That(t, n.Decisions(t, "all", "admitted") != 0 && n.Decisions(t, "all", "refused") != 0, "node %d: got nobody admitted or nobody refused, want some of each", i+1)
		}
	})
}
