package engine_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// refusedKeys returns which of a thousand clients a zone enforced for a
// percentage of its keys refuses. All of them send one request too many.
func refusedKeys(t *testing.T, percent int) map[string]bool {
	t.Helper()
	s := servertest.Run(t, fmt.Sprintf(`http:// {
		throttle {
			zone site {
				limit 1 1/d
				enforce %d
			}
		}
		respond "{http.throttle.decision}"
	}`, percent))
	defer s.Stop()
	found := make(map[string]bool)
	for i := range 1000 {
		c := s.From(fmt.Sprintf("198.51.%d.%d:1", i/250, i%250))
		if w := c.Get("/"); w.Code != http.StatusOK {
			t.Fatalf("first request of client %d: got %v", i, w.Code)
		}
		for range 2 {
			w := c.Get("/")
			if refused := w.Code == http.StatusTooManyRequests; refused != found[c.Addr] && found[c.Addr] {
				t.Fatalf("client %d is refused and then is not", i)
			} else if refused {
				found[c.Addr] = true
			} else if w.Body.String() != "shadow_refused" {
				t.Fatalf("client %d: got %q, want shadow_refused", i, w.Body)
			}
		}
	}
	return found
}

func TestEnforceHoldsForThatManyKeysAndForThemAlways(t *testing.T) {
	before := map[string]bool{}
	for _, percent := range []int{1, 10, 50, 99, 100} {
		refused := refusedKeys(t, percent)
		if share := float64(len(refused)) / 10; share < float64(percent)*0.8-2 || share > float64(percent)*1.2+2 {
			t.Errorf("enforce %d: got %v %% of the keys refused", percent, share)
		}
		for key := range before {
			if !refused[key] {
				t.Errorf("enforce %d: %s is let off, and was not at a lower percentage", percent, key)
			}
		}
		before = refused
	}
}

func TestAKeyThatNoOverrideListsIsTreatedAsUnlistedKeySays(t *testing.T) {
	for _, test := range []struct {
		policy string
		want   string
	}{
		{"client_ip", "admitted @client_ip/203.0.113.7 "},
		{"share", "admitted @share "},
		{"skip", "  "},
		{"refuse", ""},
	} {
		s := servertest.Run(t, `http:// {
			throttle {
				zone api {
					key header X-Api-Key unlisted `+test.policy+` plain
					limit 5 1/d
					override partner 100 1/s
				}
			}
			respond "{http.throttle.decision} {http.throttle.key} {http.throttle.reason}"
		}`)
		w := s.From(servertest.Someone).With("X-Api-Key", "made-up").Get("/")
		if got := w.Body.String(); test.want != "" && got != test.want {
			t.Errorf("unlisted_key %s: got %q, want %q", test.policy, got, test.want)
		}
		if test.policy == "refuse" && (w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "") {
			t.Errorf("unlisted_key refuse: got %v with Retry-After %q, want 429 without", w.Code, w.Header().Get("Retry-After"))
		}
		if got, want := s.From(servertest.Someone).With("X-Api-Key", "partner").Get("/").Body.String(), "admitted partner "; got != want {
			t.Errorf("unlisted_key %s: a listed key: got %q, want %q", test.policy, got, want)
		}
		s.Stop()
	}
}

func TestRateLimitHeadersTellOfTheZoneNearestExhaustion(t *testing.T) {
	s := servertest.Run(t, `http:// {
		header Cache-Control private
		throttle {
			ratelimit_headers
			zone pages {
				limit 3 1/m
			}
			zone posts {
				match {
					method POST
				}
				limit 10 1/s
				cost 4.5
			}
			zone quiet {
				limit 1 1/d
				shadow
			}
		}
	}`)
	for i, test := range []struct{ addr, method, policy, limit string }{
		{servertest.Someone, "GET", `"pages";q=3;w=180`, `"pages";r=2;t=60`},
		{servertest.Someone, "GET", `"pages";q=3;w=180`, `"pages";r=1;t=60`},
		{servertest.Someone, "GET", `"pages";q=3;w=180`, `"pages";r=0;t=60`},
		{servertest.Someone, "GET", `"pages";q=3;w=180`, `"pages";r=0;t=60`}, // refused
		{"198.51.100.1:1", "POST", `"posts";q=10;qu="cost";w=10`, `"posts";r=5;t=1`},
	} {
		w := s.From(test.addr).Send(test.method, "/")
		if got := w.Header().Get("RateLimit-Policy"); got != test.policy {
			t.Errorf("request %d: got RateLimit-Policy %s, want %s", i+1, got, test.policy)
		}
		if got := w.Header().Get("RateLimit"); got != test.limit {
			t.Errorf("request %d: got RateLimit %s, want %s", i+1, got, test.limit)
		}
	}
}

// TestSharedCache: what caches keep for everybody does not tell how much one client has left,
// also if a handler around throttle, or an error route, says later that they may keep it.
func TestSharedCache(t *testing.T) {
	s := servertest.Run(t, `http:// {
		route {
			header /outer/* ?Cache-Control "public, max-age=60"
			throttle {
				ratelimit_headers
				zone pages {
					limit 99 1/m
				}
			}
			header /public Cache-Control "public, max-age=60"
			header /edge CDN-Cache-Control max-age=60
			header /asked Cache-Control no-cache
			header /private Cache-Control "private, max-age=60"
			header /outer/private Cache-Control private
			header /kept Cache-Control no-store
			header /own {
				Cache-Control s-maxage=60
				+RateLimit "\"upstream\";r=1"
			}
			header /error Cache-Control private
			error /error 404
			respond ok
		}
		handle_errors {
			header Cache-Control "public, max-age=60"
			respond gone 404
		}
	}`)
	for request, want := range map[string]int{
		"GET /": 0, "HEAD /": 0, "POST /": 1, "GET /public": 0, "POST /public": 0, "GET /edge": 0, "GET /asked": 0, "GET /private": 1,
		"HEAD /private": 1, "GET /kept": 1, "GET /outer/": 0, "GET /outer/private": 1, "GET /own": 0, "GET /error": 0, "POST /error": 0,
	} {
		method, path, _ := strings.Cut(request, " ")
		h := s.From(servertest.Someone).Send(method, path).Header()
		ours := slices.DeleteFunc(slices.Clone(h["Ratelimit"]), func(v string) bool { return !strings.HasPrefix(v, `"pages"`) })
		if len(ours) != want || len(h["Ratelimit-Policy"]) != want {
			t.Errorf("%s: got %v, want %d limits of ours", request, h, want)
		}
		if others := len(h["Ratelimit"]) - len(ours); (others == 1) != (path == "/own") {
			t.Errorf("%s: got %d limits of the upstream in %v", request, others, h)
		}
		if _, left := h["Ratelimit-Policy"]; left != (want > 0) {
			t.Errorf("%s: got the policy in %v: %v", request, h, left)
		}
	}
}

func TestClientsThatTakeJSONAndNoHTMLGetAProblem(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle login client_ip 1 1/m
	}`)
	s.From(servertest.Someone).Get("/")
	for accept, json := range map[string]bool{
		"": false, "*/*": false, "text/html": false, "text/html,application/xhtml+xml,*/*;q=0.8": false,
		"application/json": true, "application/json; charset=utf-8": true, "application/problem+json": true,
		"application/vnd.api+json, application/json": true, "application/json, */*;q=0.5": true, "application/json, text/javascript, */*; q=0.01": true, "image/png": false,
	} {
		w := s.From(servertest.Someone).With("Accept", accept).Get("/")
		got := w.Header().Get("Content-Type") == "application/problem+json"
		if got != json || w.Code != http.StatusTooManyRequests {
			t.Errorf("Accept %q: got %v, %s, want a problem: %v", accept, w.Code, w.Header().Get("Content-Type"), json)
		}
		want := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"detail":"Retry in 60 seconds.","message":"This site is receiving too many requests right now. Please wait 60 seconds.","support_code":"` + servertest.CodeOn(t, w) + `","violated-policies":["login"]}` + "\n"
		if json && w.Body.String() != want {
			t.Errorf("Accept %q: got %s, want %s", accept, w.Body, want)
		}
	}
}

func TestEarlyDataIsSentBackWhereTheAddressCounts(t *testing.T) {
	s := servertest.Run(t, `{
		servers {
			protocols h1
		}
	}
	http:// {
		throttle /address {
			zone address {
				exempt {
					header X-Free *
				}
				limit 2 1/d
			}
		}
		throttle /fallback {
			zone fallback {
				key header X-Api-Key
				limit 2 1/d
			}
		}
		throttle /shadow {
			zone shadow {
				limit 2 1/d
				shadow
			}
		}
		respond "{http.throttle.level}"
	}`)
	send := func(path string, early bool, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "https://example.com"+path, nil)
		r.RemoteAddr = servertest.Someone
		r.TLS = &tls.ConnectionState{HandshakeComplete: !early}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return s.Do(r)
	}
	for _, test := range []struct {
		path   string
		early  bool
		header []string
		status int
		level  string
	}{
		{"/address", true, nil, http.StatusTooEarly, ""},
		{"/address", true, nil, http.StatusTooEarly, ""},
		{"/address", true, nil, http.StatusTooEarly, ""},
		{"/address", false, nil, http.StatusOK, "1"}, // the early ones were not charged
		{"/address", true, []string{"X-Free", "1"}, http.StatusOK, ""},
		{"/fallback", true, nil, http.StatusTooEarly, ""},
		{"/fallback", true, []string{"X-Api-Key", "k"}, http.StatusOK, "1"},
		{"/shadow", true, nil, http.StatusOK, ""},
		{"/shadow", false, nil, http.StatusOK, "1"},
	} {
		w := send(test.path, test.early, test.header...)
		if got := w.Body.String(); w.Code != test.status || w.Code == http.StatusOK && got != test.level {
			t.Errorf("%s, early %v, %v: got %v, %q, want %v, %q", test.path, test.early, test.header, w.Code, got, test.status, test.level)
		}
		if w.Code == http.StatusTooEarly && w.Header().Get("Retry-After") != "" {
			t.Errorf("%s: got a Retry-After, want none", test.path)
		}
	}
}

// Rate-limit headers of an account's bucket would tell that somebody guesses there, or
// who has an override.
func TestZonesKeyedByFieldOrCookieSendNoRateLimitHeaders(t *testing.T) {
	for key, want := range map[string]bool{
		"client_ip": true, "header X-Key": true, "query key": true, "host": true,
		"field log": false, "client_ip field log": false, "cookie session": false, "basic_user": false,
		"{cookie.session}": false, "x-{http.request.cookie.session}": false,
	} {
		for _, more := range []string{"", "shadow", "override gold unlimited", "settle status 200 1 after"} {
			if more == "override gold unlimited" && (key == "client_ip" || strings.Contains(key, " field")) {
				continue // is no address
			}
			s := servertest.Run(t, "http:// {\nthrottle {\nratelimit_headers\nzone accounts {\nkey "+key+"\nlimit 2 1/h\n"+more+"\n}\n}\n}")
			for range 4 {
				r := httptest.NewRequest("POST", servertest.Site0+"?key=gold", strings.NewReader("log=gold"))
				r.Header = http.Header{"X-Key": {"gold"}, "Cookie": {"session=gold"}, "Content-Type": {"application/x-www-form-urlencoded"}}
				r.SetBasicAuth("gold", "x")
				w := s.Do(r)
				got := w.Header()["Ratelimit"] != nil || w.Header()["Ratelimit-Policy"] != nil
				if got && !want || !got && want && more == "" {
					t.Errorf("key %s, %s: got %v, want rate-limit headers: %v", key, more, w.Header(), want)
				}
			}
			s.Stop()
		}
	}
}
