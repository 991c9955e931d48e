package limit_test

import (
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestPlaceholdersSayWhatWasDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunZone(t, "site", `
				cost 2.5
				limit 6 0.5/s
				refusal error`, "respond \""+everyPlaceholder+"\"\nhandle_errors {\nrespond \"{err.status_code} {err.status_text} {err.message} "+everyPlaceholder+"\"\n}")
		for i, want := range []string{
			"site 203.0.113.7 admitted  2.5 6 3.5 2.5   {http.throttle.nonsense}",
			"site 203.0.113.7 admitted  4.5 6 1.5 2.5   {http.throttle.nonsense}",
			"429 Too Many Requests refused by throttle site 203.0.113.7 refused capacity 4 6 2 2.5 8 1 {http.throttle.nonsense}",
		} {
			w := s.From(servertest.Someone).Get("/")
			check.Equal(t, w.Body.String(), want, "request %d", i+1)
			if refused := i == 2; refused {
				check.That(t, w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "8" && w.Header().Get("Cache-Control") == "no-store",
					"got %d and %v by an error route, want 429, Retry-After 8 and no-store", w.Code, w.Header())
			}
			<-time.After(time.Second)
		}
	})
}

func TestTheAccessLogSaysNothingOfARequestThatNoZoneDecidedAbout(t *testing.T) {
	root := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(root, "style.css"), nil, 0o600))
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, "http:// {\nlog\nroot * "+root+"\nthrottle {\nexempt static_files\nzone site {\nlimit 1 1/h\n}\n}\nrespond ok\n}")
		s.From(servertest.Someone).Get("/style.css")
		s.From(servertest.Someone).Get("/")
		lines := s.Logs.Lines(t, "handled request")
		check.Need(t, len(lines), 2, "lines in the access log")
		got, logged := lines[0]["throttle"]
		check.That(t, !logged, "a static file: got %v in the access log, want no field", got)
		page, _ := lines[1]["throttle"].(map[string]any)
		check.That(t, page["decision"] == "admitted", "a page: got %v in the access log, want it admitted", page)
	})
}

func TestPlaceholdersAreEmptyIfNoZoneDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunZone(t, "site", `
				exempt path /free
				refusal message "Later."
				limit 1 1/h`, "respond \""+everyPlaceholder+" {http.throttle.message} {http.throttle.delay} {http.throttle.blocked}\"")
		check.Equal(t, strings.Join(strings.Fields(s.From(servertest.Someone).Get("/free").Body.String()), " "), "{http.throttle.nonsense} false")
	})
}

const everyPlaceholder = "{http.throttle.zone} {http.throttle.key} {http.throttle.decision} {http.throttle.reason} " +
	"{http.throttle.level} {http.throttle.capacity} {http.throttle.remaining} {http.throttle.cost} " +
	"{http.throttle.retry_after} {http.throttle.time_to_fit} {http.throttle.nonsense}"

func TestTheAccessLogSaysWhatWasDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, `http:// {
			log
			throttle /two {
				zone wide {
					limit 10 1/s
				}
				zone narrow {
					limit 1 0.1/s
				}
			}
			throttle /one {
				zone shadowed {
					limit 1 0.25/s
					shadow
				}
			}
			throttle /denied {
				zone keyed {
					key header X-Api-Key
					override bad deny
					limit 1 0.25/s
				}
			}
			throttle /missing {
				zone keyless {
					key header X-Api-Key missing refuse
					limit 1 0.25/s
				}
			}
			respond ok
		}`)
		wide := map[string]any{"zone": "wide", "decision": "admitted", "key": "203.0.113.7", "cost": 1.0, "level": 1.0, "capacity": 10.0}
		narrow := map[string]any{"zone": "narrow", "decision": "admitted", "key": "203.0.113.7", "cost": 1.0, "level": 1.0, "capacity": 1.0}
		refused := map[string]any{"zone": "narrow", "decision": "refused", "reason": "capacity", "key": "203.0.113.7", "cost": 1.0, "level": 1.0, "capacity": 1.0, "retry_after": 10.0}
		want := []map[string]any{
			with(narrow, "zones", []any{wide, narrow}),
			refused,
			{"zone": "shadowed", "decision": "admitted", "key": "203.0.113.7", "cost": 1.0, "level": 1.0, "capacity": 1.0},
			{"zone": "shadowed", "decision": "shadow_refused", "reason": "capacity", "key": "203.0.113.7", "cost": 1.0, "level": 1.0, "capacity": 1.0, "retry_after": 4.0},
			{"zone": "keyed", "decision": "refused", "reason": "denied", "key": digestOf("bad")},
			{"zone": "keyless", "decision": "refused", "reason": "missing_key"},
			nil,
		}
		c := s.From(servertest.Someone)
		for _, path := range []string{"/two", "/two", "/one", "/one"} {
			c.Get(path)
		}
		c.With("X-Api-Key", "bad").Get("/denied")
		c.Get("/missing")
		c.Get("/free")
		lines := s.Logs.Lines(t, "handled request")
		check.Need(t, len(lines), len(want), "lines")
		for i, line := range lines {
			got, _ := line["throttle"].(map[string]any)
			code, _ := got["support_code"].(string)
			check.That(t, servertest.SupportCode.MatchString(code) == (got["decision"] == "refused"), "line %d: got the code %q, want one for refusals only", i+1, code)
			delete(got, "support_code")
			check.That(t, reflect.DeepEqual(got, want[i]), "line %d: got %v, want %v", i+1, got, want[i])
		}
	})
}

func with(object map[string]any, name string, value any) map[string]any {
	object = maps.Clone(object)
	object[name] = value
	return object
}

func TestWithoutAccessLogsNothingIsLoggedOfARequest(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle site 2 1/h
		respond ok
	}`)
	c := s.From(servertest.Someone)
	c.Passes(2, "/")
	got := s.Logs.Lines(t, "handled request")
	check.That(t, len(got) == 0, "got %v, want nothing", got)
	s.Stop() // which writes what is not written yet
	messages := []any{}
	for _, line := range s.Logs.Lines(t, "") {
		if line["logger"] == "throttle" {
			messages = append(messages, line["msg"])
		}
	}
	check.Slices(t, messages, []any{"zone begins to refuse requests", "zone refused requests"})
}

// The definitions stand in the global options, so nothing of the page is in the server's config.
func TestAPageOfItsOwnShowsTheVerdict(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	check.OK(t, os.WriteFile(page, []byte("<p>{http.throttle.zone} {http.throttle.reason}</p>"), 0o600))
	refusal := "refusal {\npage " + page + "\n}\n}\n"
	options := "{\nthrottle {\nzone outer {\nlimit 9 1/h\n}\nzone site {\nlimit 1 1/h\n" + refusal + "in_flight slots 1 {\nbuffer 1MiB\n" + refusal + "}\n}\n"
	for _, test := range []struct{ about, site, want string }{
		{"a zone", "http:// {\nthrottle site\nrespond ok\n}", "<p>site capacity</p>"},
		{"a zone behind another one, in the access log", "http:// {\nlog\nroute {\nthrottle outer\nthrottle site\nrespond ok\n}\n}", "<p>site capacity</p>"},
		{"an in_flight", "http:// {\nroute {\nthrottle outer\nin_flight slots\nrespond ok\n}\n}", "<p>outer </p>"},
	} {
		s := servertest.Run(t, options+test.site)
		s.From(servertest.Someone).Get("/")
		r := servertest.Request(servertest.Someone, "/", "Accept", "text/html")
		r.Method, r.ContentLength, r.Body = http.MethodPost, 2<<20, io.NopCloser(strings.NewReader(strings.Repeat("x", 2<<20)))
		check.Equal(t, s.Do(r).Body.String(), test.want, test.about)
		s.Stop()
	}
}
