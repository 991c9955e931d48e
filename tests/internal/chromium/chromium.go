// Package chromium has tests look at pages as people do.
package chromium

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// StartBrowser runs Chromium until the test ends.
func StartBrowser(t *testing.T, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	binary := system.Need(t, "chromium")
	ctx, end := chromedp.NewExecAllocator(context.Background(), slices.Concat(more, []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(binary), chromedp.UserDataDir(t.TempDir()), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(system.StartTime),
	})...)
	t.Cleanup(end)
	ctx, end = chromedp.NewContext(ctx)
	t.Cleanup(end)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("starting %s: %v", binary, err)
	}
	return ctx
}

// A Tab is one of the browser, and fails the test if a page in it has an error.
type Tab struct {
	context.Context
	T *testing.T
}

// NewTab opens a tab of somebody with this language, these colours and a window of
// this size.
func NewTab(t *testing.T, browser context.Context, language, scheme string, width, height int64) Tab {
	t.Helper()
	ctx, end := chromedp.NewContext(browser)
	t.Cleanup(end)
	ctx, stop := context.WithTimeout(ctx, 10*time.Minute)
	t.Cleanup(stop)
	b := Tab{ctx, t}
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
	Call(b, network.Enable, network.EnableParams{})
	b.Speak(language)
	Call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 2, Mobile: width < 500})
	Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	return b
}

// Call runs a command of the browser.
func Call[P, R any](b Tab, command cdp.Command[P, R], parameters P) {
	b.T.Helper()
	if _, err := chromedp.Call(b, command, parameters); err != nil {
		b.T.Fatalf("in the browser: %s: %v", command.Method, err)
	}
}

// Speak asks for pages in a language from now on.
func (b Tab) Speak(language string) {
	b.T.Helper()
	Call(b, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Accept-Language": language}})
}

// Open opens a page.
func (b Tab) Open(url string) {
	b.T.Helper()
	if err := chromedp.Do(b, chromedp.Navigate(url)); err != nil {
		b.T.Fatalf("opening %s: %v", url, err)
	}
}

// Eval returns the value of an expression of JavaScript.
func Eval[T any](b Tab, expression string) T {
	b.T.Helper()
	value, err := chromedp.Run(b, chromedp.Evaluate[T](expression))
	if err != nil {
		b.T.Fatalf("evaluating %s: %v", expression, err)
	}
	return value
}

// Run runs a script in the page.
func (b Tab) Run(script string) {
	b.T.Helper()
	Eval[chromedp.Void](b, script)
}

// textOf is an expression.
func textOf(query string) string {
	return fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", query)
}

// Text returns the text of what a query finds, or "".
func (b Tab) Text(query string) string {
	b.T.Helper()
	return Eval[string](b, textOf(query))
}

// Comes waits for a text, over reloads.
func (b Tab) Comes(query, want string) {
	b.T.Helper()
	system.Eventually(b.T, want, func() bool {
		got, err := chromedp.Run(b, chromedp.Evaluate[string](textOf(query)))
		return err == nil && got == want
	})
}

// When waits for an expression of JavaScript to be true.
func (b Tab) When(what, expression string) {
	b.T.Helper()
	system.Eventually(b.T, what, func() bool {
		got, err := chromedp.Run(b, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		return err == nil && got
	})
}

// Click clicks on what a query finds.
func (b Tab) Click(query string) {
	b.T.Helper()
	b.When(query, fmt.Sprintf("document.querySelector(%q)?.checkVisibility() && !document.querySelector(%[1]q).disabled", query))
	b.Run(fmt.Sprintf("document.querySelector(%q).click()", query))
}

// Set fills a field, as somebody who types does.
func (b Tab) Set(query string, value any) {
	b.T.Helper()
	property := "value"
	if _, ticked := value.(bool); ticked {
		property = "checked"
	}
	text, _ := json.Marshal(value)
	b.Run(fmt.Sprintf(`{ const field = document.querySelector(%q); field.%s = %s; for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, {bubbles: true})) }`, query, property, text))
}

// Press presses keys, such as kb.Tab.
func (b Tab) Press(keys string) {
	b.T.Helper()
	if err := chromedp.Do(b, chromedp.KeyEvent(keys)); err != nil {
		b.T.Fatalf("pressing %q: %v", keys, err)
	}
}

// TabTo presses the tab key until something that a query finds has the focus, and shows
// it.
func (b Tab) TabTo(query string) {
	b.T.Helper()
	for range 500 { // new rows may take the focus back
		b.Press(kb.Tab)
		if Eval[bool](b, fmt.Sprintf("document.activeElement.matches(%q)", query)) {
			if Eval[string](b, "getComputedStyle(document.activeElement).outlineStyle") == "none" {
				b.T.Errorf("%s shows no focus", query)
			}
			return
		}
	}
	b.T.Fatalf("got to no %s in 500 presses of the tab key", query)
}

// Screenshot keeps a picture to look at, in the folder TEST_SCREENSHOTS.
func (b Tab) Screenshot(name string) {
	b.T.Helper()
	folder := os.Getenv("TEST_SCREENSHOTS")
	if folder == "" {
		return
	}
	picture, err := chromedp.Run(b, chromedp.CaptureScreenshot())
	if err != nil {
		b.T.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o644); err != nil {
		b.T.Fatal(err)
	}
}

const Phone, Desktop = 360, 1280

var number = regexp.MustCompile(`[0-9.]+`)

// Contrast returns WCAG's contrast ratio of two colours, as getComputedStyle writes
// them.
func Contrast(t *testing.T, a, b string) float64 {
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
