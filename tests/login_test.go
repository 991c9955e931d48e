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
