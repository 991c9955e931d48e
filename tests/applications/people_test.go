package applications

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// A person has a browser with cookies, a cache and an address of its own.
type person struct {
	chromium.Tab
	site    *system.Trial
	address string
}

// startPeople runs the browser of the people of a test.
func startPeople(s *system.Trial) context.Context {
	s.T.Helper()
	return chromium.StartBrowser(s.T, chromedp.IgnoreCertErrors)
}

func newPerson(s *system.Trial, browser context.Context, address string) person {
	s.T.Helper()
	ctx, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	s.T.Cleanup(end)
	ctx, stop := context.WithTimeout(ctx, 15*time.Minute)
	s.T.Cleanup(stop)
	p := person{chromium.Tab{Context: ctx, T: s.T}, s, address}
	chromium.Call(p.Tab, network.Enable, network.EnableParams{})
	chromium.Call(p.Tab, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{
		"X-Forwarded-For": address, "Accept-Language": "en",
	}})
	chromium.Call(p.Tab, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1280, Height: 800, DeviceScaleFactor: 1})
	return p
}

// visit opens a page of the site, and waits until it has loaded.
func (p person) visit(target string) {
	p.T.Helper()
	p.Open(p.site.URL + target)
}

// await waits until an expression of JavaScript is true, over page loads.
func (p person) await(expression string) {
	p.T.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; {
		got, err := chromedp.Run(p, chromedp.Evaluate[bool]("!!("+expression+")"))
		if err == nil && got {
			return
		}
		if time.Now().After(deadline) {
			p.Screenshot("failed")
			p.T.Fatalf("got %v, %v at %s, want %s", got, err, chromium.Eval[string](p.Tab, "location.href + '\\n' + document.body.innerText.slice(0, 2000)"), expression)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// evalSoon returns what a promise of JavaScript is resolved with.
func evalSoon[T any](p person, expression string) T {
	p.T.Helper()
	value, err := chromedp.Run(p, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	check.OK(p.T, err, "evaluating %s", expression)
	return value
}

// writeUpload writes a file for uploads, and returns its path.
func writeUpload(s *system.Trial, name string, content []byte) string {
	s.T.Helper()
	path := filepath.Join(s.T.TempDir(), name)
	check.OK(s.T, os.WriteFile(path, content, 0o644))
	return path
}
