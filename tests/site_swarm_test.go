package tests

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// recipeCode returns the first code of a language in the section of a recipe about
// swarms.
func recipeCode(t *testing.T, recipe, language string) string {
	t.Helper()
	return sectionCode(t, "recipes/"+recipe, "## Under a swarm", language)
}

// sectionCode returns the first code of a language between a heading of a page in docs and
// the next heading.
func sectionCode(t *testing.T, page, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut("\n"+string(text), "\n"+heading+"\n")
	if next := regexp.MustCompile("(?m)^##+ ").FindStringIndex(section); next != nil {
		section = section[:next[0]]
	}
	found := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$").FindStringSubmatch(section)
	if found == nil {
		t.Fatalf("got no %s below %q in %s, want some", language, heading, page)
	}
	return found[1]
}

// startSection runs the first Caddyfile below a heading, as startTrial runs that of a
// recipe.
func startSection(t *testing.T, page, heading string, changes ...string) *trial {
	t.Helper()
	file := sectionCode(t, page, heading, "caddyfile")
	if !strings.HasPrefix(file, "{") {
		file = "{\n}\n" + file
	}
	return runTrial(t, page, file, changes...)
}

// A session is a browser's: it keeps cookies.
type session struct {
	*trial
	address string
	cookies map[string]string
}

func (s *trial) session(address, cookies string) session {
	b := session{s, address, make(map[string]string)}
	for pair := range strings.SplitSeq(cookies, "; ") {
		name, value, _ := strings.Cut(pair, "=")
		b.cookies[name] = value
	}
	return b
}

// opens sends a request, and keeps the cookies of the answer.
func (b session) opens(method, target, body string) answer {
	b.t.Helper()
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(b.cookies)) {
		pairs = append(pairs, name+"="+b.cookies[name])
	}
	a := b.must(request{address: b.address, method: method, target: target, body: body, header: opens(strings.Join(pairs, "; "))})
	b.keep(a)
	if told := a.header["X-Throttle-User"]; len(told) > 0 {
		b.t.Errorf("%s %s: got the user's ID %q in the answer", method, target, told)
	}
	return a
}

// keep keeps the cookies of an answer.
func (b session) keep(a answer) {
	for _, line := range a.header["Set-Cookie"] {
		pair, attributes, _ := strings.Cut(line, ";")
		name, value, _ := strings.Cut(pair, "=")
		if b.cookies[name] = value; strings.Contains(strings.ToLower(attributes), "max-age=0") {
			delete(b.cookies, name)
		}
	}
}

// wantMember checks that a page is served to a member, and to nobody else as such.
func (b session) wantMember(zone, target string) {
	b.t.Helper()
	members := func() float64 {
		return b.metric(b.t, "caddy_throttle_requests_total", `zone="`+zone+`"`, `rank="member"`)
	}
	before := members()
	if a := b.opens("GET", target, ""); a.status != 200 {
		b.t.Fatalf("got %d for %s, want 200", a.status, target)
	}
	if got := members(); got != before+1 {
		b.t.Errorf("got %v requests of members, want %v", got, before+1)
	}
	b.session("203.0.113.99", "a=b").opens("GET", "/", "")
	copied := b.session("203.0.113.98", "__Host-throttle-"+zone+"="+b.cookies["__Host-throttle-"+zone])
	copied.opens("GET", "/", "")
	if got := members(); got != before+1 {
		b.t.Errorf("got %v requests of members, want no others", got)
	}
	if got := b.metric(b.t, "caddy_throttle_passes_total", `event="unbound"`); got != 1 {
		b.t.Errorf("got %v passes without a log-in, want 1", got)
	}
}

// wantNoMemberAfter checks that a client is no member any more after a log-out, although
// its pass is still good.
func (b session) wantNoMemberAfter(zone string, logOut func() answer) {
	b.t.Helper()
	old := b.cookies["__Host-throttle-"+zone]
	if a := logOut(); a.status/100 != 2 && a.status/100 != 3 {
		b.t.Fatalf("got %d, want a log-out", a.status)
	}
	b.cookies["__Host-throttle-"+zone] = old
	members := func() float64 {
		return b.metric(b.t, "caddy_throttle_requests_total", `zone="`+zone+`"`, `rank="member"`)
	}
	before := members()
	b.opens("GET", "/", "")
	if got := members(); got != before {
		b.t.Errorf("got %v requests of members after the log-out, want the %v of before", got, before)
	}
}

// beforeWorkers puts directives of a recipe before its own limit of workers.
func beforeWorkers(directives string) []string {
	const workers = "\tin_flight workers 2 client_ip {\n"
	return []string{workers, directives + workers}
}

func recipeOfWordPressKnowsWhoHasLoggedIn(t *testing.T) {
	s := startWordPress(t, beforeWorkers(recipeCode(t, "wordpress.md", "caddyfile"))...)
	author := s.session("203.0.113.1", "wordpress_test_cookie=WP%20Cookie%20check")
	author.opens("GET", "/wp-login.php", "")
	if a := author.opens("POST", "/wp-login.php", "log=author&pwd=right&testcookie=1"); a.status != 302 {
		t.Fatalf("got %d, want a log-in", a.status)
	}
	author.wantMember("php", "/wp-admin/profile.php")
}

func TestTheRecipeOfMediaWikiKnowsWhoHasLoggedIn(t *testing.T) {
	s := startMediaWiki(t, beforeWorkers(recipeCode(t, "mediawiki.md", "caddyfile"))...)
	token := s.loginToken()
	login := wikiLogins["query title"].try(token, "203.0.113.1", "Bob", mediaWikiPassword)
	bob := s.session("203.0.113.1", token.cookie)
	if a := bob.opens("POST", login.target, login.body); a.status != 302 {
		t.Fatalf("got %d, want a log-in", a.status)
	}
	bob.opens("GET", "/index.php?title=Special:Version", "")
	bob.wantMember("php", "/index.php?title=Special:Version")
}

func TestTheRecipeOfRedmineKnowsWhoHasLoggedIn(t *testing.T) {
	share := strings.Replace(recipeCode(t, "rails.md", "caddyfile"), "_*_session", "Redmine", 1) // as Debian calls it
	s := startRedmine(t, beforeWorkers(share)...)
	form, cookies := s.redmineForm("203.0.113.1")
	form.Set("password", redminePassword)
	alice := s.session("203.0.113.1", cookies)
	if a := alice.opens("POST", "/login", form.Encode()); a.status != 302 {
		t.Fatalf("got %d, want a log-in", a.status)
	}
	alice.wantMember("rails", "/my/account")
}
