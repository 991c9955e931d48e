package refusal

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func busy(reload bool) *Refusal {
	return &Refusal{
		Status: 503, Waits: true, RetryAfter: 7 * time.Second, TimeToFit: 7 * time.Second, Busy: true, Reloads: reload,
	}
}

// write writes a refusal of a request with these headers, in pairs.
func write(t *testing.T, f *Refusal, method string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r, w := httptest.NewRequest(method, "http://example.com/", strings.NewReader("a=b")).WithContext(request("").Context()), httptest.NewRecorder()
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w.Header().Set("Vary", "Accept-Encoding")
	check.OK(t, f.Write(w, r, true))
	return w
}

const acceptHTML = "text/html,application/xhtml+xml,*/*;q=0.8"

func TestOnlyPagesOfABusySiteReload(t *testing.T) {
	for _, test := range []struct {
		name, method, accept string
		page, reload         bool
	}{
		{"a page", "GET", acceptHTML, true, true},
		{"a form", "POST", acceptHTML, true, false},
		{"an image", "GET", "image/avif,*/*;q=0.8", false, false},
		{"fetch", "GET", "*/*", false, false},
		{"a program", "POST", "application/json", false, false},
	} {
		w := write(t, busy(true), test.method, "Accept", test.accept)
		header := w.Header()
		if w.Code != 503 || header.Get("Retry-After") != "7" || header.Get("Cache-Control") != "no-store, private" || header.Get("CDN-Cache-Control") != "no-store" {
			t.Errorf("%s: got %d and %v", test.name, w.Code, header)
		}
		later := write(t, busy(false), test.method, "Accept", test.accept)
		check.That(t, w.Body.Len() > 0 && later.Body.Len() > 0, "%s: got no text", test.name)
		check.Slices(t, header["Vary"], []string{"Accept-Encoding", "Cookie"}, "%s: Vary", test.name)
		page, reload := IsPage(request(test.accept)), header.Get("Refresh") == "7"
		check.Equal(t, header["Content-Security-Policy"] != nil, test.page, "%s: a policy", test.name)
		check.That(t, page == test.page && reload == test.reload, "%s: got a page %v and a reload %v, want %v and %v", test.name, page, reload, test.page, test.reload)
	}
}

func TestTheBusyPageSaysHowLongAndHowToGoOn(t *testing.T) {
	for _, test := range []struct {
		name, method string
		reload       bool
		want, not    []string
	}{
		{
			"the first tries", "GET", true,
			[]string{"7 seconds", "This page will then reload by itself.", `<a href="">Try again</a>`},
			[]string{"http-equiv", "<noscript>", "not been processed"},
		},
		{
			"later tries", "GET", false,
			[]string{"7 seconds", `<a href="">Try again</a>`},
			[]string{"http-equiv", "<noscript>", "reload by itself"},
		},
		{
			"a form", "POST", true,
			[]string{"7 seconds", "Your input has not been processed. After the wait, please go back and send it again."},
			[]string{"http-equiv", "<a ", "reload by itself"},
		},
		{"a form later", "POST", false, []string{"go back and send it again"}, []string{"http-equiv", "<a ", "reload by itself"}},
	} {
		w := write(t, busy(test.reload), test.method, "Accept", acceptHTML)
		for _, want := range test.want {
			check.That(t, strings.Contains(w.Body.String(), want), "%s: got a page without %q", test.name, want)
		}
		for _, not := range test.not {
			check.That(t, !strings.Contains(w.Body.String(), not), "%s: got a page with %q", test.name, not)
		}
		check.Equal(t, w.Header().Get("Refresh") != "", test.reload && test.method == "GET", "%s: a reload", test.name)
	}
	seen := make(map[string]bool)
	for _, l := range languages {
		body := write(t, busy(true), "GET", "Accept", acceptHTML, "Accept-Language", l.Tag).Body.String()
		if !strings.Contains(body, `<a href="">`+l.Again+"</a>") || !strings.Contains(body, l.Reload) || l.Again == "" || seen[l.Again] {
			t.Errorf("%s: got a page without a link %q of its own", l.Tag, l.Again)
		}
		seen[l.Again] = true
	}
}

func TestABusySiteWithAPageOfItsOwnReloadsThat(t *testing.T) {
	page := check.Must(Compile("<p>Back soon.</p>"))(t)
	f := busy(true)
	f.Page = page
	w := write(t, f, "GET", "Accept", acceptHTML)
	check.That(t, w.Body.String() == "<p>Back soon.</p>" && w.Header().Get("Refresh") == "7", "got %q with %v", w.Body.String(), w.Header())
	f.AsError = true
	r := httptest.NewRequest("GET", "http://example.com/", nil)
	r.Header.Set("Accept", acceptHTML)
	e := httptest.NewRecorder()
	if err := f.Write(e, r, true); err == nil || e.Header().Get("Refresh") != "7" || e.Header().Get("Retry-After") != "7" {
		t.Errorf("got %v with %v, want an error route to keep the headers", err, e.Header())
	}
}
