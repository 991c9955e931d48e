package tests

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// A fleetNode is a Caddy of a fleet that can be started again with the same folder.
type fleetNode struct {
	*caddy
	t    *testing.T
	site config
	url  string
	home string
}

const fleetKey = "signing_key 0123456789abcdef0123456789abcdef"

// startFleet starts Caddys that share a store and a signing key, each with a folder of its own.
func startFleet(t *testing.T, n int, throttle string) []*fleetNode {
	t.Helper()
	var fleet []*fleetNode
	for range n {
		port, home := freePort(t), t.TempDir()
		one := &fleetNode{t: t, url: fmt.Sprintf("http://127.0.0.1:%d/", port), home: home,
			site: config{throttle: throttle, sites: nightSite(port), env: "XDG_DATA_HOME=" + home}}
		one.start()
		fleet = append(fleet, one)
	}
	return fleet
}

func (n *fleetNode) start() { n.caddy = startCaddy(n.t, n.site) }

// kill ends a Caddy as kill -9 does.
func (n *fleetNode) kill() {
	n.t.Helper()
	if err := n.cmd.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
	<-n.ended
	n.shut = true
}

// banned reports whether a Caddy refuses this client by a ban.
func (n *fleetNode) banned() bool {
	return regexp.MustCompile(`A ban of 127\.0\.0\.1`).MatchString(n.throttle("why", "127.0.0.1"))
}

// within waits for something on all Caddys, no longer than a time.
func within(t *testing.T, d time.Duration, what string, fleet []*fleetNode, holds func(n *fleetNode) bool) {
	t.Helper()
	began := time.Now()
	for i, n := range fleet {
		for !holds(n) {
			if time.Since(began) > d {
				t.Fatalf("%s: node %d is not so after %v", what, i, d)
			}
			<-time.After(50 * time.Millisecond)
		}
	}
	t.Logf("%s: after %v", what, time.Since(began).Round(10*time.Millisecond))
}

func refuses(want bool) func(*fleetNode) bool {
	return func(n *fleetNode) bool {
		key := fmt.Sprint("key ", time.Now().UnixNano()) // with a bucket of its own
		a, err := newVisitorFrom(n.t, "h1", "127.0.0.1").try("GET", n.url+"api", "X-Api-Key", key)
		return err == nil && (a.status == 429) == want && n.banned() == want
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
		fleet := startFleet(t, 3, store+"\nstore_timeout 2s\n"+fleetKey)
		a, b, c := fleet[0], fleet[1], fleet[2]
		within(t, 10*time.Second, "all know each other", fleet, func(n *fleetNode) bool {
			return strings.Count(n.throttle("status", "--all"), "all known") == 3
		})

		out := a.throttle("ban", "127.0.0.1", "--for", "1h", "--by", "alice", "--note", "scraper")
		if !strings.Contains(out, "on all 3 Caddys") {
			t.Errorf("ban: got %q, want it said that it holds on all 3", out)
		}
		within(t, 2*time.Second, "the ban", fleet, refuses(true))
		if out, err := b.tryThrottle("ban", "127.0.0.1", "--for", "2h", "--by", "bob"); err == nil || !strings.Contains(out, "by alice") {
			t.Errorf("another ban on another Caddy: got %q, %v, want a conflict with alice's", out, err)
		}
		if out := c.throttle("journal"); !strings.Contains(out, "alice") || !strings.Contains(out, "scraper") {
			t.Errorf("journal of another Caddy: got %q, want alice's ban", out)
		}

		b.kill()
		b.start()
		within(t, 2*time.Second, "the ban after kill -9", fleet[1:2], refuses(true))

		c.kill()
		if out := b.throttle("unban", "127.0.0.1"); !strings.Contains(out, "Ended, on 2 of 3 Caddys") {
			t.Errorf("unban: got %q, want it said that one Caddy does not follow", out)
		}
		c.start() // with its copy, in which the ban holds
		within(t, 5*time.Second, "the end of the ban", fleet, refuses(false))

		s.kill()
		out = a.throttle("ban", "127.0.0.1", "--for", "1h")
		if !strings.Contains(out, "the others are told when the store answers") {
			t.Errorf("ban in an outage: got %q, want it said that the others do not know", out)
		}
		within(t, 3*time.Second, "a word about the store, which no request has met", fleet[1:2], func(n *fleetNode) bool {
			return regexp.MustCompile(`is (FAILING|DOWN)`).MatchString(n.throttle("status"))
		})
		if !a.banned() || b.banned() {
			t.Error("in an outage: want the ban on the Caddy that was told, and on no other")
		}
		b.kill()
		b.start() // without a store
		s.run()
		within(t, 15*time.Second, "the ban after the outage", fleet, refuses(true))
		a.throttle("unban", "127.0.0.1")
		within(t, 2*time.Second, "the end of the ban", fleet, refuses(false))
		if out := a.throttle("status"); strings.Contains(out, "not told") {
			t.Errorf("status after the outage: got %q, want no word of it", out)
		}
		if err := c.shutDown(); err != nil {
			t.Error(err)
		}
		if out := a.throttle("ban", "127.0.0.1", "--for", "1h"); !strings.Contains(out, "on all 2 Caddys") {
			t.Errorf("ban after a Caddy has stopped: got %q, want it counted no more", out)
		}
	})
}

func TestAFlushOfTheStoreEndsNoBan(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	fleet := startFleet(t, 2, redisServer(t, server).directive()+"\n"+fleetKey)
	fleet[0].throttle("ban", "127.0.0.1", "--for", "1h")
	server.Do("flushall")
	server.Do("hset", "throttle:@board", "=ban//10.0.0.0%2F8", "99999999999999999 junk")
	fleet[1].kill()
	fresh := startFleet(t, 1, redisServer(t, server).directive()+"\n"+fleetKey)
	within(t, 10*time.Second, "the ban", append(fleet[:1], fresh...), refuses(true))
	within(t, 10*time.Second, "a warning of what somebody else has written", fresh, func(n *fleetNode) bool {
		return strings.Contains(n.throttle("status"), "Somebody without the signing key has written 1 of the store's changes, which are ignored: ban//10.0.0.0%2F8")
	})
	if out := fleet[0].throttle("bans"); strings.Contains(out, "10.0.0.0") {
		t.Errorf("bans: got %q, want nothing of what somebody else has written", out)
	}
}

func TestCaddysWithOtherKeysShareNoChanges(t *testing.T) {
	t.Parallel()
	store := startRedis(t).directive()
	fleet := append(startFleet(t, 1, store), startFleet(t, 1, store)...) // each with keys in its own storage
	within(t, 10*time.Second, "a word about the other's keys", fleet, func(n *fleetNode) bool {
		return strings.Contains(n.throttle("status"), "1 Caddy on this store with other signing keys")
	})
	fleet[0].throttle("ban", "127.0.0.1", "--for", "1h")
	<-time.After(2 * time.Second) // in which the other polls
	if fleet[1].banned() {
		t.Error("got a ban of a Caddy with another key")
	}
}

func TestASupportCodeIsFoundFromAnyCaddy(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *storeServer) {
		// To the zone keys, a code is a key that no override lists.
		const keys = "\nzone keys {\nkey header X-Key unlisted refuse\noverride shop unlimited\nlimit 1 1/h\n}"
		fleet := startFleet(t, 3, s.directive()+"\nstore_timeout 5s\n"+fleetKey+keys)
		fillUp(t, fleet[0].url+"api", "X-Api-Key", "s3cret")
		a, err := newVisitor(t, "h1").try("GET", fleet[0].url+"api", "X-Api-Key", "s3cret")
		if err != nil {
			t.Fatal(err)
		}
		code := regexp.MustCompile(`[0-9A-Z]{4}-[0-9A-Z]{4}`).FindString(a.body)
		if code == "" {
			t.Fatalf("got the page %q, want a support code on it", a.body)
		}
		within(t, 10*time.Second, "the code", fleet, func(n *fleetNode) bool { return strings.Contains(n.throttle("why", code), "capacity") })
		if out := fleet[1].throttle("why", "7K2M-Q8XD"); !strings.Contains(out, "No Caddy of this store remembers a refusal with this support code") {
			t.Errorf("an unknown code: got %q, want it said", out)
		}
	})
}

// TestChangesOutliveTheProcess: with buckets in memory, too, but not without a snapshot.
func TestChangesOutliveTheProcess(t *testing.T) {
	t.Parallel()
	n := startFleet(t, 1, "")[0]
	n.throttle("ban", "127.0.0.1", "--for", "1h", "--by", "alice")
	n.throttle("limit", "api", "x0.5", "--for", "1h")
	n.throttle("shadow", "pages", "--for", "1h")
	n.kill()
	n.start()
	if !refuses(true)(n) {
		t.Error("after kill -9: got no ban, want it held")
	}
	out := n.throttle("bans") + n.throttle("journal")
	for _, want := range []string{"limit x0.5", "shadow", "alice"} {
		if !strings.Contains(out, want) {
			t.Errorf("after kill -9: got %q, want %q in it", out, want)
		}
	}
	if matches, _ := filepath.Glob(filepath.Join(n.home, "caddy", "throttle", "changes.json")); len(matches) != 1 {
		t.Error("got no file with the changes")
	}

	forgetful := startFleet(t, 1, "store memory {\nsnapshot off\n}")[0]
	if out := forgetful.throttle("ban", "127.0.0.1", "--for", "1h"); !strings.Contains(out, "unless this Caddy is restarted before") {
		t.Errorf("without a snapshot: got %q, want it said that a restart ends it", out)
	}
	forgetful.kill()
	forgetful.start()
	if !refuses(false)(forgetful) {
		t.Error("without a snapshot: got the ban after a restart")
	}
}

func TestAWrongSigningKeyIsRefused(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"short":             "want at least 32, such as of openssl rand -hex 32",
		"{env.NO_SUCH_ENV}": "signing_key: filling in placeholders",
	} {
		site := config{throttle: "signing_key " + key, sites: nightSite(freePort(t))}
		out, err := caddyCommand(t, "validate", "--config", writeFile(t, "Caddyfile", site.caddyfile("127.0.0.1:1")), "--adapter", "caddyfile").CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: got %v, %s, want %q", key, err, out, want)
		}
	}
}
