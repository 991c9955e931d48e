package applications

import (
	"fmt"
	"io"
	"net/http"
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
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

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
