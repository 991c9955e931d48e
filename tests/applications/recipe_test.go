package applications

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// statusesOf sends a request n times, one after the other, and counts the answers by
// status.
func statusesOf(s *system.Trial, n int, each func(i int) system.Request) map[int]int {
	s.T.Helper()
	return s.Attack(n, 1, each)
}

// about reports whether so many got through, or a few more because buckets leak.
func about(got, want int) bool { return got >= want && got <= want+want/5+2 }

// TestTheRecipeForAPIsGivesEachKeyItsPlan, and made-up keys nothing.
func TestTheRecipeForAPIsGivesEachKeyItsPlan(t *testing.T) {
	t.Parallel()
	const free, pro, leaked = "demo-key-of-a-hobbyist", "demo-key-of-a-shop", "demo-leaked-key"
	start := func(t *testing.T) *system.Trial {
		up := system.StartUpstream(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cache-Control", "private") })
		return system.StartTrial(t, "apis.md", "localhost:3000", up.Address)
	}
	call := func(address, key string) system.Request {
		r := system.Request{Address: address, Target: "/v1/things", Header: []string{"Accept", "application/json"}}
		if key != "" {
			r.Header = append(r.Header, "X-Api-Key", key)
		}
		return r
	}
	t.Run("plans", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		for _, c := range []struct {
			name   string
			n      int
			passes int
			each   func(i int) system.Request
		}{
			{"no key", 100, 20, func(int) system.Request { return call("192.0.2.1", "") }},
			{"made-up keys", 100, 20, func(i int) system.Request { return call("192.0.2.2", fmt.Sprint("made-up", i)) }},
			{"keys sent twice", 100, 20, func(i int) system.Request {
				r := call("192.0.2.3", fmt.Sprint("made-up", i))
				r.Header = append(r.Header, "X-Api-Key", pro)
				return r
			}},
			{"the free plan, from many addresses", 200, 60, func(i int) system.Request { return call(system.NetworkAddress(i), free) }},
			{"the pro plan", 300, 300, func(i int) system.Request { return call(system.NetworkAddress(i), pro) }},
			{"a leaked key", 5, 0, func(int) system.Request { return call("192.0.2.4", leaked) }},
			{"a search", 20, 4, func(int) system.Request {
				r := call("192.0.2.5", "")
				r.Target = "/v1/search?q=x"
				return r
			}},
		} {
			statuses := statusesOf(s, c.n, c.each)
			t.Logf("%s: %v of %d by status", c.name, statuses, c.n)
			if c.passes == 0 && statuses[200] > 0 || c.passes > 0 && !about(statuses[200], min(c.passes, c.n)) || statuses[200]+statuses[429] != c.n {
				t.Errorf("%s: got %v by status, want about %d of 200, and 429", c.name, statuses, c.passes)
			}
		}
	})
	t.Run("batches", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		batch := func(key string, items int) system.Request {
			r := call("192.0.2.1", key)
			r.Method, r.Target = "POST", "/v1/batch"
			r.Header = append(r.Header, "Content-Type", "application/json")
			r.Body = fmt.Sprintf(`{"items": [%s]}`, strings.TrimSuffix(strings.Repeat("1,", items), ","))
			return r
		}
		for _, c := range []struct {
			items, status int
			left          string
		}{{3, 200, "r=57;"}, {50, 200, "r="}, {50, 429, ""}, {61, 429, ""}} {
			a := s.Must(batch(free, c.items))
			limit := a.Header.Get("RateLimit")
			check.That(t, a.Status == c.status && strings.Contains(limit, c.left), "%d items: got %d and %s, want %d and %s", c.items, a.Status, limit, c.status, c.left)
			got := a.Header.Get("Retry-After")
			check.That(t, (got != "") == (c.status == 429 && c.items <= 60), "%d items: got %d and Retry-After %q", c.items, a.Status, got)
		}
		check.Equal(t, s.Must(call("192.0.2.9", pro)).Header.Get("RateLimit-Policy"), `"keys";q=600;qu="cost";w=30`, "the policy")
	})
}

// TestTheRecipeForDownloadsCountsBytes, in smaller numbers.
func TestTheRecipeForDownloadsCountsBytes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	check.OK(t, os.Mkdir(filepath.Join(root, "files"), 0o755))
	for name, size := range map[string]int64{"ten": 10 << 20, "large": 256 << 20} {
		file := filepath.Join(root, "files", name)
		check.OK(t, os.WriteFile(file, nil, 0o644))
		check.OK(t, os.Truncate(file, size))
	}
	get := func(address, target string, header ...string) system.Request {
		return system.Request{Address: address, Target: target, Header: header}
	}
	const client, partner = "192.0.2.1", "203.0.113.9"

	t.Run("and refuses the next file", func(t *testing.T) {
		t.Parallel()
		s := system.StartSection(t, "recipes/apis.md", "## Downloads", "/srv/files", root, "limit 4096 2/s", "limit 4 1/h", "debt 8192", "debt 8")
		for _, step := range []struct {
			system.Request
			status int
		}{
			{get(client, "/files/ten", "Range", "bytes=0-1048575"), 206}, // 1
			{system.Request{Address: client, Method: "HEAD", Target: "/files/ten"}, 200},
			{get(client, "/files/ten", "Range", "bytes=1048576-2097151"), 206}, // 2
			{get(client, "/files/ten"), 200},                                   // 12
			{get(client, "/files/ten", "Range", "bytes=0-0"), 429},
			{get("192.0.2.2", "/files/ten"), 200},
			{get(partner, "/files/ten"), 200},
			{get(partner, "/files/ten"), 200},
		} {
			a := s.Must(step.Request)
			check.Equal(t, a.Status, step.status, "%v", step.Request)
			if a.Status != 429 {
				continue
			}
			// 12 + 1 - 4 at one an hour.
			hours := a.RetryAfter(t).Hours()
			check.That(t, hours >= 8.5 && hours <= 9, "got Retry-After of %.2f hours, want the nine until one fits", hours)
		}
	})
}

// TestTheRecipeForRailsHoldsGuesses at an application like Devise, and leaves people
// alone.
func TestTheRecipeForRailsHoldsGuesses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(root, "style.css"), []byte("p{}"), 0o644))
	start := func(t *testing.T) *system.Trial {
		return system.StartTrial(t, "rails.md", "/srv/app/public", root, "reverse_proxy localhost:3000", system.RackSite(t))
	}
	logIn := func(address, account, password string) system.Request {
		form := url.Values{"user[email]": {account}, "user[password]": {password}}
		return system.Request{Address: address, Method: "POST", Target: "/users/sign_in", Body: form.Encode()}
	}
	for _, c := range []struct {
		name string
		n    int
		each func(i int) system.Request
		want map[int]int // at most one more of the first, because buckets leak
	}{
		{"right passwords", 30, func(int) system.Request { return logIn("192.0.2.1", "alice@example.com", "right") }, map[int]int{303: 30}},
		{"one address", 30, func(i int) system.Request { return logIn("192.0.2.1", fmt.Sprint(i, "@example.com"), "wrong") }, map[int]int{422: 10, 429: 20}},
		{"many addresses", 50, func(i int) system.Request { return logIn(system.NetworkAddress(i), "Alice@Example.com", "wrong") }, map[int]int{422: 10, 429: 40}},
		{"the account in the address", 50, func(i int) system.Request {
			r := logIn(system.NetworkAddress(i), "", "wrong")
			r.Target += "?user%5Bemail%5D=alice@example.com"
			return r
		}, map[int]int{422: 10, 429: 40}},
		{"the account twice", 50, func(i int) system.Request {
			r := logIn(system.NetworkAddress(i), "alice@example.com", "wrong")
			r.Body = "user[email]=bob@example.com&" + r.Body
			return r
		}, map[int]int{422: 10, 429: 40}},
		{"JSON", 50, func(i int) system.Request {
			return system.Request{
				Address: system.NetworkAddress(i), Method: "POST", Target: "/users/sign_in.json", Header: []string{"Content-Type", "application/json"},
				Body: `{"user": {"email": "alice@example.com", "password": "wrong"}}`,
			}
		}, map[int]int{200: 10, 429: 40}},
		{"HTTP Basic", 50, func(i int) system.Request { return basic(system.NetworkAddress(i), "alice", "wrong", "/issues.json") }, map[int]int{200: 10, 429: 40}},
		{"codes", 50, func(i int) system.Request {
			return system.Request{Address: "192.0.2.4", Target: fmt.Sprintf("/account/twofa?twofa_code=%06d", i)}
		}, map[int]int{302: 20, 429: 30}},
		{"files that say password=", 30, func(int) system.Request {
			return system.Request{Address: "192.0.2.5", Method: "POST", Target: "/uploads.js?filename=a.conf", Header: []string{"Content-Type", "application/octet-stream"}, Body: "password=x"}
		}, map[int]int{200: 30}},
		{"a list as CSV, and then as PDF", 2, func(i int) system.Request {
			return system.Request{Address: "192.0.2.7", Target: []string{"/issues.csv", "/issues.pdf"}[i]}
		}, map[int]int{200: 2}},
		{"tables that a form uploads by themselves", 30, func(int) system.Request {
			return system.Request{Address: "192.0.2.6", Method: "PUT", Target: "/rails/active_storage/disk/a--b", Header: []string{"Content-Type", "text/csv"}, Body: "a,b"}
		}, map[int]int{200: 30}},
		{"mails", 20, func(i int) system.Request {
			return system.Request{Address: "192.0.2.3", Method: "POST", Target: "/users/password", Body: "user[email]=alice@example.com"}
		}, map[int]int{200: 5, 429: 15}},
		{"mails by one cookie again and again", 20, func(int) system.Request {
			return system.Request{Address: "192.0.2.3", Target: "/account/activation_email"}
		}, map[int]int{200: 5, 429: 15}},
		{"static files", 200, func(int) system.Request { return system.Request{Address: "192.0.2.2", Target: "/style.css"} }, map[int]int{200: 200}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := statusesOf(start(t), c.n, c.each)
			t.Logf("%v by status", got)
			for status, want := range c.want {
				if status == 429 && got[status] != want && got[status] != want-1 || status != 429 && got[status] != want && got[status] != want+1 {
					t.Errorf("got %v by status, want %v", got, c.want)
				}
			}
			check.That(t, len(got) == len(c.want), "got %v by status, want %v", got, c.want)
		})
	}
	// Whose code it was, Redmine does not say.
	a := start(t).Must(system.Request{Address: "192.0.2.4", Method: "POST", Target: "/account/twofa", Header: []string{"X-Forwarded-Proto", "https"}, Body: "twofa_code=1&username=alice&password=wrong"})
	check.Equal(t, len(a.Header["Set-Cookie"]), 1, "cookies after a code, want the application's alone")
}

// TestTheRecipeForMediaWikiKnowsHeavyPages in the spellings that MediaWiki takes, and no
// others. Nothing that the address says makes a page cheap.
func TestTheRecipeForMediaWikiKnowsHeavyPages(t *testing.T) {
	t.Parallel()
	s := system.StartTrial(t, "mediawiki.md", "/var/www/mediawiki", t.TempDir(), "php_fastcgi unix//run/php/php-fpm.sock", "respond ok")
	for i, test := range []struct {
		target string
		heavy  bool
		cost   float64 // of pages
	}{
		{"/index.php?title=Special:Export", true, 1},
		{"/index.php?title=Special:%45xport", true, 1},
		{"/index.php?title=Special:_Export", true, 1},
		{"/index.php?title=Special%20:Export", true, 1},
		{"/index.php?title=_special_:_%20export/Pump_1", true, 1},
		{"/index.php?title=Spe%e2%80%8ecial:Export", true, 1},
		{"/index.php/Special:%52ecentChanges", true, 1},
		{"/wiki/Special:Log", true, 1},
		{"/index.php?title=Special:ComparePages", true, 1},
		{"/index.php?title=Pump_1&%64iff=3", true, 1},
		{"/index.php?title=Pump_1&+diff=3", true, 1},
		{"/index.php?title=Pump_1&oldid=3", true, 1},
		{"/index.php?title=Pump_1&action=%68istory", true, 1},
		{"/index.php?title=Pump_1&action=view&action=history", true, 1},
		{"/api.php?action=feedrecentchanges", true, 1},
		{"/rest.php/v1/page/Pump_1/html", true, 1},
		{"/index.php?title=Pump_1", false, 1},
		{"/index.php/Pump_1", false, 1},
		{"/index.php?title=Especially:_a_log&action=edit&section=2", false, 1},
		{"/index.php?title=Special:UserLogin&returnto=Pump+1", false, 1},
		{"/load.php?lang=en&modules=ext.a%7Csite.styles&only=styles&skin=vector", false, 0.1},
		{"/rest.php/v1/search/title?q=pump&limit=10", false, 0.2},
		{"/api.php?action=opensearch&format=json&formatversion=2&search=pump%20x&namespace=0&limit=10", false, 0.2},
		{"/api.php?format=json&action=opensearch&search=pump", false, 0.2},
		{"/api.php?action=opensearch&action=query&generator=allpages", false, 1},
		{"/api.php?action=opensearch&search=x&%61ction=query", true, 1},
	} {
		address := system.NetworkAddress(i)
		s.Must(system.Request{Address: address, Target: test.target})
		system.Eventually(t, "a line in the log", func() bool { return len(s.Entries(address)) == 1 })
		check.Equal(t, costIn(s, "heavy", address) > 0, test.heavy, "%s: heavy", test.target)
		check.Equal(t, costIn(s, "pages", address), test.cost, "%s: the cost", test.target)
	}
	form := system.Request{Address: "203.0.113.9", Method: "POST", Target: "/api.php?action=opensearch&search=x", Body: "action=query&generator=allpages"}
	s.Must(form)
	system.Eventually(t, "a line in the log", func() bool { return len(s.Entries(form.Address)) == 1 })
	check.Equal(t, costIn(s, "pages", form.Address), 1, "a form: the cost")
}

// TestTheRecipesForWikisRefuseNoReadersOfMissingPages, such as talk pages and what nobody has
// written yet.
func TestTheRecipesForWikisRefuseNoReadersOfMissingPages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ recipe, root, upstream, target string }{
		{"mediawiki.md", "/var/www/mediawiki", "php_fastcgi unix//run/php/php-fpm.sock", "/index.php?title=Talk:Pump_"},
		{"rails.md", "/srv/app/public", "reverse_proxy localhost:3000", "/projects/museum/wiki/Pump_"},
	} {
		s := system.StartTrial(t, c.recipe, c.root, t.TempDir(), c.upstream, "respond 404")
		got := statusesOf(s, 40, func(i int) system.Request {
			return system.Request{Address: "203.0.113.9", Target: fmt.Sprint(c.target, i)}
		})
		check.That(t, got[404] == 40, "%s: got %v, want 40 of 404", c.recipe, got)
	}
}

// TestTheRecipeForRailsKnowsExports of Redmine by their name, by the parameter format, also in a
// form, and by the header Accept.
func TestTheRecipeForRailsKnowsExports(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(root, "manual.pdf"), []byte("%PDF"), 0o644))
	s := system.StartTrial(t, "rails.md", "/srv/app/public", root, "reverse_proxy localhost:3000", "respond ok")
	browser := []string{"Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}
	for i, test := range []struct {
		target string // and a body
		header []string
		cost   float64 // of exports and of formats
	}{
		{"/issues.pdf", nil, 2},
		{"/issues.pdf/", nil, 2},
		{"/issues.%70df?set_filter=1", nil, 2},
		{"/issues?format=pdf", browser, 2},
		{"/issues?%66ormat=%70df", nil, 2},
		{"/issues?format=html&format=pdf", nil, 2},
		{"/issues?+format=pdf", nil, 2},
		{"/issues", []string{"Accept", "application/pdf"}, 2},
		{"/issues", []string{"X-Requested-With", "XMLHttpRequest", "Content-Type", "application/pdf"}, 2}, // instead of Accept
		{"/issues", []string{"Accept", "text/html;q=0.1, Application/PDF"}, 2},
		{"/issues.csv", nil, 1},
		{"/issues?x=1;format=csv", nil, 2},
		{"/issues", []string{"Accept", "text/csv"}, 2},
		{"/issues", browser, 0},
		{"/issues?format=json", nil, 0},
		{"/issues?utf8=%E2%9C%93&set_filter=1&f%5B%5D=status_id&op%5Bstatus_id%5D=o&c%5B%5D=subject", browser, 0},
		{"/issues/pdf", browser, 0},
		{"/manual.pdf", browser, 0},
		{"/attachments/download/7/offer.pdf", browser, 0},
		{"/projects/museum/repository/main/revisions/1/raw/plans/pump.csv", browser, 0},
		{"/rails/active_storage/blobs/redirect/a--b/offer.pdf", browser, 0},
		{"/rails/active_storage/disk/a--b {}", []string{"Content-Type", "application/pdf"}, 0},
		{"/rails/active_storage/%2e%2e/%2e%2e/issues.pdf", nil, 2},
		{"/projects/repository/issues.pdf", nil, 2},
		{"/attachments/%2e%2e/issues.pdf", nil, 2},
		// Redmine finds project 1 by any line of its name.
		{"/projects/1%0a%2frepository%2fx/issues.pdf", nil, 2},
		{"/projects/1%2frepository%2f%0a1/issues.pdf", nil, 2},
		{"/issues _method=GET&format=pdf", nil, 2},
		{"/issues format=csv", nil, 2},
		{"/issues?format=json format=csv", nil, 2},
		{`/issues {"format":"csv"}`, []string{"Content-Type", "application/json"}, 2},
		{"/issues?format=json _method=GET", nil, 0},
		{"/uploads.js?filename=a.log&content_type= format=1", []string{"Content-Type", "application/octet-stream"}, 0},
	} {
		address := system.NetworkAddress(i)
		r := system.Request{Address: address, Header: slices.Clone(test.header)}
		r.Target, r.Body, _ = strings.Cut(test.target, " ")
		s.Must(r)
		system.Eventually(t, "a line in the log", func() bool { return len(s.Entries(address)) == 1 })
		check.Equal(t, costIn(s, "exports", address)+costIn(s, "formats", address), test.cost, "%s with %q: the cost", test.target, test.header)
	}
}
