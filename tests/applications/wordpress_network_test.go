package applications

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

var makeNetworks sync.Once

// A multisite is a network of real WordPress, with the sites one and two beside the main one.
type multisite struct {
	kind  string   // of sites in folders, or with names
	sites []string // their hosts before the trial's, and the folders
	lines string   // of the recipe, for the Caddyfile
}

// startNetwork runs it behind the first configuration, enforced.
func startNetwork(t *testing.T, n multisite) *system.Trial {
	t.Helper()
	wordPress.use(t)
	makeNetworks.Do(func() {
		for _, kind := range []string{"folders", "names"} {
			for _, step := range [][]string{{kind}, {kind, "sites"}} {
				words := append([]string{"testdata/wordpress/network.php", filepath.Join(wordPress.dir, "wordpress")}, step...)
				check.Need(t, outputOf(t, exec.Command(system.Need(t, "php"), words...)), "", "making a network of %s", kind)
			}
		}
	})
	socket := "unix/" + filepath.Join(wordPress.dir, "fpm.sock")
	s := startFirst(t,
		"https://site.of.the.trial {", "https://site.of.the.trial, https://one.site.of.the.trial, https://two.site.of.the.trial {",
		"\tlog\n", "\tlog\n"+n.lines,
		"php_fastcgi "+socket, "php_fastcgi "+socket+" {\n\t\tenv NETWORK "+n.kind+"\n\t}")
	s.Client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, strings.Replace(s.Host, "localhost", "127.0.0.1", 1))
	}
	return s
}

// firstConfigurationHoldsOnANetwork: in each site of it, limits of logins hold, for
// all sites together, and files are free.
func firstConfigurationHoldsOnANetwork(t *testing.T) {
	for _, n := range []multisite{
		{"folders", []string{"https://%s", "https://%s/one", "https://%s/two"}, foldersOfMultisite(t)},
		{"names", []string{"https://%s", "https://one.%s", "https://two.%s"}, ""},
	} {
		t.Run(n.kind, func(t *testing.T) {
			// at sends a request to the i-th site.
			at := func(s *system.Trial, i int) *system.Trial {
				there := *s
				there.URL = fmt.Sprintf(n.sites[i], s.Host)
				return &there
			}
			t.Run("people", func(t *testing.T) {
				s := startNetwork(t, n)
				for i := range n.sites {
					logsIn(at(s, i), system.NetworkAddress(i))
				}
			})
			t.Run("files", func(t *testing.T) {
				s := startNetwork(t, n)
				for i := range n.sites {
					for _, file := range []string{"/wp-includes/css/buttons.min.css", "/wp-content/themes/twentytwentythree/style.css", "/wp-admin/css/login.min.css"} {
						a := at(s, i).Must(system.Request{Address: "198.51.100.1", Target: file})
						check.That(t, a.Status == 200 && strings.Contains(a.Header.Get("Content-Type"), "css"), "site %d: got %d for %s, want the style sheet", i, a.Status, file)
					}
				}
				system.Eventually(t, "lines in the log", func() bool { return len(s.Entries("198.51.100.1")) == 3*len(n.sites) })
				for _, e := range s.Entries("198.51.100.1") {
					check.That(t, e.Throttle == nil, "%s: got it charged to %+v, want it free", e.Request.URI, e.Throttle)
				}
			})
			basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("admin:wrong"))
			for _, attack := range []struct {
				name  string
				least int
				most  int
				sites []int
				guess func(i int) system.Request
			}{
				{"forms from one address, in turn at all sites", 1, mostByAddress, []int{0, 1, 2}, func(i int) system.Request { return guess("198.51.100.1", fmt.Sprint(n.kind, "-", i)) }},
				{"forms from 200 addresses, in turn at all sites", 1, mostByAccount, []int{0, 1, 2}, func(i int) system.Request { return guess(system.NetworkAddress(i%200), "admin") }},
				{"HTTP Basic from 200 addresses, in turn at all sites", 1, mostByAccount, []int{0, 1, 2}, func(i int) system.Request {
					return system.Request{Address: system.NetworkAddress(i % 200), Target: "/wp-json/wp/v2/users/me", Header: []string{"Authorization", basic}}
				}},
				{"XML-RPC, 500 guesses in each", 0, 0, []int{0, 1, 2}, func(i int) system.Request { return callXMLRPC(system.NetworkAddress(i%200), 500) }},
			} {
				t.Run(attack.name, func(t *testing.T) {
					s := startNetwork(t, n)
					statuses := make(map[int]int)
					got := checked(t, func() {
						for _, site := range attack.sites {
							each := 500 / len(attack.sites)
							for status, k := range at(s, site).Attack(each, 20, func(i int) system.Request { return attack.guess(i + site*each) }) {
								statuses[status] += k
							}
						}
					})
					t.Logf("%s, %s: %d of 500 checked, %v by status", n.kind, attack.name, got, statuses)
					check.That(t, got >= attack.least && got <= attack.most, "got %d of 500 checked, want %d to %d", got, attack.least, attack.most)
				})
			}
		})
	}
}

// logsIn is a wrong login to a site, a right one, and the dashboard.
func logsIn(s *system.Trial, address string) {
	s.T.Helper()
	person := openSession(s, address, "wordpress_test_cookie=WP%20Cookie%20check")
	var got []int
	for _, password := range []string{"wrong", "right"} {
		got = append(got, person.opens("POST", "/wp-login.php", "log=admin&testcookie=1&pwd="+password).Status)
	}
	got = append(got, person.opens("GET", "/wp-admin/", "").Status)
	want := []int{200, 302, 200}
	check.That(s.T, slices.Equal(got, want), "%s: got %v for a wrong password, a right one, and the dashboard, want %v", s.URL, got, want)
}
