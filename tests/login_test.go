package tests

import (
	"fmt"
	"net/url"
	"testing"
)

// loginSite is a site with a login, and its answer to failed logins.
type loginSite struct {
	site
	path, user, password string // of the form
	refund               string // as refund takes it
	failed, succeeded    int
}

func loginSites(t *testing.T) []loginSite {
	t.Helper()
	return []loginSite{
		{phpSite(t), "/wp-login.php", "log", "pwd", "cookie wordpress_logged_in_*", 200, 302},    // like WordPress
		{rackSite(t), "/users/sign_in", "user[email]", "user[password]", "status 303", 422, 303}, // like Devise
	}
}

func (s *loginSite) login(t *testing.T, v *visitor, port int, user, password string) int {
	t.Helper()
	form := url.Values{s.user: {user}, s.password: {password}}
	return v.post(t, fmt.Sprintf("http://127.0.0.1:%d%s", port, s.path), urlencoded, form.Encode()).status
}

// start runs the site with a limit by address and one by account.
func (s *loginSite) start(t *testing.T, byAddress, byAccount int) (port int, c *caddy) {
	t.Helper()
	port = freePort(t)
	zone := `
		zone %s {
			match {
				path %s*
				method POST
			}
			%s
			limit %d 1/d
			refund %s
		}`
	c = startCaddy(t, config{sites: fmt.Sprintf("http://:%d {\n throttle {\n %s\n %s\n }\n %s\n}", port,
		fmt.Sprintf(zone, "login", s.path, "", byAddress, s.refund),
		fmt.Sprintf(zone, "account", s.path, "key field "+s.user, byAccount, s.refund),
		s.directives)})
	return port, c
}

func eachLogin(t *testing.T, f func(t *testing.T, s loginSite, protocol string)) {
	t.Helper()
	for _, s := range loginSites(t) {
		t.Run(s.name, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, protocol string) { f(t, s, protocol) })
		})
	}
}

// TestFailedLoginsAreLimitedAndSuccessfulOnesHardly: one address tries one account after the
// other. Ten right log-ins cost as much as one that failed.
func TestFailedLoginsAreLimitedAndSuccessfulOnesHardly(t *testing.T) {
	t.Parallel()
	const most = 5
	eachLogin(t, func(t *testing.T, s loginSite, protocol string) {
		port, c := s.start(t, most, 1000)
		v := newVisitor(t, protocol)
		for n := range 10 {
			if got := s.login(t, v, port, "owner", "right"); got != s.succeeded {
				t.Fatalf("login %d with the right password: got %d, want %d", n+1, got, s.succeeded)
			}
		}
		for n := range 10 {
			want := s.failed
			if n >= most-1 {
				want = 429
			}
			if got := s.login(t, v, port, fmt.Sprint("user", n), "wrong"); got != want {
				t.Errorf("guess %d: got %d, want %d", n+1, got, want)
			}
		}
		if got := s.login(t, v, port, "user", "right"); got != 429 {
			t.Errorf("the right password after so many guesses: got %d, want 429", got)
		}
		if got := s.login(t, newVisitor(t, protocol), port, "owner", "right"); got != s.succeeded {
			t.Errorf("another address: got %d, want %d", got, s.succeeded)
		}
		if got := c.metric(t, "caddy_throttle_unsettled_total"); got != 0 {
			t.Errorf("got %v unsettled, want none", got)
		}
	})
}

// TestGuessesOnOneAccountFromAHundredAddressesAreLimited: each address guesses
// once, and spells the account in its own way.
func TestGuessesOnOneAccountFromAHundredAddressesAreLimited(t *testing.T) {
	t.Parallel()
	const most, addresses = 10, 100
	eachLogin(t, func(t *testing.T, s loginSite, protocol string) {
		port, _ := s.start(t, 1000, most)
		spellings := []string{"admin@example.com", "Admin@Example.com", " admin@example.com", "ADMIN@EXAMPLE.COM "}
		statuses := make(map[int]int)
		for n := range addresses {
			v := newVisitor(t, protocol)
			if got := s.login(t, v, port, fmt.Sprint("user", n), "right"); got != s.succeeded {
				t.Fatalf("another account: got %d, want %d", got, s.succeeded)
			}
			statuses[s.login(t, v, port, spellings[n%len(spellings)], "wrong")]++
		}
		if statuses[s.failed] != most || statuses[429] != addresses-most {
			t.Errorf("got %v by status, want %d of %d and %d of 429", statuses, most, s.failed, addresses-most)
		}
	})
}
