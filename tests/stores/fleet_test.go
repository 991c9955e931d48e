package stores

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// A fleetNode is a Caddy of a fleet that can be started again with the same folder.
type fleetNode struct {
	*system.Caddy
	t    *testing.T
	site system.Config
	url  string
	home string
}

// startFleet starts Caddys that share a store, each with a folder of its own.
func startFleet(t *testing.T, n int, throttle string, site func(port int) string) []*fleetNode {
	t.Helper()
	var fleet []*fleetNode
	for range n {
		port, home := servertest.FreePort(t), t.TempDir()
		one := &fleetNode{
			t: t, url: fmt.Sprintf("http://127.0.0.1:%d/", port), home: home,
			site: system.Config{Throttle: throttle, Sites: site(port), Env: "XDG_DATA_HOME=" + home},
		}
		one.start()
		fleet = append(fleet, one)
	}
	return fleet
}

func (n *fleetNode) start() { n.Caddy = system.StartCaddy(n.t, n.site) }

// kill ends a Caddy as kill -9 does.
func (n *fleetNode) kill() {
	n.t.Helper()
	check.OK(n.t, n.Cmd.Process.Kill())
	<-n.Ended
	n.Shut = true
}

// banned reports whether a Caddy refuses this client by a ban.
func (n *fleetNode) banned() bool {
	return regexp.MustCompile(`A ban of 127\.0\.0\.1`).MatchString(n.Throttle("why", "127.0.0.1"))
}

// within waits for something on all Caddys, no longer than a time.
func within(t *testing.T, d time.Duration, what string, fleet []*fleetNode, holds func(n *fleetNode) bool) {
	t.Helper()
	began := time.Now()
	for i, n := range fleet {
		for !holds(n) {
			check.Assume(t, time.Since(began) <= d, "%s: node %d is not so after %v", what, i, d)
			<-time.After(50 * time.Millisecond)
		}
	}
	t.Logf("%s: after %v", what, time.Since(began).Round(10*time.Millisecond))
}

func refuses(want bool) func(*fleetNode) bool {
	return func(n *fleetNode) bool {
		key := fmt.Sprint("key ", time.Now().UnixNano()) // with a bucket of its own
		a, err := system.NewVisitorFrom(n.t, "h1", "127.0.0.1").Try("GET", n.url+"api", "X-Api-Key", key)
		return err == nil && (a.Status == 429) == want && n.banned() == want
	}
}

// TestAFleetFollows: what one Caddy is told, all know: at once, after kill -9 of a Caddy, after
// an outage of the store, and after somebody has emptied it.
func TestAFleetFollows(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *storeServer) {
		store := s.directive()
		if s.name == "postgres" {
			store += "?connect_timeout=5"
		}
		fleet := startFleet(t, 3, store+"\nstore_timeout 2s", nightSite)
		a, b, c := fleet[0], fleet[1], fleet[2]

		out := a.Throttle("ban", "127.0.0.1", "--for", "1h", "--by", "alice", "--note", "scraper")
		check.Contains(t, out, "within two seconds on every Caddy of the store", "ban, want it said that it holds on all")
		within(t, followTime, "the ban", fleet, refuses(true))
		out, err := b.TryThrottle("ban", "127.0.0.1", "--for", "2h", "--by", "bob")
		check.That(t, err != nil && strings.Contains(out, "by alice"), "another ban on another Caddy: got %q, %v, want a conflict with alice's", out, err)
		out = c.Throttle("journal")
		check.That(t, strings.Contains(out, "alice") && strings.Contains(out, "scraper"), "journal of another Caddy: got %q, want alice's ban", out)

		b.kill()
		check.OK(t, os.RemoveAll(filepath.Join(b.home, "caddy", "throttle", "changes.json")))
		began := time.Now()
		b.start()
		if first := refuses(true)(b); !first && time.Since(began) < 2*time.Second { // for which it waits
			t.Error("a Caddy that knows of nothing: got its first request through, want it to wait for the store's ban")
		}
		within(t, followTime, "the ban after kill -9", fleet[1:2], refuses(true))

		c.kill()
		b.Throttle("unban", "127.0.0.1")
		c.start() // with its copy, in which the ban holds
		within(t, followTime, "the end of the ban", fleet, refuses(false))

		s.kill()
		out = a.Throttle("ban", "127.0.0.1", "--for", "1h")
		check.Contains(t, out, "the others are told when the store answers", "ban in an outage, want it said that the others do not know")
		a.kill() // directly after it
		a.start()
		check.That(t, a.banned() && !b.banned(), "in an outage: want the ban on the Caddy that was told, and on no other")
		b.kill()
		b.start() // without a store
		s.run()
		within(t, max(15*time.Second, followTime), "the ban after the outage", fleet, refuses(true))
		a.Throttle("unban", "127.0.0.1")
		within(t, followTime, "the end of the ban", fleet, refuses(false))
		out = a.Throttle("status")
		check.That(t, !strings.Contains(out, "not told"), "status after the outage: got %q, want no word of it", out)
	})
}

// followTime is two seconds, and what a busy machine may need for the commands that look:
// without TEST_LONG=1, anything.
var followTime = map[bool]time.Duration{true: 10 * time.Second, false: 3 * system.StartTime}[system.Long()]

// TestChangesOutliveTheProcess: with buckets in memory, too, and without a snapshot of them.
func TestChangesOutliveTheProcess(t *testing.T) {
	t.Parallel()
	n := startFleet(t, 1, "store memory {\nsnapshot off\n}", nightSite)[0]
	n.Throttle("ban", "127.0.0.1", "--for", "1h", "--by", "alice")
	n.Throttle("limit", "api", "x0.5", "--for", "1h")
	n.Throttle("shadow", "pages", "--for", "1h")
	n.kill()
	n.start()
	check.That(t, refuses(true)(n), "after kill -9: got no ban, want it held")
	out := n.Throttle("bans") + n.Throttle("journal")
	for _, want := range []string{"limit x0.5", "shadow", "alice"} {
		check.Contains(t, out, want, "after kill -9")
	}
	matches, _ := filepath.Glob(filepath.Join(n.home, "caddy", "throttle", "changes.json"))
	check.That(t, len(matches) == 1, "got no file with the changes")
}
