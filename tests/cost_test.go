package tests

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// post sends a body as a form or as JSON would be sent.
func (v *visitor) post(t *testing.T, url, contentType, body string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	a, err := v.do(req)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	return a
}

const form = "application/x-www-form-urlencoded"

// rows is a JSON body of n rows.
func rows(n int) string {
	return `{"rows":[` + strings.TrimSuffix(strings.Repeat(`{"sku":"A-1","n":3},`, n), ",") + "]}"
}

func TestABatchCostsAsMuchAsItsRows(t *testing.T) {
	rack := rackSite(t)
	eachProtocol(t, func(t *testing.T, protocol string) {
		port := freePort(t)
		startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone batch {
			capacity 1500
			leak 1/d
			cost body_items rows
		}
	}
	%s
}`, port, rack.directives)})
		v := newVisitor(t, protocol)
		to := fmt.Sprintf("http://127.0.0.1:%d/digest", port)
		for _, test := range []struct{ rows, status int }{{1000, 200}, {1000, 429}, {499, 200}, {2, 429}, {1, 200}, {1, 429}} {
			body := rows(test.rows)
			a := v.post(t, to, "application/json", body)
			if a.status != test.status {
				t.Fatalf("%d rows: got %d, want %d", test.rows, a.status, test.status)
			}
			if want := fmt.Sprintf("%x", sha256.Sum256([]byte(body))); a.status == 200 && a.body != want {
				t.Errorf("%d rows: the site got a body of digest %q, want %q", test.rows, a.body, want)
			}
		}
	})
}

// loginSite is how a site says that a login failed.
type loginSite struct {
	site
	path, user, password string
	failed, succeeded    int
}

func loginSites(t *testing.T) []loginSite {
	return []loginSite{
		{phpSite(t), "/wp-login.php", "log", "pwd", 200, 302},
		{rackSite(t), "/users/sign_in", "user[email]", "user[password]", 422, 303},
	}
}

func (l loginSite) try(t *testing.T, v *visitor, port int, user, password string) int {
	t.Helper()
	fields := url.Values{l.user: {user}, l.password: {password}}
	return v.post(t, fmt.Sprintf("http://127.0.0.1:%d%s", port, l.path), form, fields.Encode()).status
}

func (l loginSite) start(t *testing.T, key string) (port int) {
	t.Helper()
	port = freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone login {
			match {
				path %s*
				method POST
			}
			key %s
			capacity 5
			leak 1/d
			settle status %d 1 after
		}
	}
	%s
}`, port, l.path, key, l.failed, l.directives)})
	return port
}

func TestFailedLoginsAreLimitedAndSuccessfulOnesAreNot(t *testing.T) {
	for _, l := range loginSites(t) {
		t.Run(l.name, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, protocol string) {
				port := l.start(t, "client_ip")
				person, guesser := newVisitor(t, protocol), newVisitor(t, protocol)
				for n := range 20 {
					if got := l.try(t, person, port, "ann", "right"); got != l.succeeded {
						t.Fatalf("login %d with the right password: got %d, want %d", n+1, got, l.succeeded)
					}
				}
				for n := range 8 {
					want := l.failed
					if n >= 5 {
						want = http.StatusTooManyRequests
					}
					if got := l.try(t, guesser, port, "ann", fmt.Sprint("guess", n)); got != want {
						t.Errorf("guess %d: got %d, want %d", n+1, got, want)
					}
				}
			})
		})
	}
}

func TestGuessesOnOneAccountFromAHundredAddressesAreLimited(t *testing.T) {
	for _, l := range loginSites(t) {
		t.Run(l.name, func(t *testing.T) {
			port := l.start(t, "form "+l.user)
			for n := range 100 {
				user, want := "ann", l.failed
				if n%2 == 1 {
					user = " ANN " // the same to any site
				}
				if n >= 5 {
					want = http.StatusTooManyRequests
				}
				v := newVisitor(t, protocols[n%2])
				if got := l.try(t, v, port, user, fmt.Sprint("guess", n)); got != want {
					t.Fatalf("guess %d, from %s: got %d, want %d", n+1, v.address, got, want)
				}
			}
			if got := l.try(t, newVisitor(t, "h1"), port, "bob", "wrong"); got != l.failed {
				t.Errorf("another account: got %d, want %d", got, l.failed)
			}
		})
	}
}
