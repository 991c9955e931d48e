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
		check.Equal(t, acceptsJSON([]string{test.accept}), test.json, "Accept %q: JSON", test.accept)
		check.Equal(t, acceptsJSON(strings.Split(test.accept, ", ")), test.json, "Accept %q in several headers: JSON", test.accept)
	}
	check.That(t, !acceptsJSON(nil), "no Accept: got JSON")
}

func acceptsJSON(accept []string) bool { return formFor(accept) == inJSON }

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

// hostileAccepts are as large as Caddy lets headers be.
var hostileAccepts = map[string][]string{
	"no comma":      {strings.Repeat("a", 1<<20)},
	"commas":        {strings.Repeat(",", 1<<20)},
	"semicolons":    {strings.Repeat(";", 1<<20)},
	"blanks":        {strings.Repeat(" ", 1<<20)},
	"weights":       {strings.Repeat("application/json;q=0.1,", 1<<20/23)},
	"parameters":    {"application/json" + strings.Repeat(";x=1", 1<<18)},
	"headers":       strings.Split(strings.Repeat("text/plain,", 100_000), ","),
	"empty headers": make([]string, 1<<20),
}

func TestHostileAcceptHeadersCostNoMoreThanTheirBeginning(t *testing.T) {
	for about, accept := range hostileAccepts {
		read, n := 0, 0
		for _, header := range accept {
			if read += len(header) + 1; read > mostAccept {
				break
			}
			n++
		}
		beginning := accept[:n]
		if n == 0 {
			beginning = []string{accept[0][:mostAccept]}
		}
		got, want := acceptsJSON(accept), acceptsJSON(beginning)
		check.That(t, got == want, "%s: got JSON %v, want %v as for the beginning", about, got, want)
		check.Equal(t, testing.AllocsPerRun(10, func() { acceptsJSON(accept) }), 0, "%s: allocations", about)
	}
}
