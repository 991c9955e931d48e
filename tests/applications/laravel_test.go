package applications

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

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
