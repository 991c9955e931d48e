package applications

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// recipeCode returns the first code of a language in the section of a recipe about
// swarms.
func recipeCode(t *testing.T, recipe, language string) string {
	t.Helper()
	return system.SectionCode(t, "recipes/"+recipe, "## Under a swarm", language)
}

// A session is a browser's: it keeps cookies.
type session struct {
	*system.Trial
	address string
	cookies map[string]string
}

func openSession(s *system.Trial, address, cookies string) session {
	b := session{s, address, make(map[string]string)}
	for pair := range strings.SplitSeq(cookies, "; ") {
		name, value, _ := strings.Cut(pair, "=")
		b.cookies[name] = value
	}
	return b
}

// opens sends a request, and keeps the cookies of the answer.
func (b session) opens(method, target, body string) system.Answer {
	b.T.Helper()
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(b.cookies)) {
		pairs = append(pairs, name+"="+b.cookies[name])
	}
	a := b.Must(system.Request{Address: b.address, Method: method, Target: target, Body: body, Header: system.Opens(strings.Join(pairs, "; "))})
	b.keep(a)
	told := a.Header["X-Throttle-User"]
	check.That(b.T, len(told) == 0, "%s %s: got the user's ID %q in the answer", method, target, told)
	return a
}

// keep keeps the cookies of an answer.
func (b session) keep(a system.Answer) {
	for _, line := range a.Header["Set-Cookie"] {
		pair, attributes, _ := strings.Cut(line, ";")
		name, value, _ := strings.Cut(pair, "=")
		if b.cookies[name] = value; strings.Contains(strings.ToLower(attributes), "max-age=0") {
			delete(b.cookies, name)
		}
	}
}

// wantMember checks that a page is served to a member, and to nobody else as such.
func (b session) wantMember(zone, target string) {
	b.T.Helper()
	members := func() float64 {
		return b.Metric(b.T, "caddy_throttle_requests_total", `zone="`+zone+`"`, `rank="member"`)
	}
	before := members()
	a := b.opens("GET", target, "")
	check.Assume(b.T, a.Status == 200, "got %d for %s, want 200", a.Status, target)
	if got := members(); got != before+1 {
		b.T.Errorf("got %v requests of members, want %v", got, before+1)
	}
	openSession(b.Trial, "203.0.113.99", "a=b").opens("GET", "/", "")
	copied := openSession(b.Trial, "203.0.113.98", "__Host-throttle-pass-"+zone+"="+b.cookies["__Host-throttle-pass-"+zone])
	copied.opens("GET", "/", "")
	if got := members(); got != before+1 {
		b.T.Errorf("got %v requests of members, want no others", got)
	}
	if got := b.Metric(b.T, "caddy_throttle_passes_total", `event="unbound"`); got != 1 {
		b.T.Errorf("got %v passes without a login, want 1", got)
	}
}

// wantNoMemberAfter checks that a client is no member any more after a log-out, although
// its pass is still good.
func (b session) wantNoMemberAfter(zone string, logOut func() system.Answer) {
	b.T.Helper()
	old := b.cookies["__Host-throttle-pass-"+zone]
	if a := logOut(); a.Status/100 != 2 && a.Status/100 != 3 {
		b.T.Fatalf("got %d, want a log-out", a.Status)
	}
	b.cookies["__Host-throttle-pass-"+zone] = old
	members := func() float64 {
		return b.Metric(b.T, "caddy_throttle_requests_total", `zone="`+zone+`"`, `rank="member"`)
	}
	before := members()
	b.opens("GET", "/", "")
	got := members()
	check.That(b.T, got == before, "got %v requests of members after the log-out, want the %v of before", got, before)
}

// beforeWorkers puts directives of a recipe before its own limit of workers.
func beforeWorkers(directives string) []string {
	const workers = "\tin_flight workers 2 client_ip {\n"
	return []string{workers, directives + workers}
}

func recipeOfWordPressKnowsWhoHasLoggedIn(t *testing.T) {
	s := startWordPress(t, beforeWorkers(recipeCode(t, "wordpress.md", "caddyfile"))...)
	author := openSession(s, "203.0.113.1", "wordpress_test_cookie=WP%20Cookie%20check")
	author.opens("GET", "/wp-login.php", "")
	check.Need(t, author.opens("POST", "/wp-login.php", "log=author&pwd=right&testcookie=1").Status, 302, "want a login")
	author.wantMember("php", "/wp-admin/profile.php")
}

func TestTheRecipeOfMediaWikiKnowsWhoHasLoggedIn(t *testing.T) {
	s := startMediaWiki(t, beforeWorkers(recipeCode(t, "mediawiki.md", "caddyfile"))...)
	token := askLoginToken(s)
	login := wikiLogins["query title"].try(token, "203.0.113.1", "Bob", mediaWikiPassword)
	bob := openSession(s, "203.0.113.1", token.cookie)
	check.Need(t, bob.opens("POST", login.Target, login.Body).Status, 302, "want a login")
	bob.opens("GET", "/index.php?title=Special:Version", "")
	bob.wantMember("php", "/index.php?title=Special:Version")
}

func TestTheRecipeOfRedmineKnowsWhoHasLoggedIn(t *testing.T) {
	share := strings.Replace(recipeCode(t, "rails.md", "caddyfile"), "_*_session", "Redmine", 1) // as Debian calls it
	s := startRedmine(t, beforeWorkers(share)...)
	form, cookies := redmineForm(s, "203.0.113.1")
	form.Set("password", redminePassword)
	alice := openSession(s, "203.0.113.1", cookies)
	check.Need(t, alice.opens("POST", "/login", form.Encode()).Status, 302, "want a login")
	alice.wantMember("rails", "/my/account")
}
