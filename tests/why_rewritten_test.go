package tests

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// Rules see the address as sent and the one that a rewrite makes, and so does the command
// that says why somebody was refused: whichever of them the client used, the log-in is named,
// and what a redirect answers is charged nowhere.
func TestWhyFollowsRewrites(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	c := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	@subfolder path_regexp subfolder ^/site[0-9]+(/.*\.php)$
	rewrite @subfolder {re.subfolder.1}
	rewrite /enter /wp-login.php
	redir /old /new
	throttle {
		zone login {
			match path /wp-login.php*
			limit 3 1/d
		}
		zone moved {
			match path /old
			limit 3 1/d
		}
	}
	respond ok
}`, port)})
	url := func(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", port, path) }
	for _, path := range []string{"/wp-login.php", "/site1/wp-login.php", "/enter"} {
		wantStatus(t, url(path), 200)
	}
	wantStatus(t, url("/site2/wp-login.php"), 429)
	wantStatus(t, url("/site2/about.php"), 200)
	wantStatus(t, url("/about"), 200)
	if out := c.throttle("why", "127.0.0.1"); !regexp.MustCompile(`login .* 100%`).MatchString(out) || strings.Contains(out, "moved") {
		t.Errorf("why: got\n%s\nwant the bucket of login full, and no word of moved, whose is empty", out)
	}
}
