package tests

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// control is what no terminal should be sent.
func control(out string) bool {
	return strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) })
}

// TestNoInputOfACommandGoesWrong: whatever is typed, a command answers in plain words, changes
// nothing that was not meant, and never says that it did what it did not.
func TestNoInputOfACommandGoesWrong(t *testing.T) {
	t.Parallel()
	n := startFleet(t, 1, "")[0]
	inputs := map[string]string{
		"nothing": "", "blanks": "  ", "junk": "no such thing", "10 KB": strings.Repeat("k", 10<<10), "bytes": "a\x1b[31m\x07b\u202e", "not UTF-8": "\xff\xfe",
		"a network": "203.0.113.0/24", "an odd network": "203.0.113.7/24", "a prefix": "203.0.113.7/33", "IPv4 in IPv6": "::ffff:203.0.113.0/120",
		"a zone that is gone": "gone", "an option": "--", "a star": "*", "SQL": "'; DROP TABLE throttle_buckets; --", "a path": "../../etc/passwd", "JSON": `{"zone":"login"}`,
	}
	// What may succeed: it is asked, or it is nothing but a name.
	may := regexp.MustCompile(`^(why|release|unlimit login|unban)`)
	known := make(map[string]bool)
	for _, command := range []string{
		"status X", "top X", "why X", "buckets X", "release X", "release --zone X 203.0.113.7", "ban X --for 1h", "unban X",
		"bans X", "journal X", "limit X x2 --for 1h", "limit login X --for 1h", "limit login X x2 --for 1h", "unlimit X", "unlimit login X", "shadow X --for 1h", "unshadow X", "revoke-devices X",
		"ban 203.0.113.7 --for X", "ban 203.0.113.7 --until X", "buckets login --sort X", "buckets login --limit X", "top --by X",
	} {
		known[strings.Fields(command)[0]] = true
		for what, input := range inputs {
			var args []string
			for _, word := range strings.Fields(command) {
				if word == "X" {
					word = input
				}
				args = append(args, word)
			}
			began := time.Now()
			out, err := n.tryThrottle(args...)
			switch {
			case control(out):
				t.Errorf("%s with %s: got control characters: %q", command, what, out)
			case len(out) > 30_000, strings.Contains(out, "panic"), strings.Contains(out, "goroutine "):
				t.Errorf("%s with %s: got %d bytes: %.500q", command, what, len(out), out)
			case err == nil && !may.MatchString(command) && !strings.Contains(command, "limit login X x2") && !strings.HasPrefix(command, "ban X"):
				t.Errorf("%s with %s: got success, want an error:\n%s", command, what, out)
			case err != nil && strings.Count(out, "Error: ") != 1:
				t.Errorf("%s with %s: got no error in words:\n%.500s", command, what, out)
			case long() && time.Since(began) > startTime:
				t.Errorf("%s with %s: it took %v", command, what, time.Since(began))
			}
		}
	}
	for _, c := range []string{"status", "ban", "limit", "release", "shadow", "why", "unban", "unlimit", "unshadow", "journal", "bans", "top", "buckets", "revoke-devices"} {
		if !known[c] {
			t.Errorf("got %s not tried", c)
		}
	}
	// What one command has begun, another has ended.
	if bans := n.throttle("bans"); bans != "Nothing was changed at run time.\n" {
		t.Errorf("got changes that nobody meant:\n%s", bans)
	}
	wantStatus(t, n.url+"login", 200)
}

// TestAChangeAtOneInstantAndInAnOutageIsWhole: of changes at one instant on several Caddys one
// holds, on all; and with the store down before, during and after, each says what it has done.
func TestAChangeAtOneInstantAndInAnOutageIsWhole(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *storeServer) {
		store := s.directive()
		if s.name == "postgres" {
			store += "?connect_timeout=5"
		}
		fleet := startFleet(t, 3, store+"\nstore_timeout 500ms")
		var all sync.WaitGroup
		var outs [3]string
		for i, n := range fleet {
			all.Go(func() {
				outs[i], _ = n.tryThrottle("limit", "pages", fmt.Sprintf("%d 1/s", 10+i), "--for", "1h", "--by", fmt.Sprint("operator", i))
			})
		}
		all.Wait()
		for _, out := range outs { // the last write wins
			if !strings.HasPrefix(out, "pages: ") && !strings.Contains(out, "--replace") {
				t.Errorf("got %q, want the limit or a conflict", out)
			}
		}
		held := regexp.MustCompile(`limit \d+ 1/s`)
		<-time.After(2 * time.Second)
		want := held.FindString(fleet[0].throttle("bans"))
		within(t, time.Second, "one limit", fleet, func(n *fleetNode) bool { return held.FindString(n.throttle("bans")) == want })

		s.kill()
		var during []string
		for _, args := range [][]string{{"ban", "127.0.0.1", "--for", "1h"}, {"unlimit", "pages"}, {"shadow", "login", "--for", "1h"}, {"release", "127.0.0.1"}, {"release", "--all", "--zone", "login"}} {
			out, err := fleet[1].tryThrottle(args...)
			if !strings.Contains(out, "are told when the store answers") && !strings.Contains(out, "the store is told when it is back") && err == nil && !strings.Contains(out, "No bucket") {
				t.Errorf("%q in an outage: got %q, %v, want it said that the others do not know", args, out, err)
			}
			during = append(during, out)
		}
		if out := fleet[0].throttle("bans"); held.FindString(out) != want {
			t.Errorf("another Caddy in an outage: got %q, want what held before", out)
		}
		s.run()
		within(t, 15*time.Second, "all of it after the outage", fleet, func(n *fleetNode) bool {
			out := n.throttle("bans")
			return strings.Contains(out, "127.0.0.1") && !strings.Contains(out, "limit") && strings.Contains(out, "shadow")
		})
		if t.Failed() {
			t.Logf("in the outage: %q", during)
		}
	})
}

// TestAFullStoreKeepsNoChangeFromHolding: it holds on the Caddy that was told, which says why the
// others do not know.
func TestAFullStoreKeepsNoChangeFromHolding(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	fleet := startFleet(t, 2, redisServer(t, server).directive())
	server.Do("config", "set", "maxmemory-policy", "noeviction")
	server.Do("config", "set", "maxmemory", "1")
	out := fleet[0].throttle("ban", "127.0.0.1", "--for", "1h")
	if !strings.Contains(out, "are told when the store answers") || !strings.Contains(out, "OOM") && !strings.Contains(out, "memory") {
		t.Errorf("got %q, want it said that the store is full", out)
	}
	within(t, 2*time.Second, "the ban on the Caddy that was told", fleet[:1], refuses(true))
	server.Do("config", "set", "maxmemory", "0")
	within(t, 5*time.Second, "the ban", fleet, refuses(true))
}
