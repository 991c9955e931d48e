package applications

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

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

// startLimitedApache runs Apache with a module of Debian's that limits, and returns its
// address. It serves a file, and /search takes two seconds.
func startLimitedApache(t *testing.T, module, lines string) string {
	t.Helper()
	apache := system.Need(t, "apache2", "/usr/sbin/apache2")
	found, _ := filepath.Glob(apacheFolder + module)
	if len(found) == 0 {
		if system.Long() {
			system.Need(t, module)
		}
		t.Skipf("SKIPPED: no %s for Apache on this machine; TEST_LONG=1 tests/run.sh all installs it", module)
	}
	dir, port := t.TempDir(), servertest.FreePort(t)
	check.OK(t, os.Chmod(filepath.Dir(dir), 0o755))
	for name, text := range map[string]string{"index.html": "hello", "search.sh": "#!/bin/sh\nsleep 2\nprintf 'Content-Type: text/plain\\n\\nslow'\n"} {
		check.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	var conf strings.Builder
	if pcre, _ := filepath.Glob("/lib/*/libpcre.so.3"); len(pcre) > 0 {
		fmt.Fprintf(&conf, "LoadFile %s\n", pcre[0]) // mod_qos of Debian 12 does not say that it needs it
	}
	for _, name := range []string{"mpm_prefork", "authz_core", "dir", "mime", "setenvif", "cgi", "alias"} {
		fmt.Fprintf(&conf, "LoadModule %s_module %smod_%[1]s.so\n", name, apacheFolder)
	}
	if os.Getuid() == 0 {
		conf.WriteString("User www-data\nGroup www-data\n")
	}
	fmt.Fprintf(&conf, "LoadModule %s_module %s\nTypesConfig /etc/mime.types\nPidFile %s/pid\nErrorLog %[3]s/err\nListen 127.0.0.1:%d\nDocumentRoot %[3]s\nServerName localhost\nStartServers 40\nMinSpareServers 40\nMaxSpareServers 60\n<Directory %[3]s>\nRequire all granted\nOptions +ExecCGI\n</Directory>\nScriptAlias /search %[3]s/search.sh\n%[5]s",
		strings.TrimSuffix(strings.TrimPrefix(module, "mod_"), ".so"), found[0], dir, port, lines)
	p := check.Must(system.StartProcess(exec.Command(apache, "-D", "NO_DETACH", "-f", system.WriteFile(t, "apache.conf", conf.String()))))(t)
	t.Cleanup(func() { _ = p.Stop() })
	address := fmt.Sprintf("127.0.0.1:%d", port)
	if err := p.WaitUntil(func() bool { return system.Listens("tcp", address) }); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "err"))
		t.Fatalf("waiting for Apache: %v\n%s%s", err, p.Output.String(), log)
	}
	return "http://" + address
}

// ours runs a zone of the page about migrating in front of a site that answers at once, and
// /search after two seconds.
func ours(t *testing.T, zone string) string {
	t.Helper()
	upstream := system.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/search" {
			time.Sleep(2 * time.Second)
		}
	})
	port := servertest.FreePort(t)
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\nthrottle {\nzone limited {\n%s\n}\n}\nreverse_proxy %s\n}\n", port, zone, upstream.Address)})
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// rowFor returns what stands beside an original in the table of the page about migrating, as
// lines of a zone.
func rowFor(t *testing.T, original string) string {
	t.Helper()
	page := system.Page(t, "docs/comparison.md")
	_, row, found := strings.Cut(page, original)
	_, row, _ = strings.Cut(row, " | ")
	row, _, _ = strings.Cut(row, "\n")
	var lines []string
	for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
		lines = append(lines, code[1])
	}
	check.Assume(t, found && len(lines) != 0, "got no row for %s in the page about migrating", original)
	return strings.Join(lines, "\n")
}

// served sends n requests, so many at once, each over a connection of its own or all over
// one for each sender, and counts the answers 200.
func served(t *testing.T, url string, n, atOnce int, kept bool) (ok int) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: !kept, MaxIdleConnsPerHost: atOnce}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	statuses := make(chan int, n)
	var senders sync.WaitGroup
	next := make(chan int)
	for range atOnce {
		senders.Go(func() {
			for i := range next {
				resp, err := client.Get(fmt.Sprintf("%s?n=%d", url, i))
				if err != nil { // mod_qos closes connections
					statuses <- 0
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				statuses <- resp.StatusCode
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	senders.Wait()
	close(statuses)
	for status := range statuses {
		if status == http.StatusOK {
			ok++
		}
	}
	return ok
}

// TestWeRefuseAsApachesModulesDo sends the same requests to Apache with a module and to
// throttle with what the page about migrating has beside it. mod_evasive counts in each
// process of Apache, as the page says.
func TestWeRefuseAsApachesModulesDo(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, module, original, lines, path string

		n, atOnce   int
		kept        bool
		theirs, own [2]int // at least and at most so many get 200
	}{
		{"mod_evasive, one connection", "mod_evasive20.so", "mod_evasive's `DOSSiteCount 50`", "DOSSiteCount 50\nDOSSiteInterval 1\nDOSBlockingPeriod 10\nDOSPageCount 1000\nKeepAlive On\nMaxKeepAliveRequests 0\n", "/", 200, 1, true, [2]int{50, 101}, [2]int{50, 150}}, // it counts in seconds of the clock, so one that ends meanwhile lets 50 more through; ours leaks
		{"mod_evasive, ten connections", "mod_evasive20.so", "mod_evasive's `DOSSiteCount 50`", "DOSSiteCount 50\nDOSSiteInterval 1\nDOSBlockingPeriod 10\nDOSPageCount 1000\nKeepAlive On\nMaxKeepAliveRequests 0\n", "/", 200, 10, true, [2]int{51, 200}, [2]int{50, 150}},
		{"connections of an address", "mod_qos.so", "mod_qos' `QS_SrvMaxConnPerIP 30`", "QS_SrvMaxConnPerIP 30\n", "/search", 35, 35, false, [2]int{30, 30}, [2]int{30, 30}},
		{"requests of a location", "mod_qos.so", "`QS_LocRequestLimit /search 10`", "QS_LocRequestLimit /search 10\n", "/search", 15, 15, false, [2]int{10, 10}, [2]int{10, 10}},
		{"events of a client", "mod_qos.so", "`QS_ClientEventBlockCount 20 300`", "QS_ClientEntries 1000\nQS_ClientEventBlockCount 20 300\nSetEnvIf Request_URI / QS_Block=yes\n", "/", 40, 1, false, [2]int{19, 21}, [2]int{20, 20}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			zone := rowFor(t, test.original)
			theirs := served(t, startLimitedApache(t, test.module, test.lines)+test.path, test.n, test.atOnce, test.kept)
			own := served(t, ours(t, zone)+test.path, test.n, test.atOnce, test.kept)
			t.Logf("of %d requests, %d at once, %s lets %d through, throttle %d", test.n, test.atOnce, test.module, theirs, own)
			if theirs < test.theirs[0] || theirs > test.theirs[1] || own < test.own[0] || own > test.own[1] {
				t.Errorf("got %d of %d through %s and %d through throttle, want %v and %v", theirs, test.n, test.module, own, test.theirs, test.own)
			}
		})
	}
}
