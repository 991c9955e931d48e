package refusal

import (
	"context"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func request(accept string, values ...string) *http.Request {
	r := httptest.NewRequest("GET", "http://example.com/", nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	repl := caddy.NewEmptyReplacer()
	for i := 0; i < len(values); i += 2 {
		repl.Set(values[i], values[i+1])
	}
	return r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, repl))
}

// refuse returns the answer to a request.
func refuse(t testing.TB, f *Refusal, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	check.OK(t, f.Write(w, r, true))
	if got := w.Result().ContentLength; got >= 0 && got != int64(w.Body.Len()) {
		t.Errorf("Content-Length: got %d, want %d", got, w.Body.Len())
	}
	check.Equal(t, w.Header().Get("Cache-Control"), "no-store", "Cache-Control")
	return w
}

func TestARefusalIsAPageForPeople(t *testing.T) {
	for code, said := range map[supportcode.Code]string{0: "", 1: `<p id="code">Support code: <code>0000-0001</code></p>`} {
		f := Refusal{Status: 429, Waits: true, RetryAfter: 10 * time.Minute, TimeToFit: time.Minute, Code: code}
		w := refuse(t, &f, request(""))
		got := w.Header()
		check.That(t, w.Code == 429 && got.Get("Retry-After") == "600" && got.Get("Content-Type") == "text/html; charset=utf-8", "got %v and %v, want 429, a page, and Retry-After 600", w.Code, got)
		check.Contains(t, w.Body.String(), "<p>Please wait 60 seconds.</p>\n"+said, "want it to say the time to fit, and the code")
	}
}

// TestEveryAnswerSaysItsLength, whoever has counted it, and whatever a handler around has said of
// the answer that it expected.
func TestEveryAnswerSaysItsLength(t *testing.T) {
	for _, major := range []int{1, 2} {
		site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/around" {
				w.Header().Set("Content-Length", "5")
				w.Header().Set("Content-Encoding", "gzip")
				w.Header().Set("Content-Disposition", "attachment")
			}
			f := Refusal{Status: 429, Waits: true, RetryAfter: time.Minute, TimeToFit: time.Minute}
			check.NoError(t, f.Write(w, r, true))
		}))
		site.EnableHTTP2 = major == 2
		site.StartTLS()
		defer site.Close()
		for _, path := range []string{"/", "/around"} {
			for _, accept := range []string{"*/*", "text/html", "application/json"} {
				lengths := make(map[string]int64)
				for _, method := range []string{http.MethodGet, http.MethodHead} {
					r := check.Must(http.NewRequestWithContext(t.Context(), method, site.URL+path, nil))(t)
					r.Header.Set("Accept", accept)
					answer, err := site.Client().Do(r)
					check.OK(t, err)
					body, err := io.ReadAll(answer.Body)
					answer.Body.Close()
					check.Assume(t, err == nil && answer.ProtoMajor == major, "%s over HTTP/%d: got %v, want HTTP/%d", method, answer.ProtoMajor, err, major)
					check.That(t, answer.Header["Content-Disposition"] == nil, "%s: got a file to be saved, want a page", path)
					if n := int64(len(body)); method == http.MethodGet && answer.ContentLength != n {
						t.Errorf("HTTP/%d, %s, %s: got the length %d of %d bytes", major, path, accept, answer.ContentLength, n)
					}
					lengths[method] = answer.ContentLength
				}
				check.That(t, lengths[http.MethodHead] == lengths[http.MethodGet] && lengths[http.MethodGet] > 0, "HTTP/%d, %s, %s: got the lengths %v, want the same for both", major, path, accept, lengths)
			}
		}
	}
}

func TestNoCacheKeepsARefusalBecauseOfAHeaderAround(t *testing.T) {
	for _, busy := range []bool{false, true} {
		w := httptest.NewRecorder()
		for _, name := range []string{"Cache-Control", "CDN-Cache-Control", "Cloudflare-CDN-Cache-Control", "Surrogate-Control", "X-Accel-Expires"} {
			w.Header().Set(name, "max-age=60") // which the site sets for all answers
		}
		f := Refusal{Status: 429, Waits: true, RetryAfter: time.Second, TimeToFit: time.Second, Busy: busy}
		check.OK(t, f.Write(w, request("text/html"), true))
		for name, values := range w.Result().Header {
			check.That(t, !strings.Contains(values[0], "max-age"), "busy %v: got %s: %q, want a refusal that no cache keeps", busy, name, values)
		}
	}
}

func TestARefusalThatNoWaitingHelpsSaysNoTime(t *testing.T) {
	w := refuse(t, &Refusal{Status: 403, RetryAfter: time.Minute, TimeToFit: time.Minute}, request(""))
	got := w.Header()["Retry-After"]
	check.That(t, got == nil && w.Code == 403 && strings.Contains(w.Body.String(), "Waiting or reloading will not help"), "got %v, Retry-After %v and %s", w.Code, got, w.Body)
	w = refuse(t, &Refusal{Status: 403}, request("application/json"))
	check.Equal(t, w.Body.String(), `{"type":"about:blank","title":"Forbidden","status":403,"message":"This site does not accept this request. Waiting or reloading will not help."}`+"\n")
}

func TestProgramsGetAProblem(t *testing.T) {
	f := &Refusal{Status: 429, Waits: true, RetryAfter: time.Hour, TimeToFit: time.Minute}
	w := refuse(t, f, request("application/json, */*;q=0.5"))
	want := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"detail":"Retry in 60 seconds.","message":"This site is receiving too many requests right now. Please wait 60 seconds."}` + "\n"
	got := w.Body.String()
	check.That(t, got == want && w.Header().Get("Content-Type") == "application/problem+json", "got %s %s, want %s", w.Header().Get("Content-Type"), got, want)
	f.Status, f.TimeToFit = 503, time.Millisecond
	var problem struct{ Type, Detail string }
	err := json.Unmarshal(refuse(t, f, request("application/json")).Body.Bytes(), &problem)
	check.That(t, err == nil && problem.Type == "about:blank" && problem.Detail == "Retry in 1 second.", "got %+v, %v, want about:blank and 1 second", problem, err)
}

func TestAProblemCarriesAMessageForPeople(t *testing.T) {
	const said = `Too many logins, <"Jörg"> & co.`
	for _, test := range []struct {
		f              Refusal
		language, want string
	}{
		{Refusal{Status: 429, Waits: true, TimeToFit: time.Minute, Message: said}, "", said + " Please wait 60 seconds."},
		{Refusal{Status: 429, Waits: true, TimeToFit: time.Minute, Message: said}, "de", said + " Bitte warten Sie 60 Sekunden."},
		{Refusal{Status: 403, Message: said}, "", said + " This site does not accept this request. Waiting or reloading will not help."},
		{Refusal{Status: 429, Waits: true, TimeToFit: time.Second}, "zh", "This site is receiving too many requests right now. Please wait 1 second."},
		{Refusal{Status: 429, Waits: true, TimeToFit: time.Second}, "fr-CH", "Ce site reçoit trop de requêtes en ce moment. Veuillez patienter 1 seconde."},
		{Refusal{Status: 403}, "nl", "Deze website accepteert dit verzoek niet. Wachten of opnieuw laden helpt niet."},
		{Refusal{Status: 429, Waits: true, Message: strings.Repeat("é", 500)}, "", strings.Repeat("é", 500) + " Please wait 1 second."},
	} {
		r := request("application/json, */*;q=0.1") // as WordPress's editor asks
		r.Header.Set("Accept-Language", test.language)
		var problem struct{ Message string }
		err := json.Unmarshal(refuse(t, &test.f, r).Body.Bytes(), &problem)
		check.That(t, err == nil && problem.Message == test.want, "%+v: got message %q, %v, want %q", test.f, problem.Message, err, test.want)
	}
}

func TestWaitsAreToldAsPeopleSayThem(t *testing.T) {
	for _, test := range []struct {
		wait time.Duration
		want string
	}{
		{-time.Hour, "1 second"},
		{0, "1 second"},
		{time.Millisecond, "1 second"},
		{time.Second, "1 second"},
		{1001 * time.Millisecond, "2 seconds"},
		{2 * time.Minute, "120 seconds"},
		{2*time.Minute + 1, "3 minutes"},
		{120 * time.Minute, "120 minutes"},
		{120*time.Minute + 1, "3 hours"},
		{20 * 365 * 24 * time.Hour, "175200 hours"},
	} {
		check.Equal(t, string(languages[0].appendWait(nil, test.wait)), test.want, "%v", test.wait)
	}
}

func TestErrorRoutesGetTheRefusalByValue(t *testing.T) {
	w := httptest.NewRecorder()
	err := (&Refusal{Status: 503, Waits: true, RetryAfter: time.Minute, AsError: true}).Write(w, request(""), true)
	failed, ok := err.(caddyhttp.HandlerError)
	check.That(t, ok && failed.StatusCode == 503 && errors.Is(failed.Err, errRefused) && failed.Err.Error() == "refused by throttle", "got %#v, want a HandlerError of 503", err)
	h := w.Header()
	check.That(t, h.Get("Retry-After") == "60" && h.Get("Cache-Control") == "no-store" && len(h) == 2 && w.Body.Len() == 0, "got %v and %q, want Retry-After, Cache-Control and no body", h, w.Body)
}

func TestAPageOfOnesOwnIsFilledInAndItsValuesAreEscaped(t *testing.T) {
	const attack = `"><script>alert('1')</script>{env.HOME}{http.request.host}`
	const text = `<style>body{margin:1em}a{b.c:d}@media print{p{color:#000}}</style>` +
		`<p title="{http.throttle.key}">{http.request.header.X-Evil}|{http.throttle.zone}|{http.throttle.unknown}</p>` +
		`<script>addEventListener("load", function(){location.reload()}); if (x) {y.z}; let a = {b: c.d}, e = {f.g}</script>` +
		`{} {x} { http.throttle.zone } {http.throttle.zone`
	page := check.Must(Compile(text))(t)
	r := request("", "http.throttle.key", "203.0.113.7/"+attack, "http.request.header.X-Evil", attack, "http.throttle.zone", "site")
	want := strings.NewReplacer(
		"{http.throttle.key}", html.EscapeString("203.0.113.7/"+attack),
		"{http.request.header.X-Evil}", html.EscapeString(attack),
		"|{http.throttle.zone}", "|site",
	).Replace(text)
	for range 2 { // the memory is used again
		check.Equal(t, refuse(t, &Refusal{Status: 429, Page: page}, r).Body.String(), want)
	}
	check.Equal(t, refuse(t, &Refusal{Status: 429, Page: page}, request("")).Body.String(), text, "of which nothing is known")
}

func FuzzPage(f *testing.F) {
	f.Add("<p>{http.throttle.zone}</p>{{a.b}}", "{http.throttle.zone}<")
	f.Fuzz(func(t *testing.T, text, value string) {
		page, err := Compile(text)
		if err != nil {
			t.Skip()
		}
		check.Equal(t, string(page.appendTo(nil, caddy.NewEmptyReplacer())), text, "nothing known")
		repl := caddy.NewEmptyReplacer()
		repl.Set("http.throttle.zone", value)
		want := strings.ReplaceAll(text, "{http.throttle.zone}", html.EscapeString(value))
		check.Equal(t, string(page.appendTo(nil, repl)), want)
	})
}

// A discard is a response that nobody reads.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

// TestGRPC: a call that is refused ends with a status of gRPC, in one frame of headers, which tells
// the client when to repeat it.
func TestGRPC(t *testing.T) {
	waits := Refusal{Status: 429, Waits: true, RetryAfter: 90 * time.Second, TimeToFit: 1500 * time.Millisecond}
	wide := waits
	wide.Message = "Zu viele Aufrufe, 5 % über Plan."
	wide.Code = 1
	busy := Refusal{Status: 503, Waits: true, RetryAfter: time.Second, TimeToFit: time.Second, Busy: true}
	const reason = "This site is receiving too many requests right now. Please wait "
	for _, test := range []struct {
		name, contentType string
		f                 Refusal
		message, pushback string
	}{
		{"a limit", "application/grpc", waits, reason + "2 seconds.", "90000"},
		{"with a codec", "application/grpc+proto", waits, reason + "2 seconds.", "90000"},
		{"of a browser", "application/grpc-web+proto", waits, reason + "2 seconds.", "90000"},
		{"upper case", "Application/gRPC; a=b", waits, reason + "2 seconds.", "90000"},
		{"a message", "application/grpc", wide, wide.Message + " Please wait 2 seconds. (" + wide.Code.String() + ")", "90000"},
		{"busy", "application/grpc", busy, reason + "1 second.", "1000"},
		{"for good", "application/grpc", Refusal{Status: 403}, "This site does not accept this request. Waiting or reloading will not help.", "-1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := request("text/html")
			r.Header.Set("Content-Type", test.contentType)
			w := httptest.NewRecorder()
			h := w.Header()
			h.Set("Content-Length", "5") // of what a handler around expected
			check.OK(t, test.f.Write(w, r, true))
			if w.Code != http.StatusOK || w.Body.Len() > 0 || h.Get("Content-Length") != "0" || h.Get("Content-Type") != test.contentType || h.Get("Grpc-Status") != "8" {
				t.Errorf("got %d, %v and %d bytes, want 200, the call's type and RESOURCE_EXHAUSTED alone", w.Code, h, w.Body.Len())
			}
			got, err := url.PathUnescape(h.Get("Grpc-Message"))
			check.That(t, got == test.message, "got the message %q, %v, want %q", got, err, test.message)
			check.Equal(t, h.Get("Grpc-Retry-Pushback-Ms"), test.pushback, "ms of pushback")
		})
	}
}

// TestGRPCGoesOnOverHTTP: no answer of gRPC stands for what HTTP itself repeats, or what error routes
// answer.
func TestGRPCGoesOnOverHTTP(t *testing.T) {
	r := request("")
	r.Header.Set("Content-Type", "application/grpc")
	w := httptest.NewRecorder()
	err := (&Refusal{Status: 425, Waits: true}).Write(w, r, true)
	check.That(t, err == nil && w.Code == 425, "got %d, %v, want 425", w.Code, err)
	err = (&Refusal{Status: 429, AsError: true}).Write(w, r, true)
	check.That(t, err != nil && w.Header()["Grpc-Status"] == nil, "got %v, %v, want the refusal for error routes", w.Header(), err)
	r.Header.Set("Content-Type", "application/grpcs")
	w = httptest.NewRecorder()
	err = (&Refusal{Status: 429}).Write(w, r, true)
	check.That(t, err == nil && w.Code == 429, "got %d, %v for a type that only begins so, want 429", w.Code, err)
}
