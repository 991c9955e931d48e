package cookie

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

var now = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func TestPatternsThatMatchAnyCookieAreInvalid(t *testing.T) {
	for pattern, want := range map[string]bool{
		"": false, "*": false, "**": false, "?": false, "?*": false, "[": false, "a[": false,
		"sid": true, "wordpress_logged_in_*": true, "*UserID": true, "__Host-*": true,
	} {
		check.Equal(t, ValidPattern(pattern), want, "pattern %q", pattern)
	}
}

func TestOfSeveralSetCookiesForOneNameTheLastCounts(t *testing.T) {
	got := slices.Collect(SetBy([]string{
		"sid=old; HttpOnly", "theme=dark", " sid = new ;path=/", "theme=; Max-Age=0", "lang=en; Max-Age=60",
	}, now))
	want := []Set{{"sid", "new", true}, {"theme", "", false}, {"lang", "en", true}}
	check.Slices(t, got, want)
}

func TestTheCookiesOfARequestAreReadAsTheyWereSent(t *testing.T) {
	var got []string
	for name, value := range SentBy([]string{` a=1; b="x y" ;; =nameless; c`, "a=2;d=e=f"}) {
		got = append(got, name+"|"+value)
	}
	check.Slices(t, got, []string{"a|1", `b|"x y"`, "c|", "a|2", "d|e=f"})
}

func TestOnlyACookieThatBrowsersKeepIsASuccess(t *testing.T) {
	for _, test := range []struct {
		name  string
		lines []string
		want  bool
	}{
		{"no cookie", nil, false},
		{"WordPress lets somebody in", []string{
			"wordpress_test_cookie=WP%20Cookie%20check; path=/; HttpOnly",
			"wordpress_sec_0f=a%7C1; expires=Tue, 16-Jun-2026 12:00:00 GMT; Max-Age=1252800; path=/wp-admin; secure; HttpOnly",
			"wordpress_logged_in_0f=a%7C1; path=/; secure; HttpOnly",
		}, true},
		{"and remembers them", []string{"wordpress_logged_in_0f=a%7C1; expires=Tue, 16 Jun 2026 12:00:00 GMT; Max-Age=1252800; path=/; secure; HttpOnly"}, true},
		{"WordPress after a wrong guess", []string{"wordpress_test_cookie=WP%20Cookie%20check; path=/"}, false},
		{"a wrong guess with reauth=1, or a log-out", []string{
			"wordpress_logged_in_0f=%20; expires=Sun, 01-Jun-2025 12:00:00 GMT; Max-Age=0; path=/",
			"wordpress_logged_in_0f=%20; expires=Sun, 01-Jun-2025 12:00:00 GMT; Max-Age=0; path=/",
		}, false},
		{"blank", []string{"wordpress_logged_in_0f=; path=/"}, false},
		{"without a value", []string{"wordpress_logged_in_0f"}, false},
		{"white space", []string{"wordpress_logged_in_0f= \t; path=/"}, false},
		{"encoded white space", []string{"wordpress_logged_in_0f=+%20%09; path=/"}, false},
		{"empty quotes", []string{`wordpress_logged_in_0f=""; path=/`}, false},
		{"Max-Age of 0", []string{"wordpress_logged_in_0f=a; max-age=0"}, false},
		{"negative Max-Age", []string{"wordpress_logged_in_0f=a; Max-Age=-1"}, false},
		{"Max-Age with blanks", []string{"wordpress_logged_in_0f=a; Max-Age = 0"}, false},
		{"Expires with blanks", []string{"wordpress_logged_in_0f=a; expires = Thu, 01 Jan 1970 00:00:00 GMT"}, false},
		{"Max-Age that is too large", []string{"wordpress_logged_in_0f=a; Max-Age=-99999999999999999999"}, false},
		{"Max-Age that is no number", []string{"wordpress_logged_in_0f=a; Max-Age=soon"}, false},
		{"past its Expires", []string{"wordpress_logged_in_0f=a; Expires=Mon, 01 Jun 2026 11:59:59 GMT"}, false},
		{"past its Expires, whatever Max-Age says", []string{"wordpress_logged_in_0f=a; Max-Age=60; Expires=Thu, 01 Jan 1970 00:00:00 GMT"}, false},
		{"Expires as in RFC 850, which nobody sends any more", []string{"wordpress_logged_in_0f=a; Expires=Monday, 01-Jun-26 12:00:01 GMT"}, false},
		{"Expires that is no date", []string{"wordpress_logged_in_0f=a; Expires=0"}, false},
		{"set, then deleted", []string{"wordpress_logged_in_0f=a", "wordpress_logged_in_0f=; Max-Age=0"}, false},
		{"deleted, then set", []string{"wordpress_logged_in_0f=; Max-Age=0", "wordpress_logged_in_0f=a"}, true},
		{"set, then deleted with blanks", []string{"wordpress_logged_in_0f=a", " wordpress_logged_in_0f = ; path=/"}, false},
		{"one deleted, another set", []string{"wordpress_logged_in_0f=; Max-Age=0", "wordpress_logged_in_1f=a"}, true},
		{"a name in other letters", []string{"WordPress_logged_in_0f=a"}, false},
		{"the name in a value", []string{"x=wordpress_logged_in_0f=a"}, false},
		{"a value in JSON", []string{`wordpress_logged_in_0f={"a":"b\c"}; path=/`}, true},
		{"our own cookie", []string{OwnPrefix + "device-login=a"}, false},
	} {
		for _, pattern := range []string{"wordpress_logged_in_*", "wordpress_?ogged*"} {
			check.Equal(t, Sets(pattern, test.lines, now), test.want, "%s, with pattern %s", test.name, pattern)
		}
	}
}

func TestOurOwnCookiesAreNoLogIn(t *testing.T) {
	for _, name := range []string{OwnPrefix + "device-login", "__Host-throttle-pass-php"} {
		check.That(t, !Sets("__Host-*", []string{name + "=a; path=/"}, now), "got %s taken for a login", name)
	}
}

func FuzzSets(f *testing.F) {
	f.Add("sid=a; Max-Age=1; Expires=Mon, 01 Jun 2026 12:00:01 GMT", "sid=; Max-Age=0")
	f.Add("sid", "=;=;")
	f.Fuzz(func(t *testing.T, a, b string) {
		check.That(t, !Sets("sid", []string{a, b, "sid=; Max-Age=0"}, now), "got a success from %q and %q, and a deletion after them", a, b)
	})
}

// TestOwnThatDoesNotLast: less than a second is no lifetime, and without one a browser would keep
// the cookie for as long as it is open.
func TestOwnThatDoesNotLast(t *testing.T) {
	for _, lasts := range []time.Duration{-time.Hour, -time.Millisecond, 0, time.Second - 1} {
		check.Contains(t, Own("a", "", lasts), "Max-Age=0", "%v", lasts)
	}
}
