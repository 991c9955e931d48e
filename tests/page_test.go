package tests

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// startBrowser runs Chromium until the test ends.
func startBrowser(t *testing.T, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	binary := need(t, "chromium")
	ctx, end := chromedp.NewExecAllocator(context.Background(), slices.Concat(more, []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(binary), chromedp.UserDataDir(t.TempDir()), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(startTime),
	})...)
	t.Cleanup(end)
	ctx, end = chromedp.NewContext(ctx)
	t.Cleanup(end)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("starting %s: %v", binary, err)
	}
	return ctx
}

// A tab is one of the browser, and fails the test if a page in it has an error.
type tab struct {
	context.Context
	t *testing.T
}

// newTab opens a tab of somebody with this language, these colours and a window of
// this size.
func newTab(t *testing.T, browser context.Context, language, scheme string, width, height int64) tab {
	t.Helper()
	ctx, end := chromedp.NewContext(browser)
	t.Cleanup(end)
	ctx, stop := context.WithTimeout(ctx, 10*time.Minute)
	t.Cleanup(stop)
	b := tab{ctx, t}
	messages := chromedp.Console(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Source != "network" { // that reports each status 429
				t.Errorf("the page says in the console: %v", m)
			}
		}
	})
	t.Cleanup(listening.Wait)
	t.Cleanup(stop)
	call(b, network.Enable, network.EnableParams{})
	call(b, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Accept-Language": language}})
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 2, Mobile: width < 500})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	return b
}

func call[P, R any](b tab, command cdp.Command[P, R], parameters P) {
	b.t.Helper()
	if _, err := chromedp.Call(b, command, parameters); err != nil {
		b.t.Fatalf("in the browser: %s: %v", command.Method, err)
	}
}

func (b tab) open(url string) {
	b.t.Helper()
	if err := chromedp.Do(b, chromedp.Navigate(url)); err != nil {
		b.t.Fatalf("opening %s: %v", url, err)
	}
}

// eval returns the value of an expression of JavaScript.
func eval[T any](b tab, expression string) T {
	b.t.Helper()
	value, err := chromedp.Run(b, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("evaluating %s: %v", expression, err)
	}
	return value
}

func (b tab) run(script string) {
	b.t.Helper()
	eval[chromedp.Void](b, script)
}

// textOf is an expression.
func textOf(query string) string {
	return fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", query)
}

func (b tab) text(query string) string {
	b.t.Helper()
	return eval[string](b, textOf(query))
}

// comes waits for a text, over reloads.
func (b tab) comes(query, want string) {
	b.t.Helper()
	eventually(b.t, want, func() bool {
		got, err := chromedp.Run(b, chromedp.Evaluate[string](textOf(query)))
		return err == nil && got == want
	})
}

// screenshot keeps a picture to look at, in the folder TEST_SCREENSHOTS.
func (b tab) screenshot(name string) {
	b.t.Helper()
	folder := os.Getenv("TEST_SCREENSHOTS")
	if folder == "" {
		return
	}
	picture, err := chromedp.Run(b, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

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
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
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
					accent gray
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
	if a := newVisitor(t, "h1").get(t, s.url+path); a.status != 200 {
		t.Fatalf("%s: got %d, want 200 for the first request", path, a.status)
	}
	return s.url + path
}

const phone, desktop = 360, 1280

// servedLanguages are those that the page is in.
var servedLanguages = []string{"en", "es", "de", "ja", "fr", "pt", "ru", "it", "nl", "pl"}

// TestTheRefusalPageInABrowser has people look at it.
func TestTheRefusalPageInABrowser(t *testing.T) {
	t.Parallel()
	browser := startBrowser(t)
	site := startBusySite(t)

	t.Run("it counts down and reloads when it is due", func(t *testing.T) {
		b := newTab(t, browser, "en", "light", desktop, 800)
		const path = "/wait/11?who=reload"
		b.open(site.fill(t, path))
		if title, lang := b.text("h1"), eval[string](b, "document.documentElement.lang"); title != "One moment, please" || lang != "en" {
			t.Errorf("got the title %q in %q", title, lang)
		}
		if got := b.text("[role=status]"); got != "This page will then reload by itself." {
			t.Errorf("got %q", got)
		}
		b.run(`window.shown = []; setInterval(() => shown.push(document.querySelector("b").innerText), 100)`)
		eventually(t, "a second less, and another", func() bool {
			shown, err := chromedp.Run(b, chromedp.Evaluate[[]string]("[...new Set(shown)].filter((text) => /^\\d+ seconds?$/.test(text))"))
			return err == nil && len(shown) >= 2
		})
		if n := site.count("GET " + path); n != 1 {
			t.Errorf("got %d requests at the site, want only the first one before the page is due", n)
		}
		eventually(t, "the site", func() bool { return site.count("GET "+path) == 2 })
		b.comes("h1", "The shop")
	})

	t.Run("it does not reload after a post", func(t *testing.T) {
		b := newTab(t, browser, "en", "dark", phone, 640)
		const path = "/wait/5?who=post"
		b.open(site.url + path)
		time.Sleep(5 * time.Second) // until the bucket has room for one
		site.fill(t, path)
		b.run(`document.querySelector("button").click()`)
		b.comes("h1", "One moment, please")
		if got := b.text("[role=status]"); got != "Your input has not been processed. After the wait, please go back and send it again." {
			t.Errorf("got %q", got)
		}
		b.screenshot("phone-dark-post")
		b.comes("[role=status]", "You can now go back and send it again.")
		time.Sleep(1500 * time.Millisecond)
		if got := b.text("h1"); got != "One moment, please" {
			t.Errorf("got the title %q after the wait, want the page to stay", got)
		}
		if n := site.count("POST " + path); n != 0 {
			t.Errorf("got %d posts at the site, want none", n)
		}
		if !eval[bool](b, `document.querySelector("#wait").hidden`) {
			t.Errorf("got %q after the wait, want none any more", b.text("#wait"))
		}
		// The person may, after the browser has asked.
		if err := chromedp.Do(b, chromedp.Reload()); err != nil {
			t.Fatal(err)
		}
		if n := site.count("POST " + path); n != 1 {
			t.Errorf("got %d posts at the site after a reload by hand, want 1", n)
		}
	})

	t.Run("it knows the time after a sleep", func(t *testing.T) {
		b := newTab(t, browser, "de", "light", desktop, 800)
		const path = "/wait/75600?who=sleep"
		b.open(site.fill(t, path))
		if got := b.text("b"); got != "21 Stunden" {
			t.Errorf("got %q, want 21 Stunden", got)
		}
		b.run("{ const now = Date.now; Date.now = () => now() + 20.5 * 3600e3 }")
		b.comes("b", "30 Minuten")
		b.run("{ const now = Date.now; Date.now = () => now() + 3600e3 }")
		b.comes("b", "21 Stunden") // it is refused again
	})

	t.Run("it does not reload in the background", func(t *testing.T) {
		b := newTab(t, browser, "en", "light", desktop, 800)
		const path = "/wait/5?who=hidden"
		b.open(site.fill(t, path))
		b.run(`Object.defineProperty(document, "visibilityState", {value: "hidden", configurable: true})`)
		b.comes("b", "0 seconds")
		time.Sleep(1500 * time.Millisecond)
		if n := site.count("GET " + path); n != 1 {
			t.Errorf("got %d requests at the site, want 1 while nobody looks", n)
		}
		b.run(`delete document.visibilityState; document.dispatchEvent(new Event("visibilitychange"))`)
		eventually(t, "the site", func() bool { return site.count("GET "+path) == 2 })
	})

	t.Run("it reloads without a script", func(t *testing.T) {
		b := newTab(t, browser, "en", "light", desktop, 800)
		const path = "/wait/2?who=scriptless"
		call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		b.open(site.fill(t, path))
		eventually(t, "the site", func() bool { return site.count("GET "+path) == 2 })
	})

	t.Run("it is plain text under a policy that forbids its style and script", func(t *testing.T) {
		ctx, end := chromedp.NewContext(browser) // whose console tells of the policy
		defer end()
		b := tab{ctx, t}
		b.open(site.fill(t, "/wait/75600?who=policy&policy=site"))
		if got, want := eval[string](b, "document.body.innerText"), regexp.MustCompile(
			`^One moment, please\s+This site is receiving too many requests right now\.\s+Please wait 21 hours\.\s+`); !want.MatchString(got) || strings.Contains(got, "reload") {
			t.Errorf("got %q, want the reason, the wait, and no promise", got)
		}
		if got := eval[string](b, "getComputedStyle(document.body).display"); got != "block" {
			t.Errorf("got the style %q applied", got)
		}
	})

	t.Run("a refusal that waiting cannot fix has no countdown", func(t *testing.T) {
		b := newTab(t, browser, "fr", "light", phone, 640)
		b.open(site.url + "/denied?who=nobody")
		if got, _, _ := strings.Cut(b.text("main"), "Code d’assistance"); strings.ContainsAny(got, "0123456789") || !strings.Contains(got, "n’y changera rien") {
			t.Errorf("got %q", got)
		}
		b.screenshot("phone-light-denied")
	})

	// The script uses the browser's plural rules, the server its own.
	t.Run("the script and the server say the same", func(t *testing.T) {
		b := newTab(t, browser, "en", "light", desktop, 800)
		call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `
			Date.now = () => 0;
			window.said = [];
			new MutationObserver((all) => {
				for (const { target, addedNodes } of all) if (target.nodeName === "B") for (const node of addedNodes) said.push(node.data);
			}).observe(document, {childList: true, subtree: true})`})
		for _, language := range servedLanguages {
			call(b, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Accept-Language": language}})
			for _, wait := range busyWaits[1:] {
				// A stall of the machine may be as long as a short wait.
				for n := range stalls {
					b.open(site.fill(t, fmt.Sprintf("/wait/%d?who=%s%d", wait, language, n)))
					if eval[bool](b, "document.querySelector('progress') !== null") {
						break
					}
				}
				// Nothing is added to the timer but what the server wrote.
				if said := eval[[]string](b, "said"); len(said) > 1 {
					t.Errorf("%s: got %q from the server and the script", language, said)
				}
				if bar := eval[bool](b, "document.querySelector('progress').hidden"); bar {
					t.Errorf("%s: the script did not run", language)
				}
			}
		}
	})

	t.Run("it is readable on a phone in each language", func(t *testing.T) {
		for i, language := range servedLanguages {
			for _, scheme := range []string{"light", "dark"} {
				b := newTab(t, browser, language, scheme, phone, 640)
				b.open(site.fill(t, fmt.Sprintf("/wait/26?who=%s-%s", language, scheme)))
				checkReadable(b)
				b.screenshot(fmt.Sprintf("phone-%s-%d-%s", scheme, i, language))
			}
		}
		for _, zone := range []string{"branded", "long"} {
			for _, scheme := range []string{"light", "dark"} {
				b := newTab(t, browser, "de", scheme, phone, 640)
				b.open(site.fill(t, "/"+zone+"?who="+scheme))
				checkReadable(b)
				b.screenshot("phone-" + scheme + "-" + zone)
			}
		}
		b := newTab(t, browser, "en", "light", desktop, 800)
		b.open(site.fill(t, "/wait/26?who=desktop"))
		checkReadable(b)
		b.comes("b", "20 seconds")
		b.screenshot("desktop-light")
	})
}

// checkReadable sees to it that nothing is wider than the screen, and that each
// text stands out from what is behind it, as WCAG 2 demands.
func checkReadable(b tab) {
	b.t.Helper()
	if wide := eval[int](b, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
		b.t.Errorf("%s: %d pixels too wide", eval[string](b, "location.href"), wide)
	}
	colours := eval[[]string](b, `[getComputedStyle(document.querySelector("main")).backgroundColor,
		...["h1", "p", "b", "[role=status]"].map((query) => getComputedStyle(document.querySelector(query)).color)]`)
	for _, colour := range colours[1:] {
		if contrast := contrast(b.t, colour, colours[0]); contrast < 4.5 {
			b.t.Errorf("%s on %s: got a contrast of %.1f, want 4.5", colour, colours[0], contrast)
		}
	}
}

var number = regexp.MustCompile(`[0-9.]+`)

// contrast returns WCAG's contrast ratio of two colours, as getComputedStyle writes
// them.
func contrast(t *testing.T, a, b string) float64 {
	luminance := func(colour string) (sum float64) {
		for i, digits := range number.FindAllString(colour, 3) {
			c, err := strconv.ParseFloat(digits, 64)
			if err != nil {
				t.Fatal(err)
			}
			if c /= 255; c <= 0.04045 {
				c /= 12.92
			} else {
				c = math.Pow((c+0.055)/1.055, 2.4)
			}
			sum += c * []float64{0.2126, 0.7152, 0.0722}[i]
		}
		return sum
	}
	both := []float64{luminance(a), luminance(b)}
	slices.Sort(both)
	return (both[1] + 0.05) / (both[0] + 0.05)
}
