package tests

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// apacheModules are those that Debian's Apache loads, with what the recipes switch on.
var apacheModules = []string{"authz_core", "dir", "env", "mime", "rewrite", "remoteip", "setenvif"}

const apacheFolder = "/usr/lib/apache2/modules/"

var apacheFence = regexp.MustCompile("(?ms)^```apache\n(.*?)^```$")

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
var apacheSite = server{start: func(t *testing.T, dir string) (string, *process) {
	php, _ := filepath.Glob(apacheFolder + "libphp*.so")
	if len(php) == 0 {
		need(t, "libapache2-mod-php")
	}
	wordPress.use(t)
	root := filepath.Join(wordPress.dir, "wordpress")
	if err := os.WriteFile(filepath.Join(root, ".htaccess"), []byte(htaccess), 0o644); err != nil {
		t.Fatal(err)
	}
	return startApache(t, dir, "recipes/wordpress.md", "LoadModule php_module "+php[len(php)-1]+`
LoadModule mpm_prefork_module `+apacheFolder+`mod_mpm_prefork.so
DirectoryIndex index.php
<FilesMatch \.php$>
SetHandler application/x-httpd-php
</FilesMatch>
`, "/srv/www", root)
}}

// startApache runs Apache as Debian does, with the lines of a recipe for it, and more.
func startApache(t *testing.T, dir, recipe, more string, changes ...string) (string, *process) {
	t.Helper()
	apache := need(t, "apache2", "/usr/sbin/apache2")
	page, err := os.ReadFile("../docs/" + recipe)
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
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
	for _, block := range apacheFence.FindAllSubmatch(page, -1) {
		conf.WriteString(change.Replace(string(block[1])))
	}
	// NO_DETACH begins a session, with FOREGROUND Apache would end the tests with itself:
	// it sends SIGTERM to its process group.
	p, err := startProcess(exec.Command(apache, "-D", "NO_DETACH", "-f", writeFile(t, "apache.conf", conf.String())))
	if err != nil {
		t.Fatalf("starting Apache: %v", err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	if err := p.waitUntil(func() bool { return listens("tcp", address) }); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
		t.Fatalf("waiting for Apache: %v\n%s%s", err, p.output.String(), log)
	}
	return "\treverse_proxy " + address + "\n", p
}

// wordPressUnderApacheBehindCaddy: the recipe's lines for Apache and the README's
// configuration protect it as they do WordPress under php-fpm, and hurt nobody.
func wordPressUnderApacheBehindCaddy(t *testing.T) {
	proxy := apacheSite.use(t)
	apacheLog := func(text string) []string { return linesWith(t, filepath.Join(apacheSite.dir, "access.log"), text) }
	blocks := configsUnder(t, "recipes/wordpress.md", "## Apache behind Caddy", 2)
	s := startFirst(t, "exempt static_files\n", blocks[1], "\tphp_fastcgi unix/"+filepath.Join(wordPress.dir, "fpm.sock")+"\n\tfile_server\n", proxy)

	t.Run("redirects end", func(t *testing.T) {
		for _, target := range []string{"/", "/kettle-1/", "/kettle-1", "/wp-login.php", "/wp-admin", "/wp-admin/"} {
			var way []string
			next := target
			for range 5 {
				a := s.must(request{address: "203.0.113.9", target: next})
				way = append(way, fmt.Sprint(next, " ", a.status))
				to := a.header.Get("Location")
				if to == "" {
					break
				}
				if !strings.HasPrefix(to, s.url+"/") {
					t.Fatalf("%s: got a redirect to %s, want one to %s", target, to, s.url)
				}
				next = strings.TrimPrefix(to, s.url)
			}
			t.Logf("%s: %s", target, strings.Join(way, ", "))
			if !strings.HasSuffix(way[len(way)-1], " 200") {
				t.Errorf("%s: got %q, want a page in the end", target, way)
			}
		}
	})

	t.Run("style sheets are free", func(t *testing.T) {
		const style = "/wp-includes/css/buttons.min.css"
		statuses := s.attack(300, 10, func(int) request { return request{address: "203.0.113.10", target: style} })
		if statuses[200] != 300 {
			t.Errorf("got %v for 300 style sheets, want 200 for each", statuses)
		}
		eventually(t, "300 style sheets in Apache's log", func() bool { return len(apacheLog("203.0.113.10 ")) == 300 })
		s.must(request{address: "203.0.113.10", target: "/kettle-1/"})
		eventually(t, "a page in the log", func() bool { return s.peaks("203.0.113.10")["pages"] > 0 })
		if got := s.peaks("203.0.113.10")["pages"]; got > 1.5/120 {
			t.Errorf("got pages at %.1f %% after 300 style sheets and a page, want the page alone", 100*got)
		}
		// PHP answers these, though they are below the folders of the files.
		for _, target := range []string{"/wp-content/", "/wp-admin/", "/wp-admin/admin-ajax.php", "/wp-content/none.css", style + "/x"} {
			before := len(s.entries("203.0.113.14"))
			s.must(request{address: "203.0.113.14", target: target})
			eventually(t, "a line in the log", func() bool { return len(s.entries("203.0.113.14")) > before })
			if e := s.entries("203.0.113.14")[before]; e.Throttle == nil || e.Throttle.Zone != "pages" {
				t.Errorf("%s: got it free, want it charged to pages", target)
			}
		}
	})

	t.Run("guesses", func(t *testing.T) {
		const guesser = "203.0.113.12"
		for i := range 8 {
			want := 200
			if i >= 5 {
				want = 429
			}
			if got := s.must(guess(guesser, fmt.Sprint("apache", i))).status; got != want {
				t.Errorf("guess %d: got %d, want %d", i+1, got, want)
			}
		}
		if got := len(wordPress.lines(t, "passwords.log", `"remote":"`+guesser+`"`)); got != 5 {
			t.Errorf("got %d passwords checked from %s, as REMOTE_ADDR says, want 5", got, guesser)
		}
		eventually(t, "five guesses in Apache's log", func() bool {
			got := apacheLog(guesser + " ")
			return len(got) == 5 && strings.Contains(got[0], `"POST /wp-login.php HTTP/1.1" 200`)
		})
		if got := s.must(callXMLRPC(guesser, 1)).status; got != 403 {
			t.Errorf("XML-RPC: got %d, want 403", got)
		}
	})

	t.Run("an author", func(t *testing.T) {
		p := s.person(s.startPeople(), "203.0.113.13")
		p.work("author", 0)
		if refused := s.refusals(p.address); len(refused) > 0 {
			t.Errorf("got %q refused, want nothing of the author", refused)
		}
		here, err := url.Parse(eval[string](p.tab, "location.href"))
		if err != nil || here.Scheme != "https" {
			t.Errorf("got the author at %v, %v, want https", here, err)
		}
		if got := apacheLog(p.address + " "); len(got) < 100 {
			t.Errorf("got %d requests of the author in Apache's log, want 100 and more", len(got))
		}
		for _, line := range apacheLog("127.0.0.1 ") {
			if !strings.Contains(line, `"WordPress/`) && !strings.Contains(line, "(internal dummy connection)") {
				t.Errorf("got %q in Apache's log, want the address of a visitor", line)
			}
		}
	})
}
