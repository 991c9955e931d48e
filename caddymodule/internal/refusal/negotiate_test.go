package refusal

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestClientsThatPreferJSONGetIt(t *testing.T) {
	for _, test := range []struct {
		accept string
		json   bool
	}{
		// Nobody in particular.
		{"", false},
		{"*/*", false},
		{"*", false},
		{"image/png", false},
		{"text/plain", false},
		{",;,=,", false},

		// Browsers, and what they fetch.
		{"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false},
		{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7", false},
		{"image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8", false},
		{"text/css,*/*;q=0.1", false},
		{"text/event-stream", false},

		// Programs.
		{"application/json", true},
		{"application/json, text/javascript, */*; q=0.01", true}, // jQuery
		{"application/json, text/plain, */*", true},              // axios
		{"application/json, */*;q=0.5", true},                    // WordPress, HTTPie
		{"application/json, */*", true},
		{"*/*, application/json", true},
		{"application/problem+json", true},
		{"application/vnd.api+json, application/json", true},
		{"application/vnd.github+json", true},
		{"application/*", false},
		{"application/*, */*", false},
		{"application/json; charset=utf-8", true},
		{"APPLICATION/JSON", true},
		{"Application/Problem+Json ; Q=1", true},
		{"text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", false}, // Java
		{"application/json, *; q=.2", true},

		// The one that is named first, whatever its weight.
		{"application/json, text/html;q=0.8", true},
		{"text/html;q=0.8, application/json", false},
		{"text/*, application/json", true},
		{"application/*, text/html", false},
		{"application/xhtml+xml, application/json", false},
		{"*/*;q=0, application/json;version=1;q=0.1", true},
		{"application/jsonx", false},
		{"+json", false},
		{"json", false},
	} {
		check.Equal(t, formFor(test.accept, "") == inJSON, test.json, "Accept %q: JSON", test.accept)
	}
}

// TestWhoSendsJSONGetsIt unless it names HTML: the scripts of pages parse what they get.
func TestWhoSendsJSONGetsIt(t *testing.T) {
	for _, test := range []struct {
		accept, sent string
		want         form
	}{
		{"*/*", "application/json", inJSON}, // fetch
		{"", "Application/Vnd.api+JSON; charset=utf-8", inJSON},
		{acceptHTML, "application/json", inHTML},
		{"*/*", "application/x-www-form-urlencoded", inBrief},
		{"*/*", "text/html", inBrief},
		{"*/*", "text/plain, application/json", inBrief},
	} {
		check.Equal(t, formFor(test.accept, test.sent), test.want, "Accept %q, Content-Type %q", test.accept, test.sent)
	}
}

// TestOnlyPagesHaveStyle: images, scripts and programs get a brief answer.
func TestOnlyPagesHaveStyle(t *testing.T) {
	for accept, want := range map[string]bool{
		"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8": true,
		"text/html, application/json;q=0.9":                                                     true,
		"application/xhtml+xml":                                                                 true,
		"image/avif,image/webp,image/png,image/svg+xml,*/*;q=0.8":                               false,
		"text/css,*/*;q=0.1":                                                                    false,
		"text/*":                                                                                false,
		"*/*":                                                                                   false,
		"":                                                                                      false,
	} {
		r := request(accept)
		r.Header.Set("Accept-Language", "de")
		w := refuse(t, &Refusal{Status: 429, Waits: true, TimeToFit: time.Minute}, r)
		body := w.Body.String()
		got := strings.Contains(body, "<style>") && strings.Contains(body, "<script>") && w.Header().Get("Content-Security-Policy") != ""
		check.That(t, got == want, "%q: got %s, want style: %v", accept, body, want)
		if !want && (strings.Contains(body, "<s") || len(body) > 300 || !strings.Contains(body, "<p>Bitte warten Sie 60 Sekunden.</p>")) {
			t.Errorf("%q: got %d bytes: %s", accept, len(body), body)
		}
	}
	got := refuse(t, &Refusal{Status: 403}, request("*/*")).Body.String()
	check.That(t, strings.Contains(got, languages[0].NeverReason) && !strings.Contains(got, "<style>"), "got %s", got)
}

// TestHostileAcceptHeaders are as large as Caddy lets headers be. They cost no more than their beginning.
func TestHostileAcceptHeaders(t *testing.T) {
	for _, unit := range []string{"a", ",", ";", " ", "application/json;q=0.1,", ";x=1", "text/plain,"} {
		accept := strings.Repeat(unit, 1<<20/len(unit))
		check.Equal(t, formFor(accept, ""), formFor(accept[:mostAccept], ""), "%q: the form, want that of the beginning", unit)
		check.Equal(t, formFor(accept+",application/json", "") == inJSON, strings.Contains(unit, "json"), "%q: JSON", unit)
		check.Equal(t, testing.AllocsPerRun(10, func() { formFor(accept, accept) }), 0, "%q: allocations", unit)
	}
}
