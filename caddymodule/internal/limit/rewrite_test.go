package limit_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// guesses sends n wrong passwords and returns how many were let through.
func guesses(s *servertest.Site, n int, target string) (passed int) {
	for range n {
		if s.From(servertest.Someone).Send(http.MethodPost, target).Code == http.StatusOK {
			passed++
		}
	}
	return passed
}

// The rewrites are those of a WordPress multisite in subfolders and of one front controller.
const multisite = `
	@scripts path_regexp scripts ^/[_0-9a-zA-Z-]+(/+[^/]*\.php.*)$
	rewrite @scripts {re.scripts.1}
	rewrite /login /wp-login.php
	try_files {path} /index.php?{query}
`

// Each matcher is asked with the address as sent and as rewritten, and holds if it holds for
// either: what is sent to one of the two targets would be hidden if only one were asked.
func TestEachMatcherOfAZoneSeesBothAddresses(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"sent.php", "made.php"} {
		check.OK(t, os.WriteFile(filepath.Join(root, name), nil, 0o600))
	}
	const rewrites = "rewrite /sent.php /other?b=2\nrewrite /hidden /made.php?made=1\nrewrite /both.php /both2.php?c=3\n"
	for _, test := range []struct {
		matchers string
		counted  []string // targets
		free     []string
	}{
		{"match path /sent.php* /made.php*", []string{"/sent.php", "/hidden"}, []string{"/both.php", "/x"}},
		{"match path_regexp ^/+(sent|made)\\.php", []string{"/sent.php", "//sent.php/x", "/hidden"}, []string{"/both.php", "/x"}},
		{"match vars_regexp {uri} ^/+(sent|made)", []string{"/sent.php", "/hidden"}, []string{"/both.php"}},
		{"match query sent=1\nmatch query made=1", []string{"/sent.php?sent=1", "/hidden"}, []string{"/sent.php", "/both.php"}},
		{"match {\nquery made=1\nmethod GET\n}", []string{"/hidden"}, []string{"/sent.php", "/x"}},
		{"match {\nfile {\nroot " + root + "\ntry_files {path}\n}\n}", []string{"/sent.php", "/hidden"}, []string{"/both.php", "/x.php"}},
		{"match vars {http.request.uri.path} /sent.php /made.php", []string{"/sent.php", "/hidden"}, []string{"/both.php"}},
		{"match expression `{query.made} == '1' || {path} == '/sent.php'`", []string{"/sent.php", "/hidden"}, []string{"/both.php"}},
		{"match header X-None *\nmatch path /made.php*", []string{"/hidden", "/made.php"}, []string{"/sent.php"}},
		{"match {\nnot {\npath /both*\n}\n}", []string{"/sent.php", "/hidden", "/x"}, []string{"/both.php"}},
		{"match {\nnot {\nheader X-None *\n}\npath /made.php*\n}", []string{"/hidden"}, []string{"/sent.php"}},
	} {
		s := servertest.Run(t, "http:// {\n"+rewrites+"throttle {\nzone one {\nkey {http.request.orig_uri.path}\n"+test.matchers+"\nlimit 1 1/h\n}\n}\nrespond {uri}\n}")
		for _, target := range test.counted {
			check.Equal(t, s.From(servertest.Someone).Statuses(3, target)[http.StatusOK], 1, "%s, %s: of 3 through", test.matchers, target)
		}
		for _, target := range test.free {
			check.Equal(t, s.From(servertest.Someone).Statuses(3, target)[http.StatusOK], 3, "%s, %s: of 3 through, want all", test.matchers, target)
		}
		s.Stop()
	}
}

// The handlers behind throttle find the request as it was, and what the matchers have set.
func TestAskingMatchersWithBothAddressesLeavesTheRequestAlone(t *testing.T) {
	for _, test := range []struct{ matcher, say, want string }{
		{"path_regexp n ^/sent/([0-9])", "{re.n.1} {uri} {http.request.orig_uri.path}", "4 /made/6?b=2 /sent/4"},
		{"path_regexp n ^/made/([0-9])", "{re.n.1} {uri} {http.request.orig_uri.path}", "6 /made/6?b=2 /sent/4"},
		{"path_regexp n ^/(?:sent|made)/([0-9])", "{re.n.1} {query} {path}", "4 b=2 /made/6"},
		{"path /none", "{uri}", "/made/6?b=2"},
		{"expression `{path}.startsWith('/sent/')`", "{uri} {query.b}", "/made/6?b=2 2"},
	} {
		s := servertest.Run(t, "http:// {\nrewrite /sent/4 /made/6?b=2\nthrottle {\nzone one {\nmatch "+test.matcher+"\nlimit 9 1/h\n}\n}\nrespond \""+test.say+"\"\n}")
		check.Equal(t, s.From(servertest.Someone).Get("/sent/4?a=1").Body.String(), test.want, "%s", test.matcher)
		s.Stop()
	}
}

func TestADirectivesMatcherSeesBothAddresses(t *testing.T) {
	const zone = "throttle /wp-login.php* login 5 5/d\nrespond ok\n"
	for target, site := range map[string]string{
		"/wp-login.php": multisite + zone, "/site1/wp-login.php": multisite + zone, "/site1//wp-login.php": multisite + zone, "/login": multisite + zone,
		"/path/wp-login.php": "handle_path /path/* {\n" + zone + "}", "/blog/wp-login.php": "handle /blog/* {\nuri strip_prefix /blog\n" + zone + "}",
	} {
		s := servertest.Run(t, "http:// {\n"+site+"\n}")
		check.Equal(t, guesses(s, 12, target), 5, "%s: of 12 guesses through", target)
		s.Stop()
	}
}

// A front controller reads the address as sent, so a rule about that holds behind it.
func TestAFrontControllerReadsTheAddressAsSent(t *testing.T) {
	root := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(root, "index.php"), nil, 0o600)) // or try_files rewrites nothing
	s := servertest.Run(t, "http:// {\nroot "+root+"\n"+multisite+"\nthrottle {\nzone login {\nmatch path /account/login*\nlimit 5 5/h\n}\nzone scripts {\nmatch path /index.php*\nlimit 1 1/h\n}\n}\nrespond ok\n}")
	check.Equal(t, guesses(s, 12, "/account/login"), 5, "of 12 guesses through")
	s.From(servertest.Someone).WantStatuses("/page", map[int]int{http.StatusOK: 3}) // which no rule matches
	check.Equal(t, guesses(s, 12, "/index.php"), 1, "of 12 for the script itself through")
}

// What frees a request must hold for both of its addresses.
func TestARewriteMakesNothingFree(t *testing.T) {
	for _, test := range []struct {
		name, rewrite, exempt, target string
		free                          bool
	}{
		{"as sent only", "rewrite /free /wp-login.php", "path /free", "/free", false},
		{"as rewritten only", "rewrite /wp-login.php /free", "path /free", "/wp-login.php", false},
		{"both", "uri strip_prefix /site1", "path /free /site1/free", "/site1/free", true},
		{"both, by different sets", "rewrite /free /cheap", "path /free\n}\nexempt {\npath /cheap", "/free", false},
		{"one address", "", "path /free", "/free", true},
		{"behind a front controller", "rewrite * /index.php", "path /free", "/free", true},
		{"not, of one of them", "rewrite /x/a /b", "not path /x/*", "/x/a", false},
		{"not, of the other", "rewrite /a /x/b", "not path /x/*", "/a", false},
		{"an expression", "rewrite /free /b", "expression `{path} == '/free'`", "/free", false},
		{"a query as sent", "rewrite /a /b?c=3", "query free=1", "/a?free=1", false},
		{"a query as rewritten", "rewrite /a /b?free=1", "query free=1", "/a", false},
		{"a query of both", "rewrite /a /b?{query}", "query free=1", "/a?free=1", true},
		{"a variable", "rewrite /free /b", "vars {http.request.uri.path} /free", "/free", false},
		{"a path and a header", "rewrite /free /b", "path /free\nheader X-Free *", "/free", false},
		{"ored sets of which one holds for both", "rewrite /free /b", "path /free\n}\nexempt {\nheader X-Free *", "/free", true},
		{"a regular expression for both", "rewrite /x/free /y/free", "path_regexp ^/[xy]/free$", "/x/free", true},
		{"a header, which has no address", "rewrite /a /b", "header X-Free *", "/a", true},
	} {
		s := servertest.Run(t, "http:// {\n"+test.rewrite+"\nthrottle {\nzone all {\nexempt {\n"+test.exempt+"\n}\nlimit 1 1/h\n}\n}\nrespond ok\n}")
		passed := s.From(servertest.Someone).With("X-Free", "1").Statuses(3, test.target)[http.StatusOK]
		check.That(t, (passed == 3) == test.free, "%s: got %d of 3 through, want it free: %v", test.name, passed, test.free)
		s.Stop()
	}
}

// Upstreams get an address as it was sent, and may read one that Caddy's matchers do not see.
func TestNoSpellingHidesARequestOrMakesItFree(t *testing.T) {
	many := strings.Repeat("&", 10_000)
	for options, targets := range map[string][]string{
		"match path /login*":                {"/login.%2F%2e%2E%2fx", "/login/x/../../../x", "//x/login", "//x/y/..%2Flogin"},
		"match path_regexp ^/+login":        {"//x/login"},
		"match query rest_route=*":          {"/?rest_route=/x&;", "/?rest_route=/x;y", "/?a;rest_route=", "/?%72est_route=%&%%zz=", "/?rest_route=" + many, "/?" + many + "rest_route="},
		"match {\npath /a*\nquery b=1\n}":   {"/x/../a?b=1&;", "/a/../x?b=1&;", "//x/a/../../y?b=1&%"},
		"match expression query({'b':'*'})": {"/?b=1&;"},
		"exempt path /healthz":              {"/search/..%2Fhealthz", "/search/x/../../healthz", "//healthz/../healthz"},
		"exempt not query s=*":              {"/?s=x&;", "/?s=x" + many},
		"cost 0.1 {\npath /free\n}":         {"/x/../free"},
	} {
		s := servertest.Run(t, "http:// {\nthrottle {\nzone all {\nlimit 1 1/d\n"+options+"\n}\n}\nrespond ok\n}")
		for i, target := range targets {
			from := s.From(fmt.Sprintf("203.0.113.%d:1", i+1))
			check.Equal(t, from.Statuses(3, target)[http.StatusOK], 1, "%s, %.60s: of 3 through", options, target)
		}
		s.Stop()
	}
}

func TestTheDearerOfTwoAddressesIsTheCost(t *testing.T) {
	for _, test := range []struct{ rewrite, costs, target, want string }{
		{"rewrite /assets/x /search", "cost 0.1 {\npath /assets/*\n}\ncost 5 {\npath /search*\n}", "/assets/x", "5"},
		{"rewrite /search /assets/x", "cost 0.1 {\npath /assets/*\n}\ncost 5 {\npath /search*\n}", "/search", "5"},
		{"rewrite /assets/x /page", "cost 0.1 {\npath /assets/*\n}", "/assets/x", "1"},
		{"rewrite * /index.php", "cost 0.1 {\npath /assets/*\n}\ncost 7 {\npath /index.php*\n}", "/assets/x", "0.1"},
		{"uri strip_prefix /x", "cost {re.n.1} {\npath_regexp n ^/x/([0-9])\n}", "/x/4", "4"},
		{"rewrite /a/3 /b/6", "cost {re.n.1} {\npath_regexp n ^/[ab]/([0-9])\n}", "/a/3", "6"},
	} {
		s := servertest.Run(t, "http:// {\n"+test.rewrite+"\nthrottle {\nzone all {\nlimit 100 1/h\n"+test.costs+"\n}\n}\nrespond {http.throttle.cost}\n}")
		check.Equal(t, s.From(servertest.Someone).Get(test.target).Body.String(), test.want, "%s, %s: a cost", test.rewrite, test.target)
		s.Stop()
	}
}

func TestARouteIsNamedByTheAddressAsSentFirst(t *testing.T) {
	s := servertest.Run(t, "http:// {\nrewrite /a /b\nrewrite /x /b\nthrottle {\nzone all {\nkey route\nroute second /b\nroute first /a\nlimit 100 1/h\n}\n}\nrespond {http.throttle.key}\n}")
	for target, want := range map[string]string{"/a": "first", "/x": "second", "/b": "second", "/c": "other"} {
		check.Equal(t, s.From(servertest.Someone).Get(target).Body.String(), want, "%s: the route", target)
	}
}

// Files are looked for under the address that the file server will see.
func TestStaticFilesAreThoseOfTheAddressAsRewritten(t *testing.T) {
	root := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(root, "style.css"), nil, 0o600))
	s := servertest.Run(t, "http:// {\nroot * "+root+"\nuri strip_prefix /site1\nrewrite /style.css/x /page\nthrottle {\nzone all {\nexempt static_files\nlimit 1 1/h\n}\n}\nrespond ok\n}")
	check.Equal(t, s.From(servertest.Someone).Statuses(3, "/site1/style.css")[http.StatusOK], 3, "of 3 for a file, want all")
	check.Equal(t, s.From(servertest.Someone).Statuses(3, "/style.css/x")[http.StatusOK], 1, "of 3 through")
}

// What redir answers is not charged, and logins by HTTP Basic are seen before they are checked.
func TestThrottleStandsAfterRewritesAndBeforePasswords(t *testing.T) {
	s := servertest.Run(t, "http:// {\nredir /old /new\nbasic_auth /private {\nbob $2a$04$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n}\nthrottle all 2 1/h\nrespond ok\n}")
	s.From(servertest.Someone).WantStatuses("/old", map[int]int{http.StatusFound: 5})
	s.From(servertest.Someone).WantStatuses("/private", map[int]int{http.StatusUnauthorized: 2, http.StatusTooManyRequests: 2})
}
