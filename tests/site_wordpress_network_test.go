package tests

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
)

var makeNetworks sync.Once

// A multisite is a network of real WordPress, with the sites one and two beside the main one.
type multisite struct {
	kind  string   // of sites in folders, or with names
	sites []string // their hosts before the trial's, and the folders
	lines string   // of the recipe, for the Caddyfile
}

// startNetwork runs it behind the first configuration, enforced.
func startNetwork(t *testing.T, n multisite) *trial {
	t.Helper()
	wordPress.use(t)
	makeNetworks.Do(func() {
		for _, kind := range []string{"folders", "names"} {
			for _, step := range [][]string{{kind}, {kind, "sites"}} {
				words := append([]string{"testdata/wordpress/network.php", filepath.Join(wordPress.dir, "wordpress")}, step...)
				if out := outputOf(t, exec.Command(need(t, "php"), words...)); out != "" {
					t.Fatalf("making a network of %s: %s", kind, out)
				}
			}
		}
	})
	socket := "unix/" + filepath.Join(wordPress.dir, "fpm.sock")
	s := startFirst(t,
		"https://site.of.the.trial {", "https://site.of.the.trial, https://one.site.of.the.trial, https://two.site.of.the.trial {",
		"\tlog\n", "\tlog\n"+n.lines,
		"php_fastcgi "+socket, "php_fastcgi "+socket+" {\n\t\tenv NETWORK "+n.kind+"\n\t}")
	s.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, strings.Replace(s.host, "localhost", "127.0.0.1", 1))
	}
	return s
}

// firstConfigurationHoldsOnANetwork: in each site of it, limits of log-ins hold, for
// all sites together, and files are free.
func firstConfigurationHoldsOnANetwork(t *testing.T) {
	for _, n := range []multisite{
		{"folders", []string{"https://%s", "https://%s/one", "https://%s/two"}, foldersOfMultisite(t)},
		{"names", []string{"https://%s", "https://one.%s", "https://two.%s"}, ""},
	} {
		t.Run(n.kind, func(t *testing.T) {
			// at sends a request to the i-th site.
			at := func(s *trial, i int) *trial {
				there := *s
				there.url = fmt.Sprintf(n.sites[i], s.host)
				return &there
			}
			t.Run("people", func(t *testing.T) {
				s := startNetwork(t, n)
				for i := range n.sites {
					at(s, i).logsIn(networkAddress(i))
				}
			})
			t.Run("files", func(t *testing.T) {
				s := startNetwork(t, n)
				for i := range n.sites {
					for _, file := range []string{"/wp-includes/css/buttons.min.css", "/wp-content/themes/twentytwentythree/style.css", "/wp-admin/css/login.min.css"} {
						if a := at(s, i).must(request{address: "198.51.100.1", target: file}); a.status != 200 || !strings.Contains(a.header.Get("Content-Type"), "css") {
							t.Errorf("site %d: got %d for %s, want the style sheet", i, a.status, file)
						}
					}
				}
				eventually(t, "lines in the log", func() bool { return len(s.entries("198.51.100.1")) == 3*len(n.sites) })
				for _, e := range s.entries("198.51.100.1") {
					if e.Throttle != nil {
						t.Errorf("%s: got it charged to %s, want it free", e.Request.URI, e.Throttle.Zone)
					}
				}
			})
			basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("admin:wrong"))
			for _, attack := range []struct {
				name  string
				least int
				most  int
				sites []int
				guess func(i int) request
			}{
				{"forms from one address", 1, mostByAddress, []int{1}, func(i int) request { return guess("198.51.100.1", fmt.Sprint(n.kind, i)) }},
				{"forms from one address, in turn at all sites", 1, mostByAddress, []int{0, 1, 2}, func(i int) request { return guess("198.51.100.1", fmt.Sprint(n.kind, "-", i)) }},
				{"forms from 200 addresses", 1, mostByAccount, []int{1}, func(i int) request { return guess(networkAddress(i%200), "admin") }},
				{"forms from 200 addresses, in turn at all sites", 1, mostByAccount, []int{0, 1, 2}, func(i int) request { return guess(networkAddress(i%200), "admin") }},
				{"HTTP Basic from 200 addresses, in turn at all sites", 1, mostByAccount, []int{0, 1, 2}, func(i int) request {
					return request{address: networkAddress(i % 200), target: "/wp-json/wp/v2/users/me", header: []string{"Authorization", basic}}
				}},
				{"XML-RPC", 0, 0, []int{0, 1, 2}, func(i int) request { return callXMLRPC(networkAddress(i%200), 1) }},
				{"XML-RPC, 500 guesses in each", 0, 0, []int{0, 1, 2}, func(i int) request { return callXMLRPC(networkAddress(i%200), 500) }},
			} {
				t.Run(attack.name, func(t *testing.T) {
					s := startNetwork(t, n)
					statuses := make(map[int]int)
					got := checked(t, func() {
						for _, site := range attack.sites {
							each := 500 / len(attack.sites)
							for status, k := range at(s, site).attack(each, 20, func(i int) request { return attack.guess(i + site*each) }) {
								statuses[status] += k
							}
						}
					})
					t.Logf("%s, %s: %d of 500 checked, %v by status", n.kind, attack.name, got, statuses)
					if got < attack.least || got > attack.most {
						t.Errorf("got %d of 500 checked, want %d to %d", got, attack.least, attack.most)
					}
				})
			}
		})
	}
}

// logsIn is a wrong log-in to a site, a right one, and the dashboard.
func (s *trial) logsIn(address string) {
	s.t.Helper()
	person := s.session(address, "wordpress_test_cookie=WP%20Cookie%20check")
	var got []int
	for _, password := range []string{"wrong", "right"} {
		got = append(got, person.opens("POST", "/wp-login.php", "log=admin&testcookie=1&pwd="+password).status)
	}
	got = append(got, person.opens("GET", "/wp-admin/", "").status)
	if want := []int{200, 302, 200}; !slices.Equal(got, want) {
		s.t.Errorf("%s: got %v for a wrong password, a right one, and the dashboard, want %v", s.url, got, want)
	}
}
