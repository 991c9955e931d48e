package tests

import (
	"fmt"
	"testing"
	"time"
)

// isLongBlock reports whether an answer refuses by a block of an hour or more, and not by
// a limit that leaks in seconds.
func (a answer) isLongBlock(t *testing.T) bool {
	t.Helper()
	return a.status == 429 && a.retryAfter(t) > 2*time.Minute
}

// TestABlockOfAnOutageHoldsOnTheOtherCaddyAfterIt, and six pages on one Caddy, which are
// more than its share of the limit, block nobody. Two of four Caddys run.
func TestABlockOfAnOutageHoldsOnTheOtherCaddyAfterIt(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *storeServer) {
		nodes := startNodes(t, s.directive()+"\nnodes 4", func(port int) string {
			return fmt.Sprintf("http://:%d {\nthrottle {\nzone pages {\nlimit 20 1/s\nblock 1h 1d\n}\n}\nrespond ok\n}", port)
		}, 0, 0)
		scout, reader, robot := newVisitor(t, "h1"), newVisitor(t, "h1"), newVisitor(t, "h1")
		for _, n := range nodes {
			n.waitForStore(t, s)
		}
		s.kill()
		for _, n := range nodes {
			eventually(t, "the Caddys to notice the outage", func() bool {
				scout.get(t, n.url)
				return n.outages(t) > 0
			})
		}
		began, refused := time.Now(), 0
		for range 6 {
			a := reader.get(t, nodes[0].url)
			if a.status == 429 {
				refused++
			}
			if a.isLongBlock(t) {
				t.Fatalf("got the reader of six pages blocked for %v", a.retryAfter(t))
			}
		}
		if refused == 0 && time.Since(began) < 3*time.Second {
			t.Error("got six pages within the share of five, want one refused")
		}
		overflowed := time.Now()
		for n := 0; !robot.get(t, nodes[0].url).isLongBlock(t); n++ {
			if n > 500 {
				t.Fatal("got no block after 500 requests on one Caddy, want one when the whole limit overflows")
			}
		}
		if robot.get(t, nodes[1].url).isLongBlock(t) {
			t.Error("got the robot blocked on the other Caddy during the outage, want that only after it")
		}
		s.run()
		back := time.Now()
		for _, n := range nodes {
			var a answer
			eventually(t, "a block on both Caddys", func() bool { a = robot.get(t, n.url); return a.isLongBlock(t) })
			if least := time.Hour - time.Since(overflowed) - time.Second; a.retryAfter(t) > time.Hour || a.retryAfter(t) < least {
				t.Errorf("got a block of %v, want the rest of the hour, at least %v", a.retryAfter(t), least)
			}
		}
		t.Logf("blocked on both %v after the store was back", time.Since(back))
		for _, n := range nodes {
			n.waitForStore(t, s) // or the reader would ask again and again in the outage, like the robot
			eventually(t, "the reader to be served on both Caddys", func() bool {
				a := reader.get(t, n.url)
				if a.isLongBlock(t) {
					t.Fatalf("got the reader of six pages blocked for %v after the outage", a.retryAfter(t))
				}
				return a.status == 200
			})
		}
	})
}
