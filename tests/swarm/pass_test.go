package swarm

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	var sessions atomic.Int64
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
		case "/public":
			w.Header().Set("Cache-Control", "public, max-age=600")
		case "/busy":
			w.Header().Set("Cache-Control", cmp.Or(r.URL.Query().Get("control"), "private"))
			time.Sleep(100 * time.Millisecond) // its work
		case "/oops": // a log-in that its author marked public
			w.Header().Set("Cache-Control", "public, max-age=600")
			w.Header().Add("Set-Cookie", fmt.Sprintf("member_token=%d; path=/; HttpOnly", sessions.Add(1)))
		case "/login":
			w.Header().Set("Cache-Control", "private")
			w.Header().Add("Set-Cookie", fmt.Sprintf("member_token=%d; path=/; HttpOnly", sessions.Add(1)))
		case "/logout":
			w.Header().Add("Set-Cookie", "member_token=; Max-Age=0; path=/")
		default:
			w.Header().Set("Cache-Control", "private")
		}
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
	if early := v["h1"].Get(t, b.url, system.Opens(pass)...); early.Status != 200 {
		t.Errorf("got %d from a node that is free, want 200", early.Status)
	}
	if got := b.Metric(t, "caddy_throttle_passes_total", `event="early"`); got != 1 && time.Since(asked) < wait {
		t.Errorf("got %v early passes on the other node, want 1", got)
	}
	u.release()
	time.Sleep(time.Until(asked.Add(wait + 100*time.Millisecond))) // its clock is the machine's
	for protocol, v := range v {
		for _, n := range []secureNode{a, b} {
			before := ranked(n.Caddy, t, "returned")
			if got := v.Get(t, n.url, system.Opens(pass)...); got.Status != 200 {
				t.Errorf("%s: got %d, want 200", protocol, got.Status)
			}
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
	logout := v["h1"].Get(t, a.url+"logout", system.Opens(member)...)
	if lines := logout.Header["Set-Cookie"]; len(lines) != 2 || !strings.HasPrefix(lines[1], "__Host-throttle-php=; ") {
		t.Errorf("got the cookies %q after a log-out, want the pass deleted", lines)
	}
}

// behindNginx is a cache that keeps what it may, although it sets cookies.
const behindNginx = `location / {
	proxy_pass http://127.0.0.1:%d;
	proxy_http_version 1.1;
	proxy_set_header Host example.com;
	proxy_set_header X-Forwarded-Proto https;
	proxy_set_header X-Forwarded-For $http_x_visitor;
	proxy_cache pages;
	proxy_cache_valid any 10m;
	proxy_cache_lock on;
	proxy_cache_lock_timeout 100ms;
	proxy_ignore_headers Set-Cookie;
	add_header X-Cache $upstream_cache_status always;
}`

// Hundreds of clients of a cache log in, are refused, and are served while others wait,
// over HTTP/1.1 and HTTP/2. Some pages are public by mistake. No two get the same pass,
// and served pages bring none.
func TestThroughACachingProxyNoTwoClientsGetTheSamePass(t *testing.T) {
	t.Parallel()
	u := startHeldUpstream(t)
	defer u.release()
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Servers: "trusted_proxies static 127.0.0.0/8\ntrusted_proxies_strict", Sites: fmt.Sprintf(`http://:%d {
		in_flight php 2 {
			wait 3s
			share
			rank member issued member_*
		}
		reverse_proxy %s
	}`, port, u.Address)})
	url := startCache(t, fmt.Sprintf(behindNginx, port))
	var mu sync.Mutex
	seen, events := make(map[string]string), make(map[string]int)
	clients := 0
	// each sends a request from so many clients, some at once.
	each := func(kind string, n int, target func(i int) string) {
		t.Helper()
		var all sync.WaitGroup
		next := make(chan int)
		for range 30 {
			all.Go(func() {
				for i := range next {
					v := system.NewVisitor(t, system.Protocols[i%2])
					mu.Lock()
					clients++
					address := fmt.Sprintf("192.0.%d.%d", 2+clients/250, clients%250+1)
					mu.Unlock()
					a, err := v.Try("GET", url+target(i), append(system.Opens(""), "X-Visitor", address)...)
					v.CloseIdleConnections()
					mu.Lock()
					if err != nil {
						t.Errorf("%s: %v", kind, err)
					}
					hit := a.Header.Get("X-Cache") == "HIT"
					events[fmt.Sprint(kind, " ", a.Status)]++
					if hit {
						events[kind+" from the cache"]++
					}
					if p := passOf(a); p != "" {
						events[fmt.Sprint(kind, " ", a.Status, " with a pass")]++
						if other, found := seen[p]; found || hit {
							t.Errorf("%s: got a pass from the cache: %v; and that of %q again", kind, hit, other)
						}
						seen[p] = kind
					}
					mu.Unlock()
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		all.Wait()
	}
	page := func(target string) func(int) string { return func(int) string { return target } }
	numbered := func(target string) func(int) string { return func(i int) string { return target + fmt.Sprint(i) } }
	one := system.NewVisitor(t, "h1")
	one.Get(t, url+"oops", append(system.Opens(""), "X-Visitor", "198.51.100.200")...)
	each("public log-in", 60, page("oops"))
	each("public page", 60, page("public"))
	each("log-in", 60, numbered("login?"))
	each("busy", 150, numbered("busy?"))
	each("busy, and public", 60, numbered("busy?control=public,max-age=60&"))
	for i := range 2 {
		v := system.NewVisitor(t, "h1")
		go func() {
			_, _ = v.Try("GET", fmt.Sprintf("http://127.0.0.1:%d/hold", port), "X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i+1))
		}()
		system.Eventually(t, "a request that holds a slot", func() bool { return u.holds.Load() > int64(i) })
	}
	each("full", 300, page("page"))
	t.Logf("%d clients, %d passes: %v", clients, len(seen), events)
	for event, least := range map[string]int{
		"public log-in from the cache": 60, "public page from the cache": 30, "log-in 200 with a pass": 2, "full 503 with a pass": 300,
	} {
		if events[event] < least {
			t.Errorf("got %d of %s, want at least %d", events[event], event, least)
		}
	}
	for event, n := range events {
		if !strings.HasPrefix(event, "log-in") && strings.HasSuffix(event, "200 with a pass") {
			t.Errorf("got %d of %s, want none", n, event)
		}
	}
	if got := c.Metric(t, "caddy_throttle_passes_total", `event="issued"`); int(got) < events["full 503 with a pass"] {
		t.Errorf("got %v passes issued, want at least the %d that came", got, events["full 503 with a pass"])
	}
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
		if !strings.Contains(text, want) {
			t.Errorf("got the page %q, want %q in it", text, want)
		}
	}
	if wide := chromium.Eval[bool](person, "document.documentElement.scrollWidth > innerWidth"); wide {
		t.Error("got a page that is wider than a phone")
	}
	u.release()
	in := func(path string) func() bool {
		return func() bool {
			got, err := chromedp.Run(person, chromedp.Evaluate[string]("document.title + location.pathname"))
			return err == nil && got == "In"+path
		}
	}
	system.Eventually(t, "the page reloads and gets in", in("/one"))
	if got := ranked(c, t, "returned"); got != 1 {
		t.Errorf("got %v served who have returned, want 1", got)
	}
	u.hold(t, url)
	person.Run(`location.href = "/two"`)
	system.Eventually(t, "it waits", func() bool { return c.Metric(t, "caddy_throttle_waiting", `rank="returned"`) == 1 })
	if a := system.NewVisitor(t, "h2").Get(t, url, system.Opens("")...); a.Status != 503 {
		t.Errorf("got %d for a newcomer, want 503 while somebody waits who has returned", a.Status)
	}
	u.release()
	system.Eventually(t, "it gets in again", in("/two"))
}

// A client whose proxy is not trusted may say what it likes about HTTPS.
func TestOverPlainHTTPNobodyGetsAPass(t *testing.T) {
	t.Parallel()
	u := startHeldUpstream(t)
	defer u.release()
	port := servertest.FreePort(t)
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(`http://:%d {
		in_flight php 1 {
			wait 1s
			share
		}
		reverse_proxy %s
	}`, port, u.Address)})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	u.hold(t, url)
	for _, protocol := range system.Protocols {
		a := system.NewVisitor(t, protocol).Get(t, url, append(system.Opens(""), "X-Forwarded-Proto", "https")...)
		if a.Status != 503 || passOf(a) != "" {
			t.Errorf("got %d and the pass %q, want 503 and none", a.Status, passOf(a))
		}
	}
}
