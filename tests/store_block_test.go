package tests

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// TestABlockIsKnownOnEveryNodeWithoutAsking, and after a reset all of them admit
// the key again.
func TestABlockIsKnownOnEveryNodeWithoutAsking(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *storeServer) {
		var replies atomic.Int64
		proxy := servertest.StartProxy(t, s.address, func([]byte) bool {
			replies.Add(1)
			return false
		})
		nodes := startNodes(t, s.through(proxy.Addr)+"\nstore_timeout 30s\non_store_error deny", func(port int) string {
			return fmt.Sprintf(`
http://:%d {
	throttle /login {
		zone login {
			limit 3 3/s
			block 10m everywhere
		}
	}
	throttle /page pages client_ip 1000 1000/s
	respond ok
}`, port)
		}, 0, 0, 0)
		for _, n := range nodes {
			eventually(t, "a store that answers", func() bool { return newVisitor(t, "h1").get(t, n.url+"page").status == 200 })
		}
		guesser := newVisitor(t, "h1")
		guesser.pourUntilRefused(t, nodes[0].url+"login")
		for i, n := range nodes {
			if a := guesser.get(t, n.url+"login"); a.status != 429 {
				t.Fatalf("node %d, which has to ask: got %d, want 429", i+1, a.status)
			}
		}
		began, before := time.Now(), replies.Load()
		const requests = 200
		for i := range requests {
			for _, path := range []string{"login", "page"} {
				if a := guesser.get(t, nodes[i%3].url+path); a.status != 429 || a.retryAfter(t) < 9*time.Minute {
					t.Fatalf("%s on node %d: got %d with Retry-After %s, want 429 with some 10m", path, i%3+1, a.status, a.header.Get("Retry-After"))
				}
			}
		}
		// Each node asks once a second whether the block still runs. That takes
		// up to four replies, and connections need a few more.
		if got, most := replies.Load()-before, int64(10+4*3*(1+int(time.Since(began).Seconds()))); got > most {
			t.Errorf("%d requests of a blocked client: got %d replies from the store, want at most %d", 2*requests, got, most)
		}

		s.reset("login", guesser.address)
		reset := time.Now()
		for i, n := range nodes {
			for _, path := range []string{"page", "login"} {
				for guesser.get(t, n.url+path).status != 200 {
					if time.Since(reset) > startTime {
						t.Fatalf("%s on node %d: got 429 %v after the reset, want 200", path, i+1, startTime)
					}
				}
			}
		}
		t.Logf("let in on all nodes %v after the reset", time.Since(reset))
	})
}
