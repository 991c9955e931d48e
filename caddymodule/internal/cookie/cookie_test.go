package cookie

import (
	"slices"
	"testing"
	"time"
)

var now = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func TestPatternsThatMatchAnyCookieAreInvalid(t *testing.T) {
	for pattern, want := range map[string]bool{
		"": false, "*": false, "**": false, "?": false, "?*": false, "[": false, "a[": false,
		"sid": true, "wordpress_logged_in_*": true, "*UserID": true, "__Host-*": true,
	} {
		if got := ValidPattern(pattern); got != want {
			t.Errorf("pattern %q: got %v, want %v", pattern, got, want)
		}
	}
}

func TestOfSeveralSetCookiesForOneNameTheLastCounts(t *testing.T) {
	got := slices.Collect(SetBy([]string{
		"sid=old; HttpOnly", "theme=dark", " sid = new ;path=/", "theme=; Max-Age=0", "lang=en; Max-Age=60",
	}, now))
	want := []Set{{"sid", "new", true}, {"theme", "", false}, {"lang", "en", true}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTheCookiesOfARequestAreReadAsTheyWereSent(t *testing.T) {
	var got []string
	for name, value := range SentBy([]string{` a=1; b="x y" ;; =nameless; c`, "a=2;d=e=f"}) {
		got = append(got, name+"|"+value)
	}
	if want := []string{"a|1", `b|"x y"`, "c|", "a|2", "d|e=f"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
