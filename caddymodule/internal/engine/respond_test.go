package engine_test

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

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
				refusal message "Too many logins to this account."
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
		{"POST", "Too many logins to this account. Please wait"},
		{"GET", ""},
		{"GET", "Too many pages. Please wait"},
		{"POST", "Too many logins to this account. Please wait"}, // which is longer
	} {
		w := c.Send(test.method, "/")
		var problem struct{ Message string }
		_ = json.Unmarshal(w.Body.Bytes(), &problem)
		check.That(t, (w.Code == http.StatusOK) == (test.want == "") && strings.HasPrefix(problem.Message, test.want), "request %d: got %v, %s, want %q", i+1, w.Code, w.Body, test.want)
	}
	check.Contains(t, s.From(servertest.Someone).Get("/").Body.String(), ">Too many pages.</p>", "want the message on the page")
}

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
					w := c.Get("/")
					check.Assume(t, w.Code == http.StatusOK && servertest.CodeOn(t, w) == "", "got %d with the code %q, want it to pass without", w.Code, servertest.CodeOn(t, w))
				}
				w := c.Get("/")
				code := servertest.CodeOn(t, w)
				check.Assume(t, w.Code == test.status && code != "", "got %d with %q, want %d with a code", w.Code, w.Body, test.status)
				servertest.Sleep(time.Minute)
				got := s.Why(strings.ToLower(strings.ReplaceAll(code, "-", "")))
				if r := got.Refusal; r == nil || r.Code != code || r.Zone != "gate" || r.Reason != test.reason || time.Since(r.At) != time.Minute {
					t.Fatalf("got %+v, want the refusal by gate a minute ago, for %s", r, test.reason)
				}
				if test.reason == "capacity" {
					r := got.Refusal
					check.That(t, r.Key == "203.0.113.7" && r.Cost == 1 && r.Capacity == 1 && r.Wait >= 3000, "got %+v, want key, cost, capacity and wait", r)
					if len(got.Buckets) != 1 || got.Buckets[0].Level < 0.9 || (got.Buckets[0].Blocked > 0) != strings.Contains(test.zone, "block") {
						t.Errorf("got the buckets %+v, want that of gate as it is now", got.Buckets)
					}
				}
				lines := s.Logs.Lines(t, "handled request")
				field, _ := lines[len(lines)-1]["throttle"].(map[string]any)
				check.That(t, field["support_code"] == code, "got %v in the access log, want the code %s", field, code)
				again := servertest.CodeOn(t, c.Get("/"))
				check.That(t, again != code && again != "", "got the code %q once more, want another", again)
			})
		})
	}
}

func TestSupportCodeOffAndShadowGiveNoCodes(t *testing.T) {
	for _, option := range []string{"refusal code off", "shadow"} {
		s := servertest.Run(t, "http:// {\nlog\nthrottle {\nzone gate {\nlimit 1 1/h\n"+option+"\n}\n}\nrespond \"ok {http.throttle.support_code}\"\n}")
		for _, accept := range []string{"text/html", "application/json", "*/*"} {
			c := s.From(servertest.Someone).With("Accept", accept)
			c.Get("/")
			w := c.Get("/")
			check.That(t, servertest.CodeOn(t, w) == "" && !strings.Contains(w.Body.String(), "upport"), "%s, %s: got %q, want no code", option, accept, w.Body)
		}
		for _, line := range s.Logs.Lines(t, "handled request") {
			field, _ := line["throttle"].(map[string]any)
			check.That(t, field["support_code"] == nil, "%s: got %v in the access log, want no code", option, field)
		}
		s.Stop()
	}
}

func TestAPageOfOnesOwnShowsTheCodeWhereItsPlaceholderStands(t *testing.T) {
	for page, shown := range map[string]bool{"../caddyfile/testdata/page.html": false, "../../../docs/too-many-requests.html": true} {
		s := servertest.Run(t, "http:// {\nthrottle gate 1 1/h {\nrefusal {\n\tpage "+page+"\n}\n}\nrespond ok\n}")
		c := s.From(servertest.Someone)
		c.Passes(1, "/")
		w := c.Get("/")
		check.That(t, (servertest.CodeOn(t, w) != "") == shown, "%s: got %q, want a code on it: %v", page, w.Body, shown)
		s.Stop()
	}
}

// TestTheCodeOfALongKeyFindsItsBucket: three digests are longer than what is kept of a key.
func TestTheCodeOfALongKeyFindsItsBucket(t *testing.T) {
	s := servertest.RunZone(t, "gate", "key header A header B header C\nlimit 1 1/d", "respond ok")
	c := s.From(servertest.Someone).With("A", "1").With("B", "2").With("C", "3")
	c.Passes(1, "/")
	got := s.Why(servertest.CodeOn(t, c.Get("/")))
	check.That(t, got.Refused && len(got.Buckets) == 1, "got %+v, want the bucket that refuses", got)
}

func TestCodesSurviveAReloadThatRemovesTheZone(t *testing.T) {
	before := servertest.Run(t, "http:// {\nthrottle gate 1 1/h\nrespond ok\n}")
	c := before.From(servertest.Someone)
	c.Passes(1, "/")
	code := servertest.CodeOn(t, c.Get("/"))
	after := servertest.Run(t, "http:// {\nthrottle other 5 1/h\nrespond ok\n}")
	before.Stop()
	after.From(servertest.Someone).Answers("/", http.StatusOK)
	got := after.Why(code)
	check.That(t, got.Refusal != nil && got.Refusal.Zone == "gate" && len(got.Buckets) == 1 && got.Buckets[0].Zone == "other", "got %+v, want the refusal by the zone that is gone, and the client's bucket of today", got)
	got = after.Why("0000-0001")
	check.That(t, got.Refusal == nil, "got %+v for a code that was never given, want nothing", got.Refusal)
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
		check.Equal(t, w.Header().Get("RateLimit-Policy"), test.policy, "request %d: RateLimit-Policy", i+1)
		check.Equal(t, w.Header().Get("RateLimit"), test.limit, "request %d: RateLimit", i+1)
	}
}

// TestEachDirectiveTellsOfItsLimit, and hides it where a cache may keep the answer.
func TestEachDirectiveTellsOfItsLimit(t *testing.T) {
	throttle := func(zone string) string {
		return "throttle {\nratelimit_headers\nzone z" + zone + " {\nlimit " + zone + " 1/m\n}\n}\n"
	}
	s := servertest.Run(t, "http:// {\nroute {\nheader Cache-Control private\n"+throttle("2")+throttle("9")+"header /public Cache-Control public\nrespond ok\n}\n}")
	for _, test := range []struct {
		path string
		want []string
	}{
		{"/", []string{`"z9";r=8;t=60`, `"z2";r=1;t=60`}},
		{"/public", nil},
		{"/", []string{`"z2";r=0;t=60`}}, // refused
	} {
		h := s.From(servertest.Someone).Get(test.path).Header()
		check.Slices(t, h["Ratelimit"], test.want)
		check.Equal(t, len(h["Ratelimit-Policy"]), len(test.want), "%s: policies", test.path)
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
		check.That(t, len(ours) == want && len(h["Ratelimit-Policy"]) == want, "%s: got %v, want %d limits of ours", request, h, want)
		others := len(h["Ratelimit"]) - len(ours)
		check.That(t, (others == 1) == (path == "/own"), "%s: got %d limits of the upstream in %v", request, others, h)
		_, left := h["Ratelimit-Policy"]
		check.That(t, left == (want > 0), "%s: got the policy in %v: %v", request, h, left)
	}
}

// The body of a CONNECT may be more requests, to an upstream that answers the CONNECT as a request. One for
// x:http://site/login has no path for matchers, and is for /login at the upstream.
func TestCONNECTIsRefused(t *testing.T) {
	const zone = "limit 100 1/d\nexempt {\nheader X-Free *\n}\n"
	for name, test := range map[string]struct {
		zone, method string
		header       []string
		want         int
	}{
		"enforced":          {zone, "CONNECT", nil, http.StatusNotImplemented},
		"in lower case":     {zone, "connect", nil, http.StatusNotImplemented},
		"in shadow":         {zone + "shadow", "CONNECT", nil, http.StatusOK},
		"exempt":            {zone, "CONNECT", []string{"X-Free", "1"}, http.StatusNotImplemented},
		"without a key":     {zone + "key header X-Key missing skip", "CONNECT", nil, http.StatusNotImplemented},
		"a matcher of GET":  {zone + "match method GET", "CONNECT", nil, http.StatusNotImplemented},
		"that has a field":  {zone + "field pwd", "CONNECT", nil, http.StatusNotImplemented},
		"an opaque address": {zone + "match path /login*", "GET http://example.com/login", nil, http.StatusNotImplemented},
		"one of an exempt":  {zone, "PUT http://example.com/login", []string{"X-Free", "1"}, http.StatusNotImplemented},
		"one with a field":  {zone + "field pwd", "GET http://example.com/login;pwd=1", nil, http.StatusNotImplemented}, // Fastify 4
		"another method":    {zone, "PUT", nil, http.StatusOK},
		"without anything":  {zone, "GET", nil, http.StatusOK},
		"a key by a header": {zone + "key header X-Key", "CONNECT", []string{"X-Key", "k"}, http.StatusNotImplemented},
	} {
		s := servertest.RunZone(t, "pages", test.zone, "respond ok")
		r := servertest.Request(servertest.Someone, servertest.Site0, test.header...)
		r.Method, r.URL.Opaque, _ = strings.Cut(test.method, " ")
		if r.URL.Opaque == "" {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("GET / HTTP/1.1\r\n\r\n")), 18
		}
		w := s.Do(r)
		check.That(t, w.Code == test.want && w.Header()["Retry-After"] == nil, "%s: got %d with %v, want %d", name, w.Code, w.Header(), test.want)
		s.Stop()
	}
}

// Of a long address with octets or dots that upstreams read differently, matchers would be asked about
// each reading, and about the headers again.
func TestALongAmbiguousAddressIsRefused(t *testing.T) {
	odd := "/?" + strings.Repeat("a;", 2050)
	for _, test := range []struct {
		zone, target string
		header, want int
	}{
		{"match path /login", odd, 0, http.StatusNotImplemented},
		{"exempt path /*", odd, 0, http.StatusNotImplemented},
		{"cost 0 {\npath /*\n}", odd, 0, http.StatusNotImplemented},
		{"key route\nroute pages /", odd, 0, http.StatusNotImplemented},
		{"exempt path /*\nshadow", odd, 0, http.StatusOK},
		{"exempt path /x", "/" + strings.Repeat("/..", 700), 0, http.StatusNotImplemented}, // in three more readings
		{"exempt not header_regexp X ^b", "//x/..?a;b", 15 << 10, http.StatusNotImplemented},
		{"exempt not header_regexp X ^b", "/?a;b", 15 << 10, http.StatusOK},
		{"key field log missing skip", "/" + strings.Repeat("/..", 700), 0, http.StatusOK}, // where nobody reads it
		{"exempt path /x", odd[:4000], 0, http.StatusOK},
		{"exempt path /x", strings.ReplaceAll(odd, ";", "&"), 0, http.StatusOK},
	} {
		s := servertest.RunZone(t, "pages", "limit 100 1/d\n"+test.zone, "respond ok")
		check.Equal(t, s.Do(servertest.Request(servertest.Someone, servertest.Site0+test.target, "X", strings.Repeat("x", test.header))).Code, test.want, "%s, %.9s: status", test.zone, test.target)
		s.Stop()
	}
	s := servertest.RunZone(t, "login", "match path /*\nfield pwd\nlimit 100 1/d", "respond ok")
	for body, want := range map[string]int{"x=1": http.StatusOK, "pwd=1": http.StatusNotImplemented} {
		r := servertest.Request(servertest.Someone, servertest.Site0+odd)
		r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader(body)), int64(len(body))
		check.Equal(t, s.Do(r).Code, want, "%s: status", body)
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
		"{cookie.session}": false, "{http.request.cookie.session}-x": false,
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
