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
