package engine_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

func TestARefusalIsAPageForPeople(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle site 1 1/m
		respond ok
	}`)
	c := s.From(servertest.Someone)
	c.Passes(1, "/")
	w := c.Get("/")
	for name, want := range map[string]string{
		"Retry-After":   "60",
		"Cache-Control": "no-store",
		"Content-Type":  "text/html; charset=utf-8",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if body := w.Body.String(); !strings.Contains(body, "<p>Please wait 60 seconds.</p>") {
		t.Errorf("got %q, want it to say how long to wait", body)
	}
}

func TestThePageSaysTheTimeToFitWhateverRetryAfterSays(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle site 10 1/m
		respond ok
	}`)
	c := s.From(servertest.Someone)
	c.Passes(10, "/")
	w := c.Get("/")
	if got := w.Header().Get("Retry-After"); got != "600" {
		t.Errorf("Retry-After: got %q, want 600", got)
	}
	if body := w.Body.String(); !strings.Contains(body, "<p>Please wait 60 seconds.</p>") {
		t.Errorf("got %q, want it to say 60 seconds", body)
	}
}

// refusedBy returns the answer to a request that is refused by a zone with
// the given lines.
func refusedBy(t *testing.T, lines string, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	s := servertest.Run(t, `http:// {
		throttle {
			zone site {
				override 203.0.113.0/24 deny
				limit 1 1/h
				`+lines+`
			}
		}
	}`)
	return s.Do(r)
}

func TestTheStatusIsAChoice(t *testing.T) {
	if got := refusedBy(t, "refusal status 503", servertest.Request(servertest.Someone, servertest.Site0)).Code; got != 503 {
		t.Errorf("got %v, want 503", got)
	}
}

func TestTheMessageIsThatOfTheZoneThatDecides(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone pages {
				limit 2 1/m
				refusal message "Too many pages."
			}
			zone account {
				match method POST
				limit 1 1/h
				refusal message "Too many log-ins to this account."
			}
			zone dry {
				limit 1 1/d
				refusal message "Nobody sees this."
				shadow
			}
		}
		respond "{http.throttle.message}"
	}`)
	c := s.From(servertest.Someone).With("Accept", "application/json, */*;q=0.1") // as WordPress's editor sends
	for i, test := range []struct{ method, want string }{
		{"POST", ""},
		{"POST", "Too many log-ins to this account. Please wait"},
		{"GET", ""},
		{"GET", "Too many pages. Please wait"},
		{"POST", "Too many log-ins to this account. Please wait"}, // which is longer
	} {
		w := c.Send(test.method, "/")
		var problem struct{ Message string }
		_ = json.Unmarshal(w.Body.Bytes(), &problem)
		if (w.Code == http.StatusOK) != (test.want == "") || !strings.HasPrefix(problem.Message, test.want) {
			t.Errorf("request %d: got %v, %s, want %q", i+1, w.Code, w.Body, test.want)
		}
	}
	if got := s.From(servertest.Someone).Get("/").Body.String(); !strings.Contains(got, ">Too many pages.</p>") {
		t.Errorf("got %s, want the message on the page", got)
	}
}

func TestTheMessageTakesThePlaceOfThePagesText(t *testing.T) {
	for lines, want := range map[string]string{
		"refusal {\npage {\ntitle Stop\ntext Ours\n}\n}":                           ">Stop</h1>\n<p dir=\"auto\">Ours</p>",
		"refusal {\npage {\ntitle Stop\ntext Ours\n}\nmessage \"Jörg's & co.\"\n}": ">Stop</h1>\n<p dir=\"auto\">Jörg&#39;s &amp; co.</p>",
		"refusal message Slowly":                                                   "<p dir=\"auto\">Slowly</p>",
	} {
		if got := refusedBy(t, lines, servertest.Request(servertest.Someone, servertest.Site0)).Body.String(); !strings.Contains(got, want) {
			t.Errorf("%q: got %s, want %q in it", lines, got, want)
		}
	}
}

func TestThePageIsReadWhenTheConfigIsLoaded(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(page, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := servertest.Run(t, "http:// {\nthrottle {\nzone site {\nlimit 1 1/h\nrefusal {\npage "+page+"\n}\n}\n}\nrespond ok\n}")
	c := s.From(servertest.Someone)
	c.Passes(1, "/")
	if err := os.Remove(page); err != nil {
		t.Fatal(err)
	}
	if got := c.Get("/").Body.String(); got != "old" {
		t.Errorf("got %q, want %q", got, "old")
	}
}

func TestErrorRoutesSeeTheRefusalWhenTheyAreToWriteIt(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone login {
				limit 1 1/m
				refusal error
			}
		}
		respond ok
		handle_errors {
			respond "{err.status_code} {err.status_text} {err.message} {http.throttle.zone} {http.throttle.decision} {http.throttle.reason} {http.throttle.retry_after} {http.throttle.key}"
		}
	}`)
	c := s.From(servertest.Someone)
	c.Passes(1, "/")
	w := c.Get("/")
	const want = "429 Too Many Requests refused by throttle login refused capacity 60 203.0.113.7"
	if got := w.Body.String(); w.Code != http.StatusTooManyRequests || got != want {
		t.Errorf("got %v %q, want 429 %q", w.Code, got, want)
	}
	if got := w.Header().Get("Retry-After"); got != "60" {
		t.Errorf("Retry-After: got %q, want 60", got)
	}
	if got := w.Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control: got %q, want no-store", got)
	}
}

func TestARefusalByErrorHasItsStatusAndHeadersWithoutErrorRoutes(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone login {
				limit 1 1/m
				refusal error status 503
			}
		}
		respond ok
	}`)
	c := s.From(servertest.Someone)
	c.Get("/")
	w := c.Get("/")
	if got := w.Header().Get("Retry-After"); w.Code != 503 || got != "60" {
		t.Errorf("got %v and Retry-After %q, want 503 and 60", w.Code, got)
	}
}

func TestAPageOfARefusalDoesNotGoThroughErrorRoutes(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle site 1 1/m
		respond ok
		handle_errors {
			respond "error route"
		}
	}`)
	c := s.From(servertest.Someone)
	c.Passes(1, "/")
	if got := c.Get("/").Body.String(); !strings.Contains(got, "One moment, please") {
		t.Errorf("got %q, want our page", got)
	}
}

func TestAHeadRequestIsRefusedWithoutABody(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle site 1 1/h
		respond ok
	}`)
	server := httptest.NewServer(s.Server)
	defer server.Close()
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		r, err := http.Head(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || len(body) != 0 || r.StatusCode != want {
			t.Errorf("request %d: got %v, %d bytes, %v; want %v and none", i+1, r.StatusCode, len(body), err, want)
		}
		if i == 1 && (r.Header.Get("Retry-After") != "3600" || r.ContentLength <= 0) {
			t.Errorf("got Retry-After %q and Content-Length %d, want 3600 and that of the page", r.Header.Get("Retry-After"), r.ContentLength)
		}
	}
}

// ofBrowser is a request as somebody's browser sends it.
func ofBrowser(method, path, languages string) *http.Request {
	r := servertest.Request(servertest.Someone, "http://example.com"+path)
	r.Method = method
	r.Header.Set("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
	r.Header.Set("Accept-Language", languages)
	return r
}

func TestTheZoneThatDecidesStylesThePage(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			refusal {
				page {
					title "The <Library>"
					accent teal
				}
			}
			zone pages {
				limit 10 1/m
			}
			zone login {
				match path /login
				limit 1 1/h
				refusal {
					page {
						text "Too many log-ins."
					}
				}
			}
			zone watched {
				limit 1 1/d
				shadow
				refusal {
					page {
						title "nobody sees this"
					}
				}
			}
		}
		respond ok
	}`)
	c := s.From(servertest.Someone)
	c.Passes(1, "/login")
	w := s.Do(ofBrowser("POST", "/login", "fr-CH,fr;q=0.9,en;q=0.8"))
	for _, want := range []string{`<html lang="fr">`, "<h1 dir=\"auto\">Un instant, s’il vous plaît</h1>", "Too many log-ins.", "60 minutes</b>.", "n’ont pas été traitées"} {
		if body := w.Body.String(); !strings.Contains(body, want) {
			t.Errorf("got %s, want %q in it", body, want)
		}
	}
	if w.Header().Get("Content-Language") != "fr" || w.Header().Get("Vary") != "" {
		t.Errorf("got %v, want the language, and no Vary since nothing is cached", w.Header())
	}
	c.Passes(9, "/")
	body := s.Do(ofBrowser("GET", "/", "xx, it;q=0.1")).Body.String()
	for _, want := range []string{`<html lang="it">`, "<h1 dir=\"auto\">The &lt;Library&gt;</h1>", "--accent:teal", "60 secondi</b>."} {
		if !strings.Contains(body, want) {
			t.Errorf("got %s, want %q in it", body, want)
		}
	}
	if strings.Contains(body, "nobody") {
		t.Errorf("got %s of a shadow", body)
	}
}

func TestThePageHasItsOwnPolicyOnASiteWithAnother(t *testing.T) {
	s := servertest.Run(t, `http:// {
		header Content-Security-Policy "default-src 'self'"
		throttle site 1 1/m
		respond ok
	}`)
	s.From(servertest.Someone).Passes(1, "/")
	w := s.Do(ofBrowser("GET", "/", "en"))
	if got := w.Header()["Content-Security-Policy"]; w.Code != 429 || len(got) != 1 || !strings.HasPrefix(got[0], "default-src 'none'; script-src 'sha256-") {
		t.Errorf("got %d and %q, want the policy of the page alone", w.Code, got)
	}
}

func TestARefusalThatNoWaitingFixesSaysSoInAStyle(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone site {
				limit 1 1/m
				override 203.0.113.7 deny
				refusal {
					page {
						title "The shop"
					}
				}
			}
		}
		respond ok
	}`)
	r := ofBrowser("GET", "/", "de")
	r.RemoteAddr = "203.0.113.7:1"
	body := s.Do(r).Body.String()
	if !strings.Contains(body, "<h1 dir=\"auto\">The shop</h1>") || !strings.Contains(body, "Warten oder Neuladen hilft nicht.") || strings.Contains(body, "<script>") {
		t.Errorf("got %s", body)
	}
}
