package tests

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// A person has a browser with cookies, a cache and an address of its own.
type person struct {
	tab
	site    *trial
	address string
}

// startPeople runs the browser of the people of a test.
func (s *trial) startPeople() context.Context {
	s.t.Helper()
	return startBrowser(s.t, chromedp.IgnoreCertErrors)
}

func (s *trial) person(browser context.Context, address string) person {
	s.t.Helper()
	ctx, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	s.t.Cleanup(end)
	ctx, stop := context.WithTimeout(ctx, 15*time.Minute)
	s.t.Cleanup(stop)
	p := person{tab{ctx, s.t}, s, address}
	call(p.tab, network.Enable, network.EnableParams{})
	call(p.tab, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{
		"X-Forwarded-For": address, "Accept-Language": "en",
	}})
	call(p.tab, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1280, Height: 800, DeviceScaleFactor: 1})
	return p
}

// visit opens a page of the site, and waits until it has loaded.
func (p person) visit(target string) {
	p.t.Helper()
	p.open(p.site.url + target)
}

// await waits until an expression of JavaScript is true, over page loads.
func (p person) await(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; {
		got, err := chromedp.Run(p, chromedp.Evaluate[bool]("!!("+expression+")"))
		if err == nil && got {
			return
		}
		if time.Now().After(deadline) {
			p.screenshot("failed")
			p.t.Fatalf("got %v, %v at %s, want %s", got, err, eval[string](p.tab, "location.href + '\\n' + document.body.innerText.slice(0, 2000)"), expression)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// evalSoon returns what a promise of JavaScript is resolved with.
func evalSoon[T any](p person, expression string) T {
	p.t.Helper()
	value, err := chromedp.Run(p, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("evaluating %s: %v", expression, err)
	}
	return value
}

// longRun reports whether tests may take minutes.
func longRun() bool { return os.Getenv("TEST_LONG") == "1" }

// file writes a file for uploads, and returns its path.
func (s *trial) file(name string, content []byte) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}
