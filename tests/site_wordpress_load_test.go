package tests

import (
	"fmt"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// Zone pages of the recipe: its capacity and what it leaks in a second.
const pagesCapacity, pagesLeak = 120, 2

// wordPressChargesWhatRunsPHP as the recipe says, whatever it looks like.
func wordPressChargesWhatRunsPHP(t *testing.T) {
	s := startWordPress(t)
	requests := []struct {
		cost float64 // in zone pages
		request
	}{
		{1, request{target: "/"}},
		{1, request{target: "/?x=1"}},
		{1, request{method: "OPTIONS", target: "/"}},
		{1, request{method: "OPTIONS", target: "/wp-json/wp/v2/posts"}},
		{1, request{method: "HEAD", target: "/?x"}},
		{5, request{target: "/.well-known/x?s="}},
		{1, request{target: "/.well-known/security.txt"}},
		{1, request{target: "/robots.txt?"}},
		{1, request{target: "/up"}},
		{1, request{target: "/healthz?x"}},
		{1, request{target: "/favicon.ico"}},
		{1, request{target: "/wp-content/none.css"}},
		{1, request{target: "/index.php/x.css"}},
		{5, request{target: "/?s=kettle"}},
		{5, request{target: "/?%73=kettle"}},
		{5, request{target: "/search/kettle/"}},
		{5, request{target: "/wp-json/wp/v2/posts?search=kettle"}},
		{5, request{target: "/?rest_route=/wp/v2/posts&search=kettle"}},
		{5, request{target: "/wp-json/wp/v2/users"}},
		{5, request{target: "/?author=1"}},
		{5, request{target: "/wp-cron.php"}},
		{3, request{method: "POST", target: "/", body: "s=kettle"}},
		{3, request{method: "POST", target: "/wp-comments-post.php", body: "comment=x"}},
	}
	for i, c := range requests {
		c.address = networkAddress(4000 + i)
		s.must(c.request)
		eventually(t, c.method+" "+c.target+" in PHP", func() bool { return wordPress.reached(t, c.address+",") > 0 })
	}
	file := request{address: "198.51.100.1", target: "/wp-includes/js/jquery/jquery.min.js?ver=3"}
	s.must(file)
	if err := s.shutDown(); err != nil {
		t.Error(err)
	}
	for i, c := range requests {
		for _, e := range s.entries(networkAddress(4000 + i)) {
			for _, z := range e.Throttle.Zones {
				if z.Zone == "pages" && z.Cost != c.cost {
					t.Errorf("%s %s: got a cost of %v, want %v", c.method, c.target, z.Cost, c.cost)
				}
			}
		}
	}
	if e := s.entries(file.address); len(e) != 1 || e[0].Throttle != nil && e[0].Throttle.Zone != "" {
		t.Errorf("%s: got %+v, want no charge for a file", file.target, e)
	}
}

// wordPressServesAFloodOnce a burst, and no more of it than the leak then.
func wordPressServesAFloodOnce(t *testing.T) {
	s := startWordPress(t)
	for name, flood := range map[string]request{
		"searches":   {address: "198.51.100.201", target: "/?s=kettle"},
		"REST users": {address: "198.51.100.202", target: "/wp-json/wp/v2/users"},
		"wp-cron":    {address: "198.51.100.203", target: "/wp-cron.php"},
	} {
		start := time.Now()
		statuses := s.attack(100, 10, func(int) request { return flood })
		most := int(pagesCapacity+pagesLeak*time.Since(start).Seconds())/5 + 1
		reached := wordPress.reached(t, flood.address+",")
		t.Logf("%s, 100 times: %d reached PHP, %v by status", name, reached, statuses)
		if reached > most || reached == 0 {
			t.Errorf("%s: got %d, want 1 to %d", name, reached, most)
		}
	}
}

// wordPressIsFastInAFlood of one address.
func wordPressIsFastInAFlood(t *testing.T) {
	if !longRun() {
		t.Skip("it takes minutes: set TEST_LONG=1")
	}
	floods := make(map[string]func(i int) request)
	for name, target := range map[string]string{
		"pages":      "/?x=%d",
		"searches":   "/?s=kettle%d",
		"REST users": "/wp-json/wp/v2/users?x=%d",
		"wp-cron":    "/wp-cron.php?x=%d",
		"disguise":   "/.well-known/x?x=%d",
	} {
		floods[name] = func(i int) request { return request{address: "198.51.100.1", target: fmt.Sprintf(target, i)} }
	}
	checkFloods(t, startWordPress, "/kettle-3/", floods)

	t.Run("wget -r", func(t *testing.T) {
		wget := need(t, "wget")
		s := startWordPress(t)
		cmd := exec.Command(wget, "--recursive", "--level=inf", "--no-check-certificate", "--quiet", "--tries=1",
			"--header=X-Forwarded-For: 198.51.100.204", "--directory-prefix="+t.TempDir(), s.url+"/")
		s.visitPolitely("/kettle-3/", 2*time.Second)
		quiet := s.visitPolitely("/kettle-3/", 15*time.Second)
		start := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var mirror sync.WaitGroup
		mirror.Go(func() { _ = cmd.Wait() }) // it ends with an error: pages were refused, or it was ended
		flooded := s.visitPolitely("/kettle-3/", 45*time.Second)
		_ = cmd.Process.Kill()
		mirror.Wait()
		most := int(pagesCapacity+pagesLeak*time.Since(start).Seconds()) + 1
		reached := wordPress.reached(t, "198.51.100.204,")
		was, is := percentile(quiet, 95), percentile(flooded, 95)
		t.Logf("wget -r: %d reached PHP; polite p95 %v quiet, %v meanwhile", reached, was.Round(time.Millisecond), is.Round(time.Millisecond))
		if reached > most || reached == 0 {
			t.Errorf("got %d, want 1 to %d", reached, most)
		}
		if is > 2*was {
			t.Errorf("got a p95 of %v, want twice the quiet %v at most", is, was)
		}
	})
}
