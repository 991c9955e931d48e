package tests

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Zone pages of the recipe: its capacity and what it leaks in a second.
const pagesCapacity, pagesLeak = 60.0, 2.0

// TestWordPressServesNoDisguise more often than its home page.
func TestWordPressServesNoDisguise(t *testing.T) {
	n := 120
	if longRun() {
		n = 300
	}
	s := startWordPress(t)
	for i, disguise := range []request{
		{target: "/"},
		{method: "OPTIONS", target: "/"},
		{method: "OPTIONS", target: "/wp-json/wp/v2/posts"},
		{method: "HEAD", target: "/?x"},
		{target: "/.well-known/x?s="},
		{target: "/robots.txt?"},
		{target: "/up"},
		{target: "/healthz?x"},
		{target: "/favicon.ico"},
		{target: "/wp-content/x.css"},
		{target: "/index.php/x.css"},
	} {
		disguise.address = networkAddress(i)
		start := time.Now()
		s.attack(n, 10, func(int) request { return disguise })
		most := int(pagesCapacity+pagesLeak*time.Since(start).Seconds()) + 1
		reached := wordPress.reached(t, disguise.address)
		t.Logf("%s %s, %d times: %d reached PHP", disguise.method, disguise.target, n, reached)
		if reached > most || reached == 0 {
			t.Errorf("%s %s: got %d, want 1 to %d", disguise.method, disguise.target, reached, most)
		}
	}
}

// TestWordPressIsFastInAFlood of one address. PHP sees no more of it than the costs
// in the recipe allow, and other visitors notice little.
func TestWordPressIsFastInAFlood(t *testing.T) {
	n, quiet := 200, time.Duration(0)
	s := startWordPress(t)
	if longRun() {
		ended, end := context.WithTimeout(context.Background(), time.Minute)
		defer end()
		quiet = percentile95(s.visit(ended.Done()))
		t.Logf("quiet: visitors' 95th percentile %v", quiet)
	}
	for i, flood := range []struct {
		name   string
		target func(i int) string
		cost   float64
	}{
		{"/?x=N", func(i int) string { return fmt.Sprintf("/?x=%d", i) }, 1},
		{"searches", func(i int) string { return fmt.Sprintf("/?s=kettle%d", i) }, 5},
		{"REST searches", func(i int) string { return fmt.Sprintf("/wp-json/wp/v2/posts?search=kettle%d", i) }, 5},
		{"REST users", func(i int) string { return fmt.Sprintf("/wp-json/wp/v2/users?x=%d", i) }, 5},
		{"authors", func(i int) string { return fmt.Sprintf("/?author=%d", i) }, 5},
		{"wp-cron", func(int) string { return "/wp-cron.php" }, 5},
	} {
		t.Run(flood.name, func(t *testing.T) {
			address, start := networkAddress(100+i), time.Now()
			ended, end := context.WithCancel(context.Background())
			if longRun() {
				ended, end = context.WithTimeout(context.Background(), time.Minute)
			}
			defer end()
			var flooding sync.WaitGroup
			flooding.Go(func() {
				for more := true; more; more = longRun() && ended.Err() == nil {
					s.attack(n, 20, func(i int) request { return request{address: address, target: flood.target(i)} })
				}
				end()
			})
			pages := s.visit(ended.Done())
			flooding.Wait()
			most := int((pagesCapacity+pagesLeak*time.Since(start).Seconds())/flood.cost) + 1
			reached := wordPress.reached(t, address)
			t.Logf("%s for %v: %d reached PHP; visitors' 95th percentile %v", flood.name, time.Since(start).Round(time.Second), reached, percentile95(pages))
			if reached > most || reached == 0 {
				t.Errorf("got %d, want 1 to %d", reached, most)
			}
			if longRun() && percentile95(pages) > 2*quiet {
				t.Errorf("got a 95th percentile of %v, want twice the quiet %v at most", percentile95(pages), quiet)
			}
		})
	}

	t.Run("wget -r", func(t *testing.T) {
		wget := need(t, "wget")
		address, start := networkAddress(200), time.Now()
		limit := 10 * time.Second
		if longRun() {
			limit = time.Minute
		}
		ended, end := context.WithTimeout(context.Background(), limit)
		defer end()
		cmd := exec.CommandContext(ended, wget, "--recursive", "--level=inf", "--no-check-certificate", "--quiet", "--tries=1",
			"--header=X-Forwarded-For: "+address, "--directory-prefix="+t.TempDir(), s.url+"/")
		var mirror sync.WaitGroup
		mirror.Go(func() { _ = cmd.Run() }) // it ends with an error: pages were refused
		pages := s.visit(ended.Done())
		mirror.Wait()
		most := int(pagesCapacity+pagesLeak*time.Since(start).Seconds()) + 1
		reached := wordPress.reached(t, address)
		t.Logf("wget -r for %v: %d reached PHP; visitors' 95th percentile %v", limit, reached, percentile95(pages))
		if reached > most || reached == 0 {
			t.Errorf("got %d, want 1 to %d", reached, most)
		}
		if longRun() && percentile95(pages) > 2*quiet {
			t.Errorf("got a 95th percentile of %v, want twice the quiet %v at most", percentile95(pages), quiet)
		}
	})
}

// visit asks for a page a second until the end, from an address of its own, and
// returns how long each took. A refusal fails the test.
func (s *trial) visit(ended <-chan struct{}) []time.Duration {
	s.t.Helper()
	var took []time.Duration
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 0; ; n++ {
		start := time.Now()
		a := s.must(request{address: "203.0.113.9", target: fmt.Sprintf("/kettle-%d/", n%30+1)})
		if a.status != 200 || !strings.Contains(a.body, "Kettle") {
			s.t.Errorf("got %d for a visitor's page, want 200", a.status)
		}
		took = append(took, time.Since(start))
		select {
		case <-ended:
			return took
		case <-tick.C:
		}
	}
}

func percentile95(took []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	return sorted[(len(sorted)*95-1)/100].Round(time.Millisecond)
}
