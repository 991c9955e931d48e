package applications

import (
	"fmt"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// wordPressPaysForSearchesInDisguise as for plain ones: spelled as PHP reads them, too,
// and by other addresses. What people ask for costs 1.
func wordPressPaysForSearchesInDisguise(t *testing.T) {
	s := startWordPress(t)
	n := 0
	for want, targets := range map[float64][]string{
		5: {
			"/?s=kettle", "/?%73=kettle", "/?x=1&%20s=kettle", "/?+s=kettle", "/?s%00x=kettle", "/?s%5B%5D=kettle", "/index.php?S=1&s=kettle",
			"/index.php/search/kettle/", "/search/kettle/", "/author/admin/", "/index.php/author/admin/", "/?author=1", "/?author_name=admin",
			"/?author.name=admin", "/?author%20name=admin", "/?rest_route=/wp/v2/users", "/?rest.route=/wp/v2/users", "/index.php/wp-json/wp/v2/users",
			"/wp-json/wp/v2/posts?search=kettle", "/wp-json/wp/v2/posts?se%61rch=kettle",
		},
		1: {"/", "/kettle-1/", "/?p=5", "/?utm_source=mail&x=s", "/wp-json/wp/v2/posts?include%5B0%5D=5&_fields=id%2Cname&_locale=user", "/?wc-ajax=cart"},
	} {
		for _, target := range targets {
			n++
			address := system.NetworkAddress(n)
			s.Must(system.Request{Address: address, Target: target})
			system.Eventually(t, "a line in the log", func() bool { return len(s.Entries(address)) == 1 })
			check.Equal(t, costIn(s, "pages", address), want, "%s: the cost", target)
		}
	}
	for _, cookie := range []string{"wp-postpass_site=x", "wp-postpass.site=x"} {
		n++
		address := system.NetworkAddress(n)
		s.Must(system.Request{Address: address, Target: "/members/", Header: []string{"Cookie", cookie}})
		system.Eventually(t, "a line in the log", func() bool { return len(s.Entries(address)) == 1 })
		check.Equal(t, costIn(s, "pages", address), 3, "the cookie %s: the cost", cookie)
	}
}

// costIn returns what the only request of an address cost in a zone.
func costIn(s *system.Trial, zone, address string) float64 {
	s.T.Helper()
	e := s.Entries(address)[0]
	if e.Throttle == nil {
		return 0
	}
	for _, z := range append(e.Throttle.Zones, e.Throttle.ZoneEntry) {
		if z.Zone == zone {
			return z.Cost
		}
	}
	return 0
}

// wordPressChecksFewApplicationPasswords, however it is asked to answer wrong ones, and
// all right ones.
func wordPressChecksFewApplicationPasswords(t *testing.T) {
	for i, target := range []string{
		"/wp-json/wp/v2/posts?status=draft", "/?rest_route=/wp/v2/users/me&_envelope=1", "/wp-json/wp/v2/users/me?%5fenvelope=1",
		"/wp-json/wp/v2/users/me?.envelope=1", "/wp-json/wp/v2/users/me?_env%65lope", "/wp-json/wp/v2/users/me?_envelope[]=1",
	} {
		for name, start := range map[string]func(*testing.T, ...string) *system.Trial{"the recipe": startWordPress, "the first configuration": startFirst} {
			s := start(t)
			var statuses map[int]int
			n := checked(t, func() {
				statuses = s.Attack(60, 1, func(i int) system.Request { return basic(system.NetworkAddress(i), "author", "wrong", target) })
			})
			t.Logf("%s, %s: %d of 60 application passwords checked, %v by status", name, target, n, statuses)
			if n > mostByAccount || statuses[429] < 60-mostByAccount || statuses[200] > 0 || i == 0 && n == 0 {
				t.Errorf("%s, %s: got %d of 60 application passwords checked, %v by status, want %d at most and the others refused", name, target, n, statuses, mostByAccount)
			}
		}
	}
	s := startWordPress(t)
	for i := range 30 {
		a := s.Must(system.Request{Address: "198.51.100.3", Target: fmt.Sprint("/wp-json/wp/v2/posts?per_page=1&exclude%5B%5D=7&x=", i), Header: []string{"Authorization", "Bearer x"}})
		check.Need(t, a.Status, 200, "request %d, want 200 for answers that are no failure", i)
	}
}
