package applications

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// passengerSite is the Devise of the tests under Apache and Passenger, with the lines for
// Apache of the recipe for WordPress.
var passengerSite = system.Server{Start: func(t *testing.T, dir string) (string, *system.Process) {
	module := system.Need(t, "libapache2-mod-passenger", apacheFolder+"mod_passenger.so")
	devise.use(t)
	root := filepath.Join(devise.dir, "devise")
	if out, err := exec.Command("chmod", "--recursive", "a+rwX", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out) // Passenger runs as the owner of config.ru, or as nobody for root
	}
	return startApache(t, dir, "recipes/wordpress.md", fmt.Sprintf(`LoadModule passenger_module %s
LoadModule mpm_event_module %smod_mpm_event.so
PassengerRoot /usr/lib/ruby/vendor_ruby/phusion_passenger/locations.ini
PassengerDefaultRuby /usr/bin/ruby
PassengerInstanceRegistryDir %s
PassengerDisableSecurityUpdateCheck on
PassengerMaxPoolSize 5
`, module, apacheFolder, dir), "/srv/www", filepath.Join(root, "public"))
}}

// TestDeviseUnderPassengerBehindCaddy: with the recipe's lines for Apache, it knows that
// visitors come by HTTPS, logs them in, and checks as few passwords as under Puma.
func TestDeviseUnderPassengerBehindCaddy(t *testing.T) {
	t.Parallel()
	apache := passengerSite.Use(t)
	start := func(t *testing.T) *system.Trial {
		return system.StartTrial(t, "rails.md", append([]string{
			"/srv/app/public", t.TempDir(),
			"\t\treverse_proxy localhost:3000\n", apache,
		}, beforeWorkers(recipeCode(t, "rails.md", "caddyfile"))...)...)
	}

	s := start(t)
	system.Eventually(t, "Rails under Passenger", func() bool {
		return s.Must(system.Request{Address: "203.0.113.9", Target: "/account"}).Status != 502
	})
	if a := s.Must(system.Request{Address: "203.0.113.1", Target: "/account"}); a.Status != 302 || a.Header.Get("Location") != s.URL+"/users/sign_in" {
		t.Errorf("got %d to %q for a page of members, want a redirect to %s/users/sign_in", a.Status, a.Header.Get("Location"), s.URL)
	}
	alice := openSession(s, "203.0.113.1", "theme=dark")
	wrong, right := alice.logsInToDevise("wrong"), alice.logsInToDevise("right")
	check.That(t, wrong == 200 && right == 302, "got %d for a wrong password and %d for the right one, want 200 and 302", wrong, right)
	alice.wantMember("rails", "/account")
	log := filepath.Join(passengerSite.Dir, "access.log")
	system.Eventually(t, "a line of the visitor in Apache's log", func() bool { return len(linesWith(t, log, "203.0.113.1 ")) > 0 })

	for _, attack := range []struct {
		name  string
		guess func(i int) system.Request
	}{
		{"from one address", func(i int) system.Request { return guessDevise("198.51.100.2", fmt.Sprintf("a%d@example.com", i)) }},
		{"from 200 addresses at one account", func(i int) system.Request { return guessDevise(system.NetworkAddress(i), "alice@example.com") }},
	} {
		s := start(t)
		statuses := s.Attack(200, 20, attack.guess)
		t.Logf("200 guesses %s: %v by status", attack.name, statuses)
		reached := 200 - statuses[429]
		check.That(t, reached >= 1 && reached <= mostByAccount, "%s: got %d guesses through, want 1 to %d", attack.name, reached, mostByAccount)
	}
	if got := linesWith(t, log, "127.0.0.1 "); len(got) > 0 {
		t.Errorf("got %q in Apache's log, want the address of a visitor", got)
	}
	if got := linesWith(t, log, `"POST /users/sign_in`); len(got) == 0 || !strings.HasPrefix(got[0], "203.0.113.1 ") {
		t.Errorf("got %q in Apache's log, want the logins", got)
	}
}
