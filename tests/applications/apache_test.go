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
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// apacheModules are those that Debian's Apache loads, with what the recipes switch on.
var apacheModules = []string{"authz_core", "dir", "env", "mime", "rewrite", "remoteip", "setenvif"}

const apacheFolder = "/usr/lib/apache2/modules/"

// htaccess is WordPress' own, as it writes it for permalinks.
const htaccess = `RewriteEngine On
RewriteBase /
RewriteRule ^index\.php$ - [L]
RewriteCond %{REQUEST_FILENAME} !-f
RewriteCond %{REQUEST_FILENAME} !-d
RewriteRule . /index.php [L]
`

// apacheSite is the WordPress of the tests under Apache and mod_php, with the lines of the
// recipe for Apache.
var apacheSite = system.Server{Start: func(t *testing.T, dir string) (string, *system.Process) {
	php, _ := filepath.Glob(apacheFolder + "libphp*.so")
	if len(php) == 0 {
		system.Need(t, "libapache2-mod-php")
	}
	wordPress.use(t)
	root := filepath.Join(wordPress.dir, "wordpress")
	check.OK(t, os.WriteFile(filepath.Join(root, ".htaccess"), []byte(htaccess), 0o644))
	return startApache(t, dir, "recipes/wordpress.md", "LoadModule php_module "+php[len(php)-1]+`
LoadModule mpm_prefork_module `+apacheFolder+`mod_mpm_prefork.so
DirectoryIndex index.php
<FilesMatch \.php$>
SetHandler application/x-httpd-php
</FilesMatch>
`, "/srv/www", root)
}}

// startApache runs Apache as Debian does, with the lines of a recipe for it, and more.
func startApache(t *testing.T, dir, recipe, more string, changes ...string) (string, *system.Process) {
	t.Helper()
	apache := system.Need(t, "apache2", "/usr/sbin/apache2")
	port := servertest.FreePort(t)
	var conf strings.Builder
	fmt.Fprintf(&conf, "PidFile %s/apache.pid\nErrorLog %[1]s/error.log\nDefine APACHE_LOG_DIR %[1]s\nTypesConfig /etc/mime.types\n", dir)
	if os.Getuid() == 0 {
		conf.WriteString("User www-data\nGroup www-data\n")
	}
	for _, module := range apacheModules {
		fmt.Fprintf(&conf, "LoadModule %s_module %smod_%[1]s.so\n", module, apacheFolder)
	}
	conf.WriteString(more)
	change := strings.NewReplacer(append(changes, "127.0.0.1:8080", fmt.Sprintf("127.0.0.1:%d", port))...)
	for _, block := range system.Code(system.Page(t, "docs/"+recipe), "apache") {
		conf.WriteString(change.Replace(block))
	}
	// NO_DETACH begins a session, with FOREGROUND Apache would end the tests with itself:
	// it sends SIGTERM to its process group.
	p, err := system.StartProcess(exec.Command(apache, "-D", "NO_DETACH", "-f", system.WriteFile(t, "apache.conf", conf.String())))
	check.OK(t, err, "starting Apache")
	address := fmt.Sprintf("127.0.0.1:%d", port)
	if err := p.WaitUntil(func() bool { return system.Listens("tcp", address) }); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
		t.Fatalf("waiting for Apache: %v\n%s%s", err, p.Output.String(), log)
	}
	return "\treverse_proxy " + address + "\n", p
}

// wordPressUnderApacheBehindCaddy: the recipe's lines for Apache and the README's
// configuration protect it as they do WordPress under php-fpm, and hurt nobody.
func wordPressUnderApacheBehindCaddy(t *testing.T) {
	proxy := apacheSite.Use(t)
	apacheLog := func(text string) []string { return linesWith(t, filepath.Join(apacheSite.Dir, "access.log"), text) }
	s := startFirst(t, "\tphp_fastcgi unix/"+filepath.Join(wordPress.dir, "fpm.sock")+"\n\tfile_server\n", proxy)

	t.Run("redirects end", func(t *testing.T) {
		for _, target := range []string{"/", "/kettle-1/", "/kettle-1", "/wp-login.php", "/wp-admin", "/wp-admin/"} {
			var way []string
			next := target
			for range 5 {
				a := s.Must(system.Request{Address: "203.0.113.9", Target: next})
				way = append(way, fmt.Sprint(next, " ", a.Status))
				to := a.Header.Get("Location")
				if to == "" {
					break
				}
				check.Assume(t, strings.HasPrefix(to, s.URL+"/"), "%s: got a redirect to %s, want one to %s", target, to, s.URL)
				next = strings.TrimPrefix(to, s.URL)
			}
			t.Logf("%s: %s", target, strings.Join(way, ", "))
			check.That(t, strings.HasSuffix(way[len(way)-1], " 200"), "%s: got %q, want a page in the end", target, way)
		}
	})

	t.Run("style sheets are free", func(t *testing.T) {
		const style = "/wp-includes/css/buttons.min.css"
		statuses := s.Attack(300, 10, func(int) system.Request { return system.Request{Address: "203.0.113.10", Target: style} })
		check.That(t, statuses[200] == 300, "got %v for 300 style sheets, want 200 for each", statuses)
		system.Eventually(t, "300 style sheets in Apache's log", func() bool { return len(apacheLog("203.0.113.10 ")) == 300 })
		s.Must(system.Request{Address: "203.0.113.10", Target: "/kettle-1/"})
		system.Eventually(t, "a page in the log", func() bool { return s.Peaks("203.0.113.10")["pages"] > 0 })
		got := s.Peaks("203.0.113.10")["pages"]
		check.That(t, got <= 1.5/120, "got pages at %.1f %% after 300 style sheets and a page, want the page alone", 100*got)
		// PHP answers these, though they are below the folders of the files.
		for _, target := range []string{"/wp-content/", "/wp-admin/", "/wp-admin/admin-ajax.php", "/wp-content/none.css", style + "/x"} {
			before := len(s.Entries("203.0.113.14"))
			s.Must(system.Request{Address: "203.0.113.14", Target: target})
			system.Eventually(t, "a line in the log", func() bool { return len(s.Entries("203.0.113.14")) > before })
			e := s.Entries("203.0.113.14")[before]
			check.That(t, e.Throttle != nil && e.Throttle.Zone == "pages", "%s: got it free, want it charged to pages", target)
		}
	})

	t.Run("guesses", func(t *testing.T) {
		const guesser = "203.0.113.12"
		for i := range 8 {
			want := 200
			if i >= 5 {
				want = 429
			}
			check.Equal(t, s.Must(guess(guesser, fmt.Sprint("apache", i))).Status, want, "guess %d", i+1)
		}
		if got := len(wordPress.lines(t, "passwords.log", `"remote":"`+guesser+`"`)); got != 5 {
			t.Errorf("got %d passwords checked from %s, as REMOTE_ADDR says, want 5", got, guesser)
		}
		system.Eventually(t, "five guesses in Apache's log", func() bool {
			got := apacheLog(guesser + " ")
			return len(got) == 5 && strings.Contains(got[0], `"POST /wp-login.php HTTP/1.1" 200`)
		})
		check.Equal(t, s.Must(callXMLRPC(guesser, 1)).Status, 403, "XML-RPC")
	})

	t.Run("an author", func(t *testing.T) {
		p := newPerson(s, startPeople(s), "203.0.113.13")
		p.work("author", 0)
		refused := s.Refusals(p.address)
		check.That(t, len(refused) == 0, "got %q refused, want nothing of the author", refused)
		here, err := url.Parse(chromium.Eval[string](p.Tab, "location.href"))
		check.That(t, err == nil && here.Scheme == "https", "got the author at %v, %v, want https", here, err)
		got := apacheLog(p.address + " ")
		check.That(t, len(got) >= 100, "got %d requests of the author in Apache's log, want 100 and more", len(got))
		for _, line := range apacheLog("127.0.0.1 ") {
			if !strings.Contains(line, `"WordPress/`) && !strings.Contains(line, "(internal dummy connection)") {
				t.Errorf("got %q in Apache's log, want the address of a visitor", line)
			}
		}
	})
}
