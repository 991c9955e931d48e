package swarm

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

const webhookSecret = "whsec_test"

// signature returns the header with which Stripe signs an event.
func signature(at time.Time, body string) string {
	sum := hmac.New(sha256.New, []byte(webhookSecret))
	fmt.Fprintf(sum, "%d.%s", at.Unix(), body)
	return fmt.Sprintf("t=%d,v1=%s,v0=ignored", at.Unix(), hex.EncodeToString(sum.Sum(nil)))
}

// A shop takes payments by webhook at /webhooks/stripe, and has pages and a feed. It counts
// what it serves at once of each.
type shop struct {
	address string

	mu        sync.Mutex
	now, most map[string]int // by kind
	held      chan struct{}  // what asks for it waits until this is closed
	events    map[string]int // how often each signed event came
}

func startShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{now: make(map[string]int), most: make(map[string]int), held: make(chan struct{}), events: make(map[string]int)}
	s.address = system.StartUpstream(t, s.serve).Address
	t.Cleanup(s.release)
	return s
}

// count notes that a request of a kind begins or ends.
func (s *shop) count(kind string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[kind] += n
	s.most[kind] = max(s.most[kind], s.now[kind])
}

func (s *shop) serving(kind string) (now, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now[kind], s.most[kind]
}

func (s *shop) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.held)
	s.held = make(chan struct{})
}

func (s *shop) serve(w http.ResponseWriter, r *http.Request) {
	kind := "page"
	switch {
	case r.URL.Path == "/webhooks/stripe" && r.Method == "POST":
		kind = "webhook"
	case strings.HasPrefix(r.URL.Path, "/feed"):
		kind = "feed"
	}
	s.count(kind, 1)
	defer s.count(kind, -1)
	if r.URL.Query().Has("hold") {
		s.mu.Lock()
		held := s.held
		s.mu.Unlock()
		select {
		case <-held:
		case <-r.Context().Done():
		}
	}
	if kind != "webhook" {
		fmt.Fprintln(w, kind)
		return
	}
	body, err := io.ReadAll(r.Body)
	var seconds int64
	if _, scanned := fmt.Sscanf(r.Header.Get("Stripe-Signature"), "t=%d,", &seconds); err != nil || scanned != nil ||
		r.Header.Get("Stripe-Signature") != signature(time.Unix(seconds, 0), string(body)) {
		http.Error(w, "no valid signature", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[string(body)]++
}

// startShopRecipe runs the recipe for webhooks, monitors and feeds with such a shop.
func startShopRecipe(t *testing.T, changes ...string) (*system.Trial, *shop) {
	t.Helper()
	s := startShop(t)
	return system.StartSection(t, "under-a-swarm.md", "## Webhooks, monitors and feeds", append([]string{
		"/srv/www", t.TempDir(),
		"php_fastcgi unix//run/php/php8.4-fpm.sock\n\tfile_server", "reverse_proxy " + s.address,
	}, changes...)...), s
}

// deliver sends an event as the provider does: signed, and again after a while if the shop
// does not take it. It returns how often it was sent.
func deliver(c *system.Trial, event string) (sent int, err error) {
	for {
		sent++
		a, err := c.Do(system.Request{
			Address: "198.51.100.7", Method: "POST", Target: "/webhooks/stripe", Body: event,
			Header: []string{"Content-Type", "application/json; charset=utf-8", "User-Agent", "Stripe/1.0 (+https://stripe.com/docs/webhooks)", "Stripe-Signature", signature(time.Now(), event)},
		})
		if err != nil || a.Status/100 == 2 || sent == 20 {
			if err == nil && a.Status/100 != 2 {
				err = fmt.Errorf("got %d for the event", a.Status)
			}
			return sent, err
		}
		time.Sleep(200 * time.Millisecond) // hours, in reality
	}
}

// fill takes all slots of the site, and has newcomers refused.
func (s *shop) fill(c *system.Trial) {
	c.T.Helper()
	for i := range 3 {
		go func() { _, _ = c.Do(system.Request{Address: fmt.Sprintf("203.0.113.%d", i+1), Target: "/?hold"}) }()
	}
	system.Eventually(c.T, "a full site", func() bool { now, _ := s.serving("page"); return now == 3 })
}

// sendRobots sends newcomers to a page, each from another address, so many at once, until the
// test calls stop. That returns how many were served and refused.
func sendRobots(c *system.Trial, target string, atOnce int) (stop func() (served, refused int64)) {
	var served, refused, address atomic.Int64
	var robots sync.WaitGroup
	done := make(chan struct{})
	for range atOnce {
		robots.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a, err := c.Do(system.Request{Address: system.NetworkAddress(int(address.Add(1))), Target: target})
				switch {
				case err != nil:
					c.T.Error(err)
					return
				case a.Status == 200:
					served.Add(1)
				case a.Status == 503:
					refused.Add(1)
				default:
					c.T.Errorf("got %d for a robot, want 200 or 503", a.Status)
				}
			}
		})
	}
	return func() (int64, int64) {
		close(done)
		robots.Wait()
		return served.Load(), refused.Load()
	}
}

// The provider's events come through at their first attempt while the site is full and
// robots are refused, and nobody gets more of the site by their path.
func TestAWebhookGetsInUnderASwarm(t *testing.T) {
	t.Parallel()
	c, s := startShopRecipe(t)
	s.fill(c)
	stop := sendRobots(c, "/", 40)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			sent, err := deliver(c, fmt.Sprintf(`{"id": "evt_%d"}`, i))
			check.That(t, err == nil && sent == 1, "event %d: sent %d times, %v; want it taken at once", i, sent, err)
		})
	}
	all.Wait()
	check.Equal(t, c.Must(system.Request{Address: "203.0.113.77", Target: "/webhooks/stripe"}).Status, 503, "for a GET of the webhook's path on a full site")
	a := c.Must(system.Request{Address: "203.0.113.78", Method: "POST", Target: "/webhooks/stripe", Body: `{"id": "evt_0"}`})
	check.That(t, a.Status == 400, "got %d for an event without signature, want the shop's 400", a.Status)
	check.Equal(t, c.Must(system.Request{Address: "203.0.113.79", Method: "POST", Target: "/checkout", Body: "a=b"}).Status, 503, "for another POST on a full site")
	system.Eventually(t, "many robots refused", func() bool {
		return c.Metric(t, "caddy_throttle_requests_total", `zone="php"`, `decision="refused"`) > 30
	})
	served, refused := stop()
	t.Logf("%d robots refused", refused)
	check.Equal(t, served, 0, "robots served on a full site")
	check.Equal(t, len(s.events), 20, "events")
	for kind, want := range map[string]int{"webhook": 1, "page": 3} {
		_, most := s.serving(kind)
		check.That(t, most == want, "got %d requests at once of the kind %s, want %d", most, kind, want)
	}
}

// Strangers who send to the webhook's path hold its one slot, and none of the site's.
func TestStrangersAtTheWebhookTakeItsOwnSlotOnly(t *testing.T) {
	t.Parallel()
	c, s := startShopRecipe(t, "wait 10s", "wait 1s")
	go func() {
		_, _ = c.Do(system.Request{Address: "203.0.113.1", Method: "POST", Target: "/webhooks/stripe?hold", Body: "{}"})
	}()
	system.Eventually(t, "a stranger in the slot", func() bool { now, _ := s.serving("webhook"); return now == 1 })
	var strangers sync.WaitGroup
	for i := range 10 {
		strangers.Go(func() {
			a, err := c.Do(system.Request{Address: system.NetworkAddress(i), Method: "POST", Target: "/webhooks/stripe", Body: "{}"})
			check.That(t, err == nil && a.Status/100 != 2, "stranger %d: got %d and %v, want it refused", i, a.Status, err)
		})
	}
	for i := range 3 {
		check.Equal(t, c.Must(system.Request{Address: fmt.Sprintf("192.0.2.%d", 20+i), Target: "/"}).Status, 200, "for a visitor")
	}
	check.Equal(t, c.Metric(t, "caddy_throttle_in_flight", `zone="php"`), 0, "slots of the site taken")
	strangers.Wait()
	delivered := make(chan string)
	go func() {
		sent, err := deliver(c, `{"id": "evt_late"}`)
		delivered <- fmt.Sprint(sent > 1, err)
	}()
	system.Eventually(t, "an event that was refused", func() bool {
		return c.Metric(t, "caddy_throttle_requests_total", `zone="payments"`, `decision="refused"`) > 10
	})
	s.release()
	check.Equal(t, <-delivered, "true <nil>", "sent again, want it delivered by a further attempt")
	_, most := s.serving("webhook")
	check.That(t, most == 1, "got %d webhooks at once, want 1", most)
}

// A monitor is answered by the upstream while the site is full, and takes no slot.
func TestAMonitorIsNeverRefusedOnAFullSite(t *testing.T) {
	t.Parallel()
	c, s := startShopRecipe(t)
	s.fill(c)
	stop := sendRobots(c, "/", 16)
	for i := range 20 {
		a := c.Must(system.Request{Address: "192.0.2.10", Target: "/"})
		check.That(t, a.Status == 200 && a.Body == "page\n", "check %d: got %d %q, want the shop's answer", i, a.Status, a.Body)
	}
	check.Equal(t, c.Metric(t, "caddy_throttle_in_flight", `zone="php"`), 3, "slots taken")
	system.Eventually(t, "robots refused", func() bool {
		return c.Metric(t, "caddy_throttle_requests_total", `zone="php"`, `decision="refused"`) > 10
	})
	served, refused := stop()
	check.That(t, served == 0 && refused != 0, "got %d robots served and %d refused, want none and some", served, refused)
	check.Equal(t, c.Must(system.Request{Address: "192.0.2.11", Target: "/"}).Status, 503, "for another address")
}

// Readers of the feed get in while the site is full, and a swarm of them keeps one worker
// busy and nobody out of the pages.
func TestAFeedHasASlotOfItsOwn(t *testing.T) {
	t.Parallel()
	c, s := startShopRecipe(t)
	s.fill(c)
	for _, feed := range []string{"/feed", "/feed/", "/feed/?orderby=modified", "/comments/feed/"} {
		check.Equal(t, c.Must(system.Request{Address: "192.0.2.30", Target: feed, Header: []string{"User-Agent", "Feedly/1.0"}}).Status, 200, "%s: on a full site", feed)
	}
	s.release()
	system.Eventually(t, "a free site", func() bool { now, _ := s.serving("page"); return now == 0 })
	go func() { _, _ = c.Do(system.Request{Address: "192.0.2.31", Target: "/feed/?hold"}) }()
	system.Eventually(t, "a busy feed", func() bool { now, _ := s.serving("feed"); return now == 1 })
	stop := sendRobots(c, "/feed/", 4)
	for i := range 20 {
		check.Equal(t, c.Must(system.Request{Address: fmt.Sprintf("192.0.2.%d", 40+i), Target: "/"}).Status, 200, "for a visitor while robots read the feed")
	}
	refusedOne := c.Must(system.Request{Address: "192.0.2.32", Target: "/feed/"})
	if refusedOne.Status != 503 || refusedOne.RetryAfter(t) < 5*time.Second {
		t.Errorf("got %d with Retry-After %q, want 503 that says when to come again", refusedOne.Status, refusedOne.Header.Get("Retry-After"))
	}
	stop()
	_, most := s.serving("feed")
	check.That(t, most == 1, "got %d feeds at once, want 1", most)
}

// startCache starts nginx with a cache, pages, that speaks HTTP/1.1 and HTTP/2 over TLS, and
// returns its URL.
func startCache(t *testing.T, location string) (url string) {
	t.Helper()
	port := servertest.FreePort(t)
	certificate, key, _ := strings.Cut(system.WriteCertificate(t), " ")
	system.StartNginx(t, "proxy_cache_path "+t.TempDir()+" keys_zone=pages:10m;",
		fmt.Sprintf("listen 127.0.0.1:%d ssl http2;\nssl_certificate %s;\nssl_certificate_key %s;\n", port, certificate, key)+location)
	system.Eventually(t, "nginx to listen", func() bool { return system.Listens("tcp", fmt.Sprintf("127.0.0.1:%d", port)) })
	return fmt.Sprintf("https://127.0.0.1:%d/", port)
}

// startBehindCache runs the recipe behind the page's cache in nginx.
func startBehindCache(t *testing.T, upstream string) (c *system.Caddy, url string) {
	t.Helper()
	port, admin := servertest.FreePort(t), fmt.Sprintf("127.0.0.1:%d", servertest.FreePort(t))
	file := system.SectionCode(t, "under-a-swarm.md", "# Under a swarm", "caddyfile")
	options := "{\n\tadmin " + admin + "\n\tpersist_config off\n\tgrace_period 2s\n\tdefault_bind 127.0.0.1\n" +
		"\tservers {\n\t\ttrusted_proxies static 127.0.0.1/32\n\t\ttrusted_proxies_strict\n\t}\n}\n"
	for _, pair := range [][2]string{
		{"example.com {", options + fmt.Sprintf("http://:%d {", port)},
		{"/srv/www", t.TempDir()},
		{"php_fastcgi unix//run/php/php8.4-fpm.sock\n\tfile_server", "reverse_proxy " + upstream},
	} {
		check.Assume(t, strings.Contains(file, pair[0]), "got no %q in the Caddyfile for a CDN, want one to change", pair[0])
		file = strings.Replace(file, pair[0], pair[1], 1)
	}
	c = system.StartCaddyIn(t, admin, t.TempDir(), system.WriteFile(t, "Caddyfile", file))
	location := strings.Replace(system.SectionCode(t, "under-a-swarm.md", "## Behind a CDN", "nginx"), "127.0.0.1:8080", fmt.Sprintf("127.0.0.1:%d", port), 1)
	return c, startCache(t, location)
}

// holdSlots sends requests for slots from one visitor. A cache sees another page in each.
func holdSlots(v *system.Visitor, url string, n int) (ended *sync.WaitGroup) {
	ended = new(sync.WaitGroup)
	for i := range n {
		ended.Go(func() { _, _ = v.Try("GET", fmt.Sprintf("%shold?%s-%d", url, v.Address, i)) })
	}
	return ended
}

// Clients behind a cache take turns one by one, and the cache keeps neither refusals nor
// passes.
func TestBehindACacheEachClientTakesItsOwnTurn(t *testing.T) {
	t.Parallel()
	system.EachProtocol(t, func(t *testing.T, protocol string) {
		u := startHeldUpstream(t)
		c, url := startBehindCache(t, u.Address)
		greedy := system.NewVisitor(t, protocol)
		held := holdSlots(greedy, url, 4) // never the last one of the five
		system.Eventually(t, "four slots of one client", func() bool { return u.holds.Load() == 4 })
		check.Equal(t, system.NewVisitor(t, protocol).Get(t, url, system.Opens("")...).Status, 200, "for another client, want the last slot")
		fifth := holdSlots(system.NewVisitor(t, protocol), url, 1)
		system.Eventually(t, "a full site", func() bool { return u.holds.Load() == 5 })
		passes := make(map[string]bool)
		for range 4 {
			a := system.NewVisitor(t, protocol).Get(t, url+"page", system.Opens("")...)
			if p := passOf(a); a.Status != 503 || p == "" || passes[p] || a.Header.Get("Cache-Control") != "no-store, private" {
				t.Errorf("got %d, the pass %q and Cache-Control %q, want a refusal of its own that no cache keeps", a.Status, p, a.Header.Get("Cache-Control"))
			} else {
				passes[p] = true
			}
		}
		u.release()
		held.Wait()
		fifth.Wait()
		check.Equal(t, system.NewVisitor(t, protocol).Get(t, url+"page", system.Opens("")...).Status, 200, "for the page that was refused before")
		lines := c.LogLines("trusted_proxies")
		check.That(t, len(lines) == 0, "got the warnings %q, want none", lines)
	})
}
