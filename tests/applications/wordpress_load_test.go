package applications

import (
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// Zone pages of the recipe: its capacity and what it leaks in a second.
const pagesCapacity, pagesLeak = 120, 2

// wordPressChargesWhatRunsPHP as the recipe says, whatever it looks like.
func wordPressChargesWhatRunsPHP(t *testing.T) {
	s := startWordPress(t)
	requests := []struct {
		cost float64 // in zone pages
		system.Request
	}{
		{1, system.Request{Target: "/"}},
		{1, system.Request{Target: "/?x=1"}},
		{1, system.Request{Method: "OPTIONS", Target: "/"}},
		{1, system.Request{Method: "OPTIONS", Target: "/wp-json/wp/v2/posts"}},
		{1, system.Request{Method: "HEAD", Target: "/?x"}},
		{5, system.Request{Target: "/.well-known/x?s="}},
		{1, system.Request{Target: "/.well-known/security.txt"}},
		{1, system.Request{Target: "/robots.txt?"}},
		{1, system.Request{Target: "/up"}},
		{1, system.Request{Target: "/healthz?x"}},
		{1, system.Request{Target: "/favicon.ico"}},
		{1, system.Request{Target: "/wp-content/none.css"}},
		{1, system.Request{Target: "/index.php/x.css"}},
		{5, system.Request{Target: "/?s=kettle"}},
		{5, system.Request{Target: "/?%73=kettle"}},
		{5, system.Request{Target: "/search/kettle/"}},
		{5, system.Request{Target: "/wp-json/wp/v2/posts?search=kettle"}},
		{5, system.Request{Target: "/?rest_route=/wp/v2/posts&search=kettle"}},
		{5, system.Request{Target: "/wp-json/wp/v2/users"}},
		{5, system.Request{Target: "/?author=1"}},
		{5, system.Request{Target: "/wp-cron.php"}},
		{3, system.Request{Method: "POST", Target: "/", Body: "s=kettle"}},
		{3, system.Request{Method: "POST", Target: "/wp-comments-post.php", Body: "comment=x"}},
	}
	for i, c := range requests {
		c.Address = system.NetworkAddress(4000 + i)
		s.Must(c.Request)
		system.Eventually(t, c.Method+" "+c.Target+" in PHP", func() bool { return wordPress.reached(t, c.Address+",") > 0 })
	}
	file := system.Request{Address: "198.51.100.1", Target: "/wp-includes/js/jquery/jquery.min.js?ver=3"}
	s.Must(file)
	if err := s.ShutDown(); err != nil {
		t.Error(err)
	}
	for i, c := range requests {
		for _, e := range s.Entries(system.NetworkAddress(4000 + i)) {
			for _, z := range e.Throttle.Zones {
				if z.Zone == "pages" && z.Cost != c.cost {
					t.Errorf("%s %s: got a cost of %v, want %v", c.Method, c.Target, z.Cost, c.cost)
				}
			}
		}
	}
	if e := s.Entries(file.Address); len(e) != 1 || e[0].Throttle != nil && e[0].Throttle.Zone != "" {
		t.Errorf("%s: got %+v, want no charge for a file", file.Target, e)
	}
}

// wordPressServesAFloodOnce a burst, and no more of it than the leak then.
func wordPressServesAFloodOnce(t *testing.T) {
	s := startWordPress(t)
	for name, flood := range map[string]system.Request{
		"searches":   {Address: "198.51.100.201", Target: "/?s=kettle"},
		"REST users": {Address: "198.51.100.202", Target: "/wp-json/wp/v2/users"},
		"wp-cron":    {Address: "198.51.100.203", Target: "/wp-cron.php"},
	} {
		start := time.Now()
		statuses := s.Attack(100, 10, func(int) system.Request { return flood })
		most := int(pagesCapacity+pagesLeak*time.Since(start).Seconds())/5 + 1
		reached := wordPress.reached(t, flood.Address+",")
		t.Logf("%s, 100 times: %d reached PHP, %v by status", name, reached, statuses)
		if reached > most || reached == 0 {
			t.Errorf("%s: got %d, want 1 to %d", name, reached, most)
		}
	}
}
