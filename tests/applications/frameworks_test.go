package applications

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// devise is a small Rails application with Devise, from Debian's packages, under Puma
// with five threads. Its ApplicationController has the lines of the recipe.
var devise = application{install: installDevise}

func installDevise(t *testing.T, a *application) {
	ruby, puma := system.Need(t, "ruby"), system.Need(t, "puma")
	if err := exec.Command(ruby, "-e", "gem 'devise'; gem 'rails'; gem 'sqlite3'").Run(); err != nil {
		system.Need(t, "Devise, Rails and sqlite3 for Ruby")
	}
	root := filepath.Join(a.dir, "devise")
	check.OK(t, os.CopyFS(root, os.DirFS("testdata/devise")))
	controller := "class ApplicationController < ActionController::Base\n" + recipeCode(t, "rails.md", "rb") + "end\n"
	check.OK(t, os.WriteFile(filepath.Join(root, "app/controllers/application_controller.rb"), []byte(controller), 0o644))
	command := func(name string, words ...string) *exec.Cmd {
		cmd := exec.Command(name, words...)
		cmd.Dir = root
		return cmd
	}
	outputOf(t, command(ruby, "seed.rb"))
	socket := filepath.Join(a.dir, "puma.sock")
	a.run(t, command(puma, "--config", "-", "--environment", "production", "--threads", "5:5", "--bind", "unix://"+socket, "config.ru"), socket)
}

func TestTheRecipeOfDeviseKnowsWhoHasLoggedIn(t *testing.T) {
	t.Parallel()
	devise.use(t)
	s := system.StartTrial(t, "rails.md", append([]string{
		"/srv/app/public", t.TempDir(),
		"localhost:3000", "unix/" + filepath.Join(devise.dir, "puma.sock"),
	}, beforeWorkers(recipeCode(t, "rails.md", "caddyfile"))...)...)
	alice := openSession(s, "203.0.113.1", "theme=dark")
	check.Need(t, alice.logsInToDevise("wrong"), 200, "for a wrong password, want the form again")
	check.Need(t, alice.logsInToDevise("right"), 302, "want a login")
	alice.wantMember("rails", "/account")
	alice.wantNoMemberAfter("rails", func() system.Answer {
		form := url.Values{"_method": {"delete"}, "authenticity_token": {alice.opens("GET", "/", "").Body}}
		return alice.opens("POST", "/users/sign_out", form.Encode())
	})
}

// logsInToDevise returns the status of a login as alice.
func (b session) logsInToDevise(password string) int {
	b.T.Helper()
	form := url.Values{"authenticity_token": {b.opens("GET", "/", "").Body}, "user[email]": {"alice@example.com"}, "user[password]": {password}}
	return b.opens("POST", "/users/sign_in", form.Encode()).Status
}

// guessDevise is a login with a wrong password, and without the token of a form.
func guessDevise(address, account string) system.Request {
	form := url.Values{"user[email]": {account}, "user[password]": {"wrong"}}
	return system.Request{Address: address, Method: "POST", Target: "/users/sign_in", Body: form.Encode()}
}

// laravel is a small application with Laravel's own sessions, login and middleware, from
// Debian's packages, with the middleware of the recipe and five PHP workers.
var laravel = application{install: installLaravel}

const laravelPackage = "/usr/share/php/Illuminate/autoload.php"

func installLaravel(t *testing.T, a *application) {
	php := system.Need(t, "php")
	if _, err := os.Stat(laravelPackage); err != nil {
		system.Need(t, "Laravel in "+laravelPackage)
	}
	root := filepath.Join(a.dir, "laravel")
	check.OK(t, os.CopyFS(root, os.DirFS("testdata/laravel")))
	for _, folder := range []string{"app/Http/Middleware", "bootstrap/cache", "storage/framework/sessions", "storage/framework/views", "storage/logs"} {
		check.OK(t, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	middleware := system.SectionCode(t, "under-a-swarm.md", "### Laravel", "php")
	check.OK(t, os.WriteFile(filepath.Join(root, "app/Http/Middleware/NameUser.php"), []byte(middleware), 0o644))
	outputOf(t, exec.Command(php, filepath.Join(root, "seed.php"), filepath.Join(root, "storage/shop.sqlite")))
	outputOf(t, exec.Command("chmod", "-R", "a+rwX", root)) // PHP's workers may be another user's
	a.startFPM(t)
}

func TestTheRecipeOfLaravelKnowsWhoHasLoggedIn(t *testing.T) {
	t.Parallel()
	laravel.use(t)
	s := system.StartSection(t, "under-a-swarm.md", "# Under a swarm",
		"\t\tshare\n", "\t\tshare\n\t\trank member told X-Throttle-User *session\n",
		"/srv/www", filepath.Join(laravel.dir, "laravel/public"),
		"unix//run/php/php8.4-fpm.sock", "unix/"+filepath.Join(laravel.dir, "fpm.sock"))
	alice := openSession(s, "203.0.113.1", "theme=dark")
	token := alice.opens("GET", "/login", "").Body
	logIn := url.Values{"_token": {token}, "email": {"alice@example.com"}, "password": {"wrong"}}
	check.Need(t, alice.opens("POST", "/login", logIn.Encode()).Status, 422, "for a wrong password")
	logIn.Set("password", "right")
	check.Need(t, alice.opens("POST", "/login", logIn.Encode()).Status, 302, "want a login")
	alice.wantMember("php", "/account")
	alice.wantNoMemberAfter("php", func() system.Answer {
		return alice.opens("POST", "/logout", url.Values{"_token": {alice.opens("GET", "/login", "").Body}}.Encode())
	})
}

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
			"\treverse_proxy localhost:3000\n", apache,
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
	got := linesWith(t, log, "127.0.0.1 ")
	check.That(t, len(got) == 0, "got %q in Apache's log, want the address of a visitor", got)
	got = linesWith(t, log, `"POST /users/sign_in`)
	check.That(t, len(got) != 0 && strings.HasPrefix(got[0], "203.0.113.1 "), "got %q in Apache's log, want the logins", got)
}
