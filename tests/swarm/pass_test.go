package swarm

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/chromedp/chromedp"
)

// A heldUpstream answers at once, except for /hold, which it holds until it is let go.
type heldUpstream struct {
	*system.Upstream
	mu    sync.Mutex
	held  chan struct{}
	holds atomic.Int64 // requests that it has ever held
}

// release lets go what is held now.
func (u *heldUpstream) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	close(u.held)
	u.held = make(chan struct{})
}

func startHeldUpstream(t *testing.T) *heldUpstream {
	t.Helper()
	u := &heldUpstream{held: make(chan struct{})}
	u.Upstream = system.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hold":
			u.mu.Lock()
			held := u.held
			u.mu.Unlock()
			u.holds.Add(1)
			select {
			case <-held:
			case <-r.Context().Done():
			}
		case "/login":
			w.Header().Add("Set-Cookie", "member_token=1; path=/; HttpOnly")
		}
		w.Header().Set("Cache-Control", "private")
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!DOCTYPE html>\n<title>In</title>\n<p>ok\n")
	})
	t.Cleanup(u.release)
	return u
}

// hold takes a slot until the upstream lets it go.
func (u *heldUpstream) hold(t *testing.T, url string) {
	t.Helper()
	before := u.holds.Load()
	v := system.NewVisitor(t, "h1")
	go func() { _, _ = v.Try("GET", url+"hold") }()
	system.Eventually(t, "a request that holds a slot", func() bool { return u.holds.Load() > before })
}

// passOf returns the pass that an answer brings, as a Cookie header, or "".
func passOf(a system.Answer) string {
	for _, line := range a.Header["Set-Cookie"] {
		if pair, _, _ := strings.Cut(line, ";"); strings.HasPrefix(pair, "__Host-throttle-") && !strings.HasSuffix(pair, "=") {
			return pair
		}
	}
	return ""
}

// ranked returns how many requests of a rank were served.
func ranked(c *system.Caddy, t *testing.T, rank string) float64 {
	t.Helper()
	return c.Metric(t, "caddy_throttle_requests_total", `decision="admitted"`, `rank="`+rank+`"`) +
		c.Metric(t, "caddy_throttle_requests_total", `decision="delayed"`, `rank="`+rank+`"`)
}

// A pass holds over HTTP/1, 2 and 3, on each node that shares the storage, and over a
// reload. It is void until the time that its refusal named.
func TestAPassHoldsOverProtocolsNodesAndReloads(t *testing.T) {
	t.Parallel()
	u := startHeldUpstream(t)
	storage := "XDG_DATA_HOME=" + t.TempDir()
	type secureNode struct {
		*system.Caddy
		system.Config
		url string
	}
	start := func() secureNode {
		port := servertest.FreePort(t)
		n := secureNode{url: fmt.Sprintf("https://localhost:%d/", port), Config: system.Config{
			Env: storage, Protocols: "h1 h2 h3",
			Sites: fmt.Sprintf(`https://localhost:%d {
				tls internal
				in_flight php 1 {
					exempt path /ready
					wait 1s
					share
					rank member issued member_*
				}
				reverse_proxy %s
			}`, port, u.Address),
		}}
		n.Caddy = system.StartCaddy(t, n.Config)
		v := system.NewQUICVisitor(t, nil)
		system.Eventually(t, "a certificate", func() bool {
			_, err := v.Try(http.MethodGet, n.url+"ready")
			return err == nil
		})
		return n
	}
	a, b := start(), start()
	u.hold(t, a.url)
	v := map[string]*system.Visitor{"h1": system.NewVisitorFrom(t, "h1", "127.0.0.1"), "h2": system.NewVisitorFrom(t, "h2", "127.0.0.1"), "h3": system.NewQUICVisitor(t, nil)}
	refused := v["h2"].Get(t, a.url, system.Opens("")...)
	pass, wait := passOf(refused), refused.RetryAfter(t)
	asked := time.Now()
	if refused.Status != 503 || pass == "" || refused.Header.Get("Refresh") != refused.Header.Get("Retry-After") {
		t.Fatalf("got %d, the pass %q and Refresh %q, want a page that reloads with a pass", refused.Status, pass, refused.Header.Get("Refresh"))
	}
	check.Equal(t, v["h1"].Get(t, b.url, system.Opens(pass)...).Status, 200, "from a node that is free")
	if got := b.Metric(t, "caddy_throttle_passes_total", `event="early"`); got != 1 && time.Since(asked) < wait {
		t.Errorf("got %v early passes on the other node, want 1", got)
	}
	u.release()
	system.Eventually(t, "the time that its refusal named", func() bool {
		_, err := v["h1"].Try("GET", b.url, system.Opens(pass)...)
		return err == nil && ranked(b.Caddy, t, "returned") > 0
	})
	for protocol, v := range v {
		for _, n := range []secureNode{a, b} {
			before := ranked(n.Caddy, t, "returned")
			check.Equal(t, v.Get(t, n.url, system.Opens(pass)...).Status, 200, "%s", protocol)
			system.Eventually(t, "one who has returned", func() bool { return ranked(n.Caddy, t, "returned") == before+1 })
		}
	}
	login := v["h2"].Get(t, a.url+"login", system.Opens("")...)
	member := passOf(login) + "; member_token=1"
	next := a.Config
	next.Sites += "\n# changed"
	a.Reload(next)
	for _, n := range []secureNode{a, b} {
		system.Eventually(t, "a member on each node", func() bool {
			_, err := v["h1"].Try("GET", n.url, system.Opens(member)...)
			return err == nil && ranked(n.Caddy, t, "member") > 0
		})
	}
	before := ranked(a.Caddy, t, "returned")
	check.Equal(t, v["h1"].Get(t, a.url, system.Opens(passOf(login))...).Status, 200, "a member who has logged out")
	system.Eventually(t, "one who has returned, and is no member", func() bool { return ranked(a.Caddy, t, "returned") == before+1 })
}

// In a browser the page reloads by itself, and who got in stays in.
func TestInABrowserOneWaitsGetsInAndStaysIn(t *testing.T) {
	t.Parallel()
	u := startHeldUpstream(t)
	defer u.release()
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Protocols: "h1 h2", Sites: fmt.Sprintf(`https://localhost:%d {
		tls %s
		in_flight php 1 {
			exempt path /favicon.ico
			share
		}
		reverse_proxy %s
	}`, port, system.WriteCertificate(t), u.Address)})
	url := fmt.Sprintf("https://localhost:%d/", port)
	browser := chromium.StartBrowser(t, chromedp.IgnoreCertErrors)
	person := chromium.NewTab(t, browser, "en", "light", 360, 740)
	u.hold(t, url)
	person.Open(url + "one")
	text := chromium.Eval[string](person, "document.body.innerText")
	for _, want := range []string{"Please wait", "This page will then reload by itself.", "Try again"} {
		check.Contains(t, text, want, "the page")
	}
	wide := chromium.Eval[bool](person, "document.documentElement.scrollWidth > innerWidth")
	check.That(t, !wide, "got a page that is wider than a phone")
	u.release()
	in := func(path string) func() bool {
		return func() bool {
			got, err := chromedp.Run(person, chromedp.Evaluate[string]("document.title + location.pathname"))
			return err == nil && got == "In"+path
		}
	}
	system.Eventually(t, "the page reloads and gets in", in("/one"))
	check.Equal(t, ranked(c, t, "returned"), 1, "served who have returned")
	u.hold(t, url)
	person.Run(`location.href = "/two"`)
	system.Eventually(t, "it waits", func() bool { return c.Metric(t, "caddy_throttle_waiting", `rank="returned"`) == 1 })
	check.Equal(t, system.NewVisitor(t, "h2").Get(t, url, system.Opens("")...).Status, 503, "for a newcomer, want 503 while somebody waits who has returned")
	u.release()
	system.Eventually(t, "it gets in again", in("/two"))
}
