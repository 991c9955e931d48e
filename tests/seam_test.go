package tests

import (
	"fmt"
	"testing"
	"time"
)

// TestAnOutageAdmitsAtMostOneCapacityMore: while the store is down, three nodes
// together admit as much as one bucket would. When the store is back, it does not
// hold these charges.
func TestAnOutageAdmitsAtMostOneCapacityMore(t *testing.T) {
	t.Parallel()
	lasts := 2 * time.Second
	if long() {
		lasts = 10 * time.Second
	}
	for _, seen := range []bool{true, false} {
		t.Run(map[bool]string{true: "of keys seen before", false: "of keys never seen"}[seen], func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, s *storeServer) {
				const capacity, leak = 30, 15
				nodes := startNodes(t, s.directive()+"\nnodes 3", func(port int) string {
					return fmt.Sprintf(`
http://:%d {
	throttle all text everybody %d %d/s
	respond ok
}`, port, capacity, leak)
				}, 0, 0, 0)
				before := time.Duration(0)
				for _, n := range nodes {
					n.waitForStore(t, s)
				}
				if seen {
					before = time.Second
				} else {
					s.kill()
				}
				start := time.Now()
				admitted := make(chan []pour, 1)
				go func() { admitted <- crowdNodes(t, nodes, before+lasts+2*time.Second, 0) }()
				time.Sleep(before)
				if seen {
					s.kill()
				}
				down := time.Since(start)
				time.Sleep(lasts)
				up := time.Since(start)
				s.run()
				pours := <-admitted
				in := func(from, to time.Duration) (n int) {
					for _, p := range pours {
						if from <= p.call && p.call < to {
							n++
						}
					}
					return n
				}
				took := time.Since(start)
				t.Logf("admitted: %d before, %d in %v without the store, %d in %v after; a bucket alone gives %.0f",
					in(0, down), in(down, up), up-down, in(up, took), took-up, capacity+leak*took.Seconds())
				// A node's share always fits one request, hence three more.
				if got, most := in(down, up), capacity+3+leak*(up-down).Seconds(); float64(got) > most {
					t.Errorf("got %d admitted without the store, want at most %v", got, most)
				}
				// The store's bound, and that of the three shares.
				wantBound(t, pours, 2*capacity, 2*leak)
			})
		})
	}
}
