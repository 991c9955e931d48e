package applications

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// startFirst runs WordPress behind the first configuration of the README with its names, enforced,
// with more changes.
func startFirst(t *testing.T, changes ...string) *system.Trial {
	t.Helper()
	wordPress.use(t)
	envelope := regexp.MustCompile(`(?m)^\t@envelope .*\n\trespond @envelope .*\n`).FindString(system.Page(t, "docs/recipes/wordpress.md"))
	check.Assume(t, envelope != "", "got no @envelope in wordpress.md")
	closed := envelope + system.ConfigsUnder(t, "recipes/wordpress.md", "## XML-RPC", 1)[0]
	return system.RunTrial(t, "README.md", "{\n}\n"+firstConfiguration(t), slices.Concat(namesOf(t, "WordPress").changes(""), []string{
		"\troot * /srv/www\n", "\troot * " + filepath.Join(wordPress.dir, "wordpress") + "\n" + closed,
		"unix//run/php/php-fpm.sock", "unix/" + filepath.Join(wordPress.dir, "fpm.sock"),
		"key basic_user ", "key basic_user fold wordpress ",
	}, changes)...)
}

// firstConfigurationHolds: whoever guesses, from one address or from 200,
// gets few passwords checked.
func firstConfigurationHolds(t *testing.T) {
	basic := func(address string) system.Request {
		return system.Request{
			Address: address, Target: "/wp-json/wp/v2/users/me",
			Header: []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("author:wrong"))},
		}
	}
	at := func(path string, r system.Request) system.Request {
		r.Target = path + r.Target
		return r
	}
	for _, attack := range []struct {
		name  string
		least int
		most  int
		guess func(i int) system.Request
	}{
		{"forms from one address, for many accounts", 1, mostByAddress, func(i int) system.Request { return guess("198.51.100.1", fmt.Sprint("first", i)) }},
		{"forms from 200 addresses", 1, mostByAccount, func(i int) system.Request { return guess(system.NetworkAddress(i%200), "author") }},
		{"forms in a folder of a multisite", 1, mostByAccount, func(i int) system.Request { return at("/site1", guess(system.NetworkAddress(i%200), "author")) }},
		{"HTTP Basic from one address", 1, mostByAccount, func(int) system.Request { return basic("198.51.100.1") }},
		{"HTTP Basic from 200 addresses", 1, mostByAccount, func(i int) system.Request { return basic(system.NetworkAddress(i % 200)) }},
		{"XML-RPC", 0, 0, func(i int) system.Request { return callXMLRPC(system.NetworkAddress(i%200), 1) }},
		{"XML-RPC in a folder", 0, 0, func(i int) system.Request { return at("/site1", callXMLRPC(system.NetworkAddress(i%200), 1)) }},
		{"XML-RPC, 500 guesses in each", 0, 0, func(i int) system.Request { return callXMLRPC(system.NetworkAddress(i%200), 500) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			s := startFirst(t, "\tlog\n", "\tlog\n"+foldersOfMultisite(t))
			var statuses map[int]int
			began := time.Now()
			n := checked(t, func() { statuses = s.Attack(500, 20, attack.guess) })
			if strings.HasPrefix(attack.name, "HTTP Basic") {
				attack.most = mostByBasic(began)
			}
			t.Logf("%s: %d of 500 checked, %v by status", attack.name, n, statuses)
			check.That(t, n >= attack.least && n <= attack.most, "%s: got %d of 500 checked, want %d to %d", attack.name, n, attack.least, attack.most)
		})
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

// Zone pages of the recipe: its capacity and what it leaks in a second.
const pagesCapacity, pagesLeak = 120, 2

// wordPressChargesWhatRunsPHP as the recipe says, whatever it looks like. It pays for searches in
// disguise as for plain ones: spelled as PHP reads them, too, and by other addresses.
func wordPressChargesWhatRunsPHP(t *testing.T) {
	s, author := startWordPress(t), []string{"Cookie", "wordpress_logged_in_x=x"}
	type charged struct {
		cost float64 // in zone pages
		system.Request
	}
	requests := []charged{
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
		{5, system.Request{Target: "/?rest_route=/wp/v2/posts&search=kettle"}},
		{1, system.Request{Target: "/wp-json/wp/v2/search?search=ket&per_page=20&type=post&_locale=user", Header: author}},
		{5, system.Request{Target: "/wp-json/wp/v2/search?search=ket&per_page=20&type=post&_locale=user"}},
		{5, system.Request{Target: "/wp-json/wp/v2/media?search=ket&rest_route=/wp/v2/posts", Header: author}},
		{5, system.Request{Target: "/wp-json/wp/v2/posts?search=ket", Header: author}},
		{5, system.Request{Target: "/wp-json/wp/v2/users"}},
		{5, system.Request{Target: "/wp-cron.php"}},
		{3, system.Request{Method: "POST", Target: "/", Body: "s=kettle"}},
		{3, system.Request{Method: "POST", Target: "/wp-comments-post.php", Body: "comment=x"}},
		{3, system.Request{Target: "/members/", Header: []string{"Cookie", "wp-postpass_site=x"}}},
		{3, system.Request{Target: "/members/", Header: []string{"Cookie", "wp-postpass.site=x"}}},
	}
	for cost, targets := range map[float64][]string{
		5: {
			"/?s=kettle", "/?%73=kettle", "/?x=1&%20s=kettle", "/?+s=kettle", "/?s%00x=kettle", "/?s%5B%5D=kettle", "/index.php?S=1&s=kettle",
			"/index.php/search/kettle/", "/search/kettle/", "/author/admin/", "/index.php/author/admin/", "/?author=1", "/?author_name=admin",
			"/?author.name=admin", "/?author%20name=admin", "/?rest_route=/wp/v2/users", "/?rest.route=/wp/v2/users", "/?rest[route=/wp/v2/users", "/?rest%5Broute=/wp/v2/users", "/index.php/wp-json/wp/v2/users",
			"/wp-json/wp/v2/posts?search=kettle", "/wp-json/wp/v2/posts?se%61rch=kettle",
		},
		1: {"/kettle-1/", "/?p=5", "/?utm_source=mail&x=s", "/wp-json/wp/v2/posts?include%5B0%5D=5&_fields=id%2Cname&_locale=user", "/?wc-ajax=cart"},
	} {
		for _, target := range targets {
			requests = append(requests, charged{cost, system.Request{Target: target}})
		}
	}
	for i, c := range requests {
		c.Address = system.NetworkAddress(4000 + i)
		s.Must(c.Request)
		system.Eventually(t, c.Method+" "+c.Target+" in PHP", func() bool { return wordPress.reached(t, c.Address+",") > 0 })
	}
	file := system.Request{Address: "198.51.100.1", Target: "/wp-includes/js/jquery/jquery.min.js?ver=3"}
	s.Must(file)
	check.NoError(t, s.ShutDown())
	for i, c := range requests {
		check.Equal(t, costIn(s, "pages", system.NetworkAddress(4000+i)), c.cost, "%s %s %q: the cost", c.Method, c.Target, c.Header)
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
		check.That(t, reached <= most && reached != 0, "%s: got %d, want 1 to %d", name, reached, most)
	}
}
