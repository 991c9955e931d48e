package tests

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestNewcomersGetInBesideACrowd lets crowds come to sites of their own, all at the same time:
// they ask seldom and wait for most of it. With TEST_LONG=1 no other test runs beside them.
func TestNewcomersGetInBesideACrowd(t *testing.T) {
	if !long() {
		t.Parallel()
	}
	for name, test := range map[string]func(*testing.T){
		"a mild flood of fresh addresses":     aMildFloodHurtsNobody,
		"robots that keep their first pass":   robotsThatKeepTheirFirstPassLeaveNewcomersIn,
		"two members who always ask for more": greedyMembersLeaveNewcomersIn(2),
		"twenty members":                      greedyMembersLeaveNewcomersIn(20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// Sixty requests of fresh addresses at once, for five workers, hurt nobody: with share, people
// wait no longer than in order of arrival, and hardly any are refused.
func aMildFloodHurtsNobody(t *testing.T) {
	var inOrder, withTurns time.Duration
	var refused int64
	t.Run("both", func(t *testing.T) {
		t.Run("in order of arrival", func(t *testing.T) {
			t.Parallel()
			inOrder, _ = mildFlood(t, "wait 8s")
		})
		t.Run("with share", func(t *testing.T) {
			t.Parallel()
			withTurns, refused = mildFlood(t, "wait 8s\nshare")
		})
	})
	t.Logf("the 95th percentile of 30 views: %v in order of arrival, %v with share, where %d were refused", inOrder, withTurns, refused)
	if slack := 500 * time.Millisecond; long() && withTurns > inOrder+inOrder/10+slack {
		t.Errorf("with share: got a 95th percentile of %v, want about the %v of the order of arrival at most", withTurns, inOrder)
	}
	most := int64(15) // on a machine that stands still for a while
	if long() {
		most = 2 // 1.5 are one in twenty
	}
	if refused > most {
		t.Errorf("with share: got %d of 30 views refused, want %d at most", refused, most)
	}
}

// mildFlood keeps 60 requests of fresh addresses going: whenever one is answered, the next one
// comes. Beside them 30 people come, one in half a second. It returns after how long 95 % of these were answered, and how
// many were refused.
func mildFlood(t *testing.T, options string) (p95 time.Duration, refused int64) {
	const page, robots = 200 * time.Millisecond, 60
	u := startUpstream(t, func(http.ResponseWriter, *http.Request) { time.Sleep(page) })
	port := freePort(t)
	startCaddy(t, config{
		servers: "trusted_proxies static 127.0.0.1/32\ntrusted_proxies_strict",
		sites:   fmt.Sprintf("http://:%d {\nin_flight php 5 {\n%s\n}\nreverse_proxy %s\n}", port, options, u.address),
	})
	proxy := newVisitorFrom(t, "h1", "127.0.0.1")
	ask := func(address string) (answer, error) {
		return proxy.try("GET", fmt.Sprintf("http://127.0.0.1:%d/", port), "X-Forwarded-For", address, "X-Forwarded-Proto", "https")
	}
	ctx, stop := context.WithCancel(t.Context())
	var flood, people sync.WaitGroup
	defer flood.Wait()
	defer stop()
	var fresh atomic.Int64
	for range robots {
		flood.Go(func() {
			for ctx.Err() == nil {
				n := fresh.Add(1)
				_, _ = ask(fmt.Sprintf("10.%d.%d.1", n/250, n%250))
			}
		})
	}
	sleep(ctx, 3*time.Second)
	var mu sync.Mutex
	var took []time.Duration
	for n := range 30 {
		sleep(ctx, 500*time.Millisecond)
		people.Go(func() {
			came := time.Now()
			a, err := ask(fmt.Sprintf("192.168.%d.1", n))
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(came))
			if err != nil || a.status != http.StatusOK {
				refused++
			}
		})
	}
	people.Wait()
	slices.Sort(took)
	return took[len(took)*95/100], refused
}
