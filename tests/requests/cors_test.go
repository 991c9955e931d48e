package requests

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/chromium"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
	"github.com/chromedp/chromedp"
)

// TestCORS: a page of another origin calls the API of the recipe, and its script reads the refusal.
func TestCORS(t *testing.T) {
	t.Parallel()
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>page</title><link rel=icon href=data:,>"))
	}))
	defer pages.Close()
	var calls, others atomic.Int64
	up := system.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*") // as applications do
		if r.Method == http.MethodPut && r.Header.Get("X-Api-Key") == "k" {
			calls.Add(1)
		} else {
			others.Add(1)
		}
	})
	s := system.StartSection(t, "recipes/apis.md", "### Calls from browsers",
		"https://app.example.com", pages.URL, "localhost:3000", up.Address, "limit 20 20/m", "limit 3 1/h")
	b := chromium.NewTab(t, chromium.StartBrowser(t, chromedp.IgnoreCertErrors), "en", "light", 800, 600)
	b.Open(pages.URL)
	b.Run(fmt.Sprintf(`(async () => {
		const seen = [];
		for (let i = 0; i < 4; i++) {
			try {
				const a = await fetch(%q, {method: "PUT", headers: {"X-Api-Key": "k", "Content-Type": "application/json", "Accept": "application/json"}, body: "{}"});
				seen.push([a.status, a.headers.get("Retry-After"), a.headers.get("RateLimit"), await a.text()].join("|"));
			} catch (e) {
				seen.push(String(e));
			}
		}
		window.seen = seen;
	})()`, s.URL+"/v1/things"))
	b.When("the calls", "window.seen")
	seen := chromium.Eval[[]string](b, "window.seen")
	if calls.Load() != 3 || others.Load() != 0 {
		t.Errorf("got %d calls and %d other requests at the API, want 3 and no preflight", calls.Load(), others.Load())
	}
	for i, want := range []string{`200||"keys";r=2;`, `200||"keys";r=1;`, `200||"keys";r=0;`, `429|10`} {
		if !strings.HasPrefix(seen[i], want) {
			t.Errorf("call %d: got %q, want %s", i+1, seen[i], want)
		}
	}
	if !strings.Contains(seen[3], "support_code") || !strings.Contains(seen[3], `|"keys";r=0;`) {
		t.Errorf("got the refusal %q, want its code and what remains", seen[3])
	}
}
