package requests

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// A busySite has zones in which the second request waits for as long as its path
// says, and counts the requests that reach it.
type busySite struct {
	url  string
	mu   sync.Mutex
	hits map[string]int
}

var busyWaits = []int{1, 2, 4, 5, 11, 21, 22, 26, 111, 21 * 60, 22 * 60, 3 * 3600, 21 * 3600}

func startBusySite(t *testing.T) *busySite {
	t.Helper()
	site := &busySite{hits: make(map[string]int)}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site.mu.Lock()
		site.hits[r.Method+" "+r.URL.RequestURI()]++
		site.mu.Unlock()
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!DOCTYPE html><title>The shop</title><h1>The shop</h1><link rel="icon" href="data:,"><form method="post"><button>send</button></form>`)
	}))
	t.Cleanup(upstream.Close)
	var zones strings.Builder
	for _, wait := range busyWaits {
		fmt.Fprintf(&zones, "zone wait%d {\nmatch path /wait/%[1]d\nkey query who\nlimit 1 1/%[1]ds\n}\n", wait)
	}
	port := servertest.FreePort(t)
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf(`
http://:%d {
	@policy query policy=site
	header @policy {
		Content-Security-Policy "default-src 'self'"
		-Server
	}
	throttle {
		%s
		zone denied {
			match path /denied
			key query who unlisted refuse
			limit 1 1/h
			override * deny
		}
		zone branded {
			match path /branded
			key query who
			limit 1 1/40s
			refusal {
				page {
					title "مكتبة المدينة"
					accent "#b3261e"
					text "نحن مكتبة صغيرة. من فضلك انتظر قليلاً."
				}
			}
		}
		zone long {
			match path /long
			key query who
			limit 1 1/h
			refusal {
				page {
					title "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
					accent 808080
					text "We are a small museum.
					Please be gentle."
				}
			}
		}
	}
	reverse_proxy %s
}`, port, zones.String(), upstream.Listener.Addr())})
	site.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	return site
}

func (s *busySite) count(request string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hits[request]
}

// fill makes the next request of a path be refused, and returns its URL.
func (s *busySite) fill(t *testing.T, path string) string {
	t.Helper()
	check.Need(t, system.NewVisitor(t, "h1").Get(t, s.url+path).Status, 200, "%s, want 200 for the first request", path)
	return s.url + path
}

var timer = regexp.MustCompile(`data-left="(\d+)">([^<]+)</b>`)

// left returns how many seconds the page of a zone says are left, and how it says so in a language.
func (s *busySite) left(t *testing.T, wait int, language string) (seconds, words string) {
	t.Helper()
	for n := range system.Stalls { // each may be as long as a short wait
		v, url := system.NewVisitor(t, "h1"), fmt.Sprintf("%s/wait/%d?who=%s%d", s.url, wait, language, n)
		v.Get(t, url)
		if found := timer.FindStringSubmatch(v.Get(t, url, append(system.Opens(""), "Accept-Language", language)...).Body); found != nil {
			return found[1], found[2]
		}
	}
	t.Fatalf("got no page that says how long to wait, of %d s, in %s", wait, language)
	return "", ""
}

// servedLanguages are those that the page is in.
var servedLanguages = []string{"en", "es", "de", "ja", "fr", "pt", "ru", "it", "nl", "pl"}

// TestTheRefusalPageInABrowser has people look at it.
func TestTheRefusalPageInABrowser(t *testing.T) {
	t.Parallel()
	browser := chromium.StartBrowser(t)
	site := startBusySite(t)

	t.Run("it counts down and reloads when it is due", func(t *testing.T) {
		b := chromium.NewTab(t, browser, "en", "light", chromium.Desktop, 800)
		const path = "/wait/11?who=reload"
		b.Open(site.fill(t, path))
		title, lang := b.Text("h1"), chromium.Eval[string](b, "document.documentElement.lang")
		check.That(t, title == "One moment, please" && lang == "en", "got the title %q in %q", title, lang)
		check.Equal(t, b.Text("[role=status]"), "This page will then reload by itself.")
		b.Run(`window.shown = []; setInterval(() => shown.push(document.querySelector("b").innerText), 100)`)
		system.Eventually(t, "a second less, and another", func() bool {
			shown, err := chromedp.Run(b, chromedp.Evaluate[[]string]("[...new Set(shown)].filter((text) => /^\\d+ seconds?$/.test(text))"))
			return err == nil && len(shown) >= 2
		})
		check.Equal(t, site.count("GET "+path), 1, "requests at the site, want only the first one before the page is due")
		system.Eventually(t, "the site", func() bool { return site.count("GET "+path) == 2 })
		b.Comes("h1", "The shop")
	})

	t.Run("it does not reload after a post", func(t *testing.T) {
		b := chromium.NewTab(t, browser, "en", "dark", chromium.Phone, 640)
		const path = "/wait/11?who=post"
		b.Open(site.url + path)
		b.Run(`document.querySelector("button").click()`)
		b.Comes("h1", "One moment, please")
		check.Equal(t, b.Text("[role=status]"), "Your input has not been processed. After the wait, please go back and send it again.")
		b.Screenshot("phone-dark-post")
		b.Run(`window.reloads = 0; navigation.addEventListener("navigate", () => reloads++)`)
		b.Comes("[role=status]", "You can now go back and send it again.")
		check.Equal(t, chromium.Eval[int](b, "reloads"), 0, "after the wait: reloads, want the page to stay")
		check.Equal(t, site.count("POST "+path), 0, "posts at the site")
		check.That(t, chromium.Eval[bool](b, `document.querySelector("#wait").hidden`), "got %q after the wait, want none any more", b.Text("#wait"))
		// The person may, after the browser has asked.
		check.OK(t, chromedp.Do(b, chromedp.Reload()))
		check.Equal(t, site.count("POST "+path), 1, "posts at the site after a reload by hand")
	})

	t.Run("it knows the time after a sleep", func(t *testing.T) {
		b := chromium.NewTab(t, browser, "de", "light", chromium.Desktop, 800)
		const path = "/wait/75600?who=sleep"
		b.Open(site.fill(t, path))
		check.Equal(t, b.Text("b"), "21 Stunden")
		b.Run("{ const now = Date.now; Date.now = () => now() + 20.5 * 3600e3 }")
		b.Comes("b", "30 Minuten")
		b.Run("{ const now = Date.now; Date.now = () => now() + 3600e3 }")
		b.Comes("b", "21 Stunden") // it is refused again
	})

	t.Run("it does not reload in the background", func(t *testing.T) {
		b := chromium.NewTab(t, browser, "en", "light", chromium.Desktop, 800)
		const path = "/wait/11?who=hidden"
		b.Open(site.fill(t, path))
		b.Run(`Object.defineProperty(document, "visibilityState", {value: "hidden", configurable: true})`)
		b.Comes("b", "0 seconds")
		b.Run("window.looks = 0; { const now = Date.now; Date.now = () => (looks++, now()) }")
		b.When("two more looks at the clock", "looks > 1")
		check.Equal(t, site.count("GET "+path), 1, "requests at the site, want 1 while nobody looks")
		b.Run(`delete document.visibilityState; document.dispatchEvent(new Event("visibilitychange"))`)
		system.Eventually(t, "the site", func() bool { return site.count("GET "+path) == 2 })
	})

	t.Run("it reloads without a script", func(t *testing.T) {
		b := chromium.NewTab(t, browser, "en", "light", chromium.Desktop, 800)
		const path = "/wait/2?who=scriptless"
		chromium.Call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		b.Open(site.fill(t, path))
		system.Eventually(t, "the site", func() bool { return site.count("GET "+path) == 2 })
	})

	t.Run("it is plain text under a policy that forbids its style and script", func(t *testing.T) {
		ctx, end := chromedp.NewContext(browser) // whose console tells of the policy
		defer end()
		b := chromium.Tab{Context: ctx, T: t}
		b.Open(site.fill(t, "/wait/75600?who=policy&policy=site"))
		got, want := chromium.Eval[string](b, "document.body.innerText"), regexp.MustCompile(
			`^One moment, please\s+This site is receiving too many requests right now\.\s+Please wait 21 hours\.\s+`)
		check.That(t, want.MatchString(got) && !strings.Contains(got, "reload"), "got %q, want the reason, the wait, and no promise", got)
		check.Equal(t, chromium.Eval[string](b, "getComputedStyle(document.body).display"), "block", "the style that is applied")
	})

	t.Run("a refusal that waiting cannot fix has no countdown", func(t *testing.T) {
		b := chromium.NewTab(t, browser, "fr", "light", chromium.Phone, 640)
		b.Open(site.url + "/denied?who=nobody")
		got, _, _ := strings.Cut(b.Text("main"), "Code d’assistance")
		check.That(t, !strings.ContainsAny(got, "0123456789") && strings.Contains(got, "n’y changera rien"), "got %q", got)
		b.Screenshot("phone-light-denied")
	})

	// The script uses the browser's plural rules, the server its own.
	t.Run("the script and the server say the same", func(t *testing.T) {
		b := chromium.NewTab(t, browser, "en", "light", chromium.Desktop, 800)
		chromium.Call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: "Date.now = () => 0"})
		for _, language := range servedLanguages {
			b.Speak(language)
			b.Open(site.fill(t, "/wait/75600?who="+language))
			for _, wait := range busyWaits {
				left, want := site.left(t, wait, language)
				got := chromium.Eval[string](b, fmt.Sprintf(`{
					const timer = document.querySelector("b");
					Date.now = () => (timer.dataset.left - %s) * 1e3;
					document.dispatchEvent(new Event("visibilitychange"));
					timer.textContent
				}`, left))
				check.Equal(t, got, want, "%s, %s seconds", language, left)
			}
		}
	})

	t.Run("it is readable on a phone in each language", func(t *testing.T) {
		for _, scheme := range []string{"light", "dark"} {
			b := chromium.NewTab(t, browser, "de", scheme, chromium.Phone, 640)
			for _, zone := range []string{"branded", "long"} {
				b.Open(site.fill(t, "/"+zone+"?who="+scheme))
				checkReadable(b)
				b.Screenshot("phone-" + scheme + "-" + zone)
			}
			for i, language := range servedLanguages {
				b.Speak(language)
				b.Open(site.fill(t, fmt.Sprintf("/wait/26?who=%s-%s", language, scheme)))
				checkReadable(b)
				b.Screenshot(fmt.Sprintf("phone-%s-%d-%s", scheme, i, language))
			}
		}
		b := chromium.NewTab(t, browser, "en", "light", chromium.Desktop, 800)
		b.Open(site.fill(t, "/wait/26?who=desktop"))
		checkReadable(b)
		b.Comes("b", "20 seconds")
		b.Screenshot("desktop-light")
	})
}

// checkReadable sees to it that nothing is wider than the screen, and that each
// text stands out from what is behind it, as WCAG 2 demands.
func checkReadable(b chromium.Tab) {
	b.T.Helper()
	if wide := chromium.Eval[int](b, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
		b.T.Errorf("%s: %d pixels too wide", chromium.Eval[string](b, "location.href"), wide)
	}
	colours := chromium.Eval[[]string](b, `[getComputedStyle(document.querySelector("main")).backgroundColor,
		...["h1", "p", "b", "[role=status]"].map((query) => getComputedStyle(document.querySelector(query)).color)]`)
	for _, colour := range colours[1:] {
		if contrast := chromium.Contrast(b.T, colour, colours[0]); contrast < 4.5 {
			b.T.Errorf("%s on %s: got a contrast of %.1f, want 4.5", colour, colours[0], contrast)
		}
	}
}
