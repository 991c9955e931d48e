package engine_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

func TestEveryRefusalHasACodeThatWhyUnderstands(t *testing.T) {
	const html, jsonType, image = "text/html,*/*;q=0.8", "application/json", "image/avif,*/*;q=0.8"
	for _, test := range []struct {
		name, zone, accept string
		before             int // requests that pass
		status             int
		reason             string
	}{
		{"a page", "limit 1 1/h", html, 1, 429, "capacity"},
		{"JSON", "limit 1 1/h", jsonType, 1, 429, "capacity"},
		{"a brief page", "limit 1 1/h", image, 1, 429, "capacity"},
		{"another status", "limit 1 1/h\nrefusal status 503", html, 1, 503, "capacity"},
		{"a branded page", "limit 1 1/h\nrefusal {\npage {\ntitle Shop\n}\n}", html, 1, 429, "capacity"},
		{"a message", "limit 1 1/h\nrefusal message Sorry.", html, 1, 429, "capacity"},
		{"a denied key", "limit 1 1/h\noverride 203.0.113.7 deny", html, 0, 429, "denied"},
		{"no key", "limit 1 1/h\nkey header X-Key missing refuse", jsonType, 0, 429, "missing_key"},
		{"the request that begins a block", "limit 1 1/h\nblock 1h", html, 1, 429, "capacity"},
		{"an error route", "limit 1 1/h\nrefusal error", html, 1, 429, "capacity"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servertest.Run(t, "http:// {\nlog\nthrottle {\nzone gate {\n"+test.zone+"\n}\n}\nrespond ok\nhandle_errors {\nrespond \"own {http.throttle.support_code}\"\n}\n}")
				c := s.From(servertest.Someone).With("Accept", test.accept)
				for range test.before {
					if w := c.Get("/"); w.Code != http.StatusOK || servertest.CodeOn(t, w) != "" {
						t.Fatalf("got %d with the code %q, want it to pass without", w.Code, servertest.CodeOn(t, w))
					}
				}
				w := c.Get("/")
				code := servertest.CodeOn(t, w)
				if w.Code != test.status || code == "" {
					t.Fatalf("got %d with %q, want %d with a code", w.Code, w.Body, test.status)
				}
				servertest.Sleep(time.Minute)
				got := s.Why(strings.ToLower(strings.ReplaceAll(code, "-", "")))
				if r := got.Refusal; r == nil || r.Code != code || r.Zone != "gate" || r.Reason != test.reason || time.Since(r.At) != time.Minute {
					t.Fatalf("got %+v, want the refusal by gate a minute ago, for %s", r, test.reason)
				}
				if test.reason == "capacity" {
					if r := got.Refusal; r.Key != "203.0.113.7" || r.Cost != 1 || r.Capacity != 1 || r.Wait < 3000 {
						t.Errorf("got %+v, want key, cost, capacity and wait", r)
					}
					if len(got.Buckets) != 1 || got.Buckets[0].Level < 0.9 || (got.Buckets[0].Blocked > 0) != strings.Contains(test.zone, "block") {
						t.Errorf("got the buckets %+v, want that of gate as it is now", got.Buckets)
					}
				}
				lines := s.Logs.Lines(t, "handled request")
				if field, _ := lines[len(lines)-1]["throttle"].(map[string]any); field["support_code"] != code {
					t.Errorf("got %v in the access log, want the code %s", field, code)
				}
				if again := servertest.CodeOn(t, c.Get("/")); again == code || again == "" {
					t.Errorf("got the code %q once more, want another", again)
				}
				s.Stop()
			})
		})
	}
}

func TestCodesNameRefusalsOfEveryKind(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle /gate gate 1 1/h {
			block 1h
		}
		throttle /pages pages 9 1/h
		route /twice {
			throttle outer 5 1/h
			throttle inner 1 1/h
		}
		respond ok
	}`)
	c := s.From(servertest.Someone)
	refusal := func(path, zone, reason string) (got wire.PastRefusal) {
		t.Helper()
		why := s.Why(servertest.CodeOn(t, c.Get(path)))
		if why.Refusal == nil || why.Refusal.Zone != zone || why.Refusal.Reason != reason {
			t.Fatalf("%s: got %+v, want a refusal by %s for %s", path, why.Refusal, zone, reason)
		}
		return *why.Refusal
	}
	c.Passes(1, "/gate")
	if got := refusal("/gate", "gate", "blocked"); got.Blocked < 3000 {
		t.Errorf("got %v seconds left of the block, want nearly an hour", got.Blocked)
	}
	c.Passes(1, "/twice")
	refusal("/twice", "inner", "capacity")

	s.Changes("/throttle/limit", `{"zone": "pages", "limit": "deny", "for": "1h"}`)
	refusal("/pages", "pages", "denied")
	s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "1h"}`)
	refusal("/pages", "pages", "banned")
	if got := s.Why(servertest.CodeOn(t, c.Get("/pages"))); got.Ban == nil {
		t.Error("got no ban beside the refusal, want it")
	}
	s.Changes("/throttle/unban", `{"network": "203.0.113.0/24"}`)
	s.Changes("/throttle/unlimit", `{"zone": "pages"}`)
}

func TestSupportCodeOffAndShadowGiveNoCodes(t *testing.T) {
	for _, option := range []string{"refusal code off", "shadow"} {
		s := servertest.Run(t, "http:// {\nlog\nthrottle {\nzone gate {\nlimit 1 1/h\n"+option+"\n}\n}\nrespond \"ok {http.throttle.support_code}\"\n}")
		for _, accept := range []string{"text/html", "application/json", "*/*"} {
			c := s.From(servertest.Someone).With("Accept", accept)
			c.Get("/")
			if w := c.Get("/"); servertest.CodeOn(t, w) != "" || strings.Contains(w.Body.String(), "upport") {
				t.Errorf("%s, %s: got %q, want no code", option, accept, w.Body)
			}
		}
		for _, line := range s.Logs.Lines(t, "handled request") {
			if field, _ := line["throttle"].(map[string]any); field["support_code"] != nil {
				t.Errorf("%s: got %v in the access log, want no code", option, field)
			}
		}
		s.Stop()
	}
}

func TestAPageOfOnesOwnShowsTheCodeWhereItsPlaceholderStands(t *testing.T) {
	w := refusedBy(t, "refusal {\npage ../caddyfile/testdata/page.html\n}", servertest.Request(servertest.Someone, servertest.Site0))
	if code := servertest.CodeOn(t, w); code != "" {
		t.Errorf("got the code %q on a page without the placeholder, want none", code)
	}
	s := servertest.Run(t, "http:// {\nthrottle gate 1 1/h {\nrefusal {\n\tpage ../../../docs/too-many-requests.html\n}\n}\nrespond ok\n}")
	c := s.From(servertest.Someone)
	c.Passes(1, "/")
	if w := c.Get("/"); servertest.CodeOn(t, w) == "" {
		t.Errorf("got %q, want a code on it", w.Body)
	}
}

func TestAHeadRequestHasACodeInTheLogAlone(t *testing.T) {
	s := servertest.Run(t, "http:// {\nlog\nthrottle gate 1 1/h\nrespond ok\n}")
	c := s.From(servertest.Someone)
	c.Passes(1, "/")
	w := c.Send(http.MethodHead, "/")
	if w.Code != 429 {
		t.Errorf("got %d, want 429", w.Code)
	}
	lines := s.Logs.Lines(t, "handled request")
	field, _ := lines[len(lines)-1]["throttle"].(map[string]any)
	code, _ := field["support_code"].(string)
	if r := s.Why(code).Refusal; r == nil || r.Zone != "gate" {
		t.Errorf("got %+v for the code %q of the log, want the refusal", r, code)
	}
}

func TestJSONHasTheCodeAsAMemberOfItsOwn(t *testing.T) {
	w := refusedBy(t, "", servertest.Request(servertest.Someone, servertest.Site0, "Accept", "application/json"))
	var problem map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
		t.Fatal(err)
	}
	if code, _ := problem["support_code"].(string); !servertest.SupportCode.MatchString(code) {
		t.Errorf("got %v, want a support_code", problem)
	}
}

func TestCodesSurviveAReloadThatRemovesTheZone(t *testing.T) {
	before := servertest.Run(t, "http:// {\nthrottle gate 1 1/h\nrespond ok\n}")
	c := before.From(servertest.Someone)
	c.Passes(1, "/")
	code := servertest.CodeOn(t, c.Get("/"))
	after := servertest.Run(t, "http:// {\nthrottle other 5 1/h\nrespond ok\n}")
	before.Stop()
	after.From(servertest.Someone).Answers("/", http.StatusOK)
	if got := after.Why(code); got.Refusal == nil || got.Refusal.Zone != "gate" || len(got.Buckets) != 1 || got.Buckets[0].Zone != "other" {
		t.Errorf("got %+v, want the refusal by the zone that is gone, and the client's bucket of today", got)
	}
	if got := after.Why("0000-0001"); got.Refusal != nil {
		t.Errorf("got %+v for a code that was never given, want nothing", got.Refusal)
	}
}
