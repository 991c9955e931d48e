package limit_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestStaticFilesAreNotCharged(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"style.css", "index.php", "x.php.css"} {
		check.OK(t, os.WriteFile(filepath.Join(root, name), nil, 0o600))
	}
	for name, directives := range map[string]string{
		"of the site":      "root * " + root + "\nthrottle {\nexempt static_files\nzone site {\nlimit 1 1/h\n}\n}",
		"of a root":        "throttle {\nzone site {\nexempt static_files " + root + "\nlimit 1 1/h\n}\n}",
		"of all zones":     "root * " + root + "\nthrottle site client_ip 1 1/h",
		"of a placeholder": "vars folder " + root + "\nthrottle site client_ip 1 1/h {\nexempt static_files {vars.folder}\n}",
	} {
		t.Run(name, func(t *testing.T) {
			global := ""
			if name == "of all zones" {
				global = "{\nthrottle {\nexempt static_files\n}\n}\n"
			}
			s := servertest.Run(t, fmt.Sprintf("%shttp:// {\n%s\nrespond ok\n}", global, directives))
			c := s.From(servertest.Someone)
			c.WantStatuses("/style.css?v=1", map[int]int{200: 5})
			c.Passes(1, "/index.php")
			for _, path := range []string{"/style.css/?s=x", "/style.css%2f?s=x", "/x.php.css", "/nothing.css", "/", "/index.php"} {
				check.Equal(t, c.Get(path).Code, 429, "%s", path)
			}
			check.Equal(t, c.Send("POST", "/style.css").Code, 429, "a POST")
			check.Equal(t, c.Get("/style.css").Code, 200, "a static file when the bucket is full")
		})
	}
}

// A root that is not there, or that Caddy may not read, exempts nothing, which its owner is told of once.
func TestStaticFilesWithoutARootAreToldOf(t *testing.T) {
	s := servertest.Run(t, "http:// {\nroot * "+filepath.Join(t.TempDir(), "missing")+"\nthrottle site client_ip 2 1/h {\nexempt static_files\n}\nrespond ok\n}")
	c := s.From(servertest.Someone)
	c.Passes(2, "/style.css")
	check.Equal(t, len(s.Logs.Lines(t, "static files are not exempt")), 1, "lines of the log")
}

// staticSite is the site of one zone that exempts static files, and of an upstream
// that answers all requests itself, as a proxy does. A later handler rewrites them.
func staticSite(t testing.TB, options string) *servertest.FuncSite {
	t.Helper()
	root := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(root, "style.css"), nil, 0o600))
	s := servertest.NewWaitSite(t, `throttle {
		zone site {
			exempt static_files `+root+`
			limit 100 1/d
			cost 3 {
				path *.css
			}
`+options+`
		}
		zone items {
			match {
				path *.css
			}
			limit 100 1/d
			cost body_items
		}
	}
	rewrite * /index.php?{query}`, 0)
	s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
		repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		repl.Set("http.reverse_proxy.upstream.duration", time.Second)
		return nil
	}
	return s
}

func TestAStaticFileThatTheUpstreamAnswersIsChargedOnceAfterwards(t *testing.T) {
	for _, options := range []string{"", "shadow", "block 1h", "settle header X-Cost", "delay 1", "enforce 1"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := staticSite(t, options)
			shadow := options == "shadow" || options == "enforce 1"
			wantLevel := func(want float64) {
				t.Helper()
				got := s.Fullness("site", servertest.Office, 100, 1./86400, shadow)
				check.That(t, math.Abs(got-want) <= 0.01, "%s: got level %v, want %v", options, got, want)
			}
			for i := range 3 {
				servertest.WantWaits(t, s.Visits(1, servertest.Office, "/style.css"), 0)
				wantLevel(3 * float64(i+1))
			}
			// A body that must be read for another zone is no second reason to pay.
			r := httptest.NewRequest("GET", "http://example.com/style.css", strings.NewReader("[1,2]"))
			r.RemoteAddr = servertest.Office + ":1"
			check.Equal(t, s.Come(r).Code, http.StatusOK, "%s", options)
			wantLevel(12)
			// It has been served, so it is charged up to the capacity, and not refused.
			for range 40 {
				servertest.WantWaits(t, s.Visits(1, servertest.Office, "/style.css"), 0)
			}
			wantLevel(100)
			got := servertest.Counted(t, telemetry.Requests, "site")
			check.That(t, len(got) == 0, "%s: got %v, want nothing decided", options, got)
			servertest.WantEmpty(t, "site")
		})
	}
}

func TestAStaticFileThatTheUpstreamAnswersIsWarnedOfOnce(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	root := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(root, "style.css"), nil, 0o600))
	for _, option := range []string{"", "shadow"} {
		s := servertest.Run(t, fmt.Sprintf(`http:// {
			root * %s
			throttle site 5 1/d {
				exempt static_files
				%s
			}
			handle {
				rewrite * /index.php?{query}
				reverse_proxy %s
			}
		}`, root, option, upstream.Listener.Addr()))
		s.From(servertest.Someone).WantStatuses("/style.css?v=1", map[int]int{http.StatusOK: 3})
		lines := s.Logs.Lines(t, "the upstream answered")
		check.That(t, len(lines) == 1 && lines[0]["uri"] == "http://example.com/style.css?v=1" && lines[0]["zone"] == "site", "%s: got %v, want one line about the request", option, lines)
		if option == "" {
			s.From(servertest.Someone).Passes(2, "/page")
		}
		s.Stop()
	}
}

// A zone of logins has nothing to do with files, whoever answers them.
func TestAStaticFileThatCarriesNoFieldIsNotCharged(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := staticSite(t, "field pwd")
		s.Visits(3, servertest.Office, "/style.css")
		got := s.Fullness("site", servertest.Office, 100, 1./86400, false)
		check.That(t, got <= 0, "got level %v, want 0", got)
		s.Visits(1, servertest.Office, "/style.css?pwd=x")
		got = s.Fullness("site", servertest.Office, 100, 1./86400, false)
		check.That(t, math.Abs(got-3) <= 0.01, "with the field: got level %v, want 3", got)
	})
}
