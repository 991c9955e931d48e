package httplimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/httplimit"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })

func limiter(t *testing.T, store leakybucket.Store, capacity, leak float64) *leakybucket.Limiter {
	t.Helper()
	return limiterOf(t, store, capacity, leak, leakybucket.LimiterOptions{})
}

func limiterOf(t *testing.T, store leakybucket.Store, capacity, leak float64, o leakybucket.LimiterOptions) *leakybucket.Limiter {
	t.Helper()
	l := check.Must(leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: capacity, Leak: leak}, o))(t)
	return l
}

// TestARealServer: over a socket, a burst passes and the rest is told when to come.
func TestARealServer(t *testing.T) {
	server := httptest.NewServer(httplimit.Middleware(limiter(t, memstore.New(memstore.Options{}), 3, 0.01), httplimit.Options{})(served))
	defer server.Close()
	for i := range 5 {
		resp := check.Must(http.Get(server.URL))(t)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if i < 3 {
			check.That(t, resp.StatusCode == 200 && string(body) == "served" && resp.Header.Get("Retry-After") == "", "request %d: got %d %q", i, resp.StatusCode, body)
			continue
		}
		check.Equal(t, resp.StatusCode, 429, "request %d: %v", i, resp.Header)
		check.Equal(t, resp.Header.Get("Retry-After")+" "+resp.Header.Get("Cache-Control"), "100 no-store", "request %d: the headers", i)
		check.Equal(t, string(body), "Too many requests. Try again in 100s.\n", "request %d", i)
	}
}

func TestKeys(t *testing.T) {
	proxies := httplimit.Behind(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"))
	header := httplimit.ByHeader("x-api-key", httplimit.ByAddress)
	for _, test := range []struct {
		name   string
		key    func(*http.Request) string
		from   string
		header []string // names and values
		want   string
	}{
		{"IPv4", httplimit.ByAddress, "203.0.113.7:1234", nil, "203.0.113.7"},
		{"IPv4 in IPv6", httplimit.ByAddress, "[::ffff:203.0.113.7]:1234", nil, "203.0.113.7"},
		{"IPv4 by NAT64", httplimit.ByAddress, "[64:ff9b::203.0.113.7]:1234", nil, "203.0.113.7"},
		{"IPv4 by SIIT", httplimit.ByAddress, "[::ffff:0:203.0.113.7]:1234", nil, "203.0.113.7"},
		{"IPv6", httplimit.ByAddress, "[2001:db8:1:2:3::4]:1234", nil, "2001:db8:1:2::/64"},
		{"IPv6 of a link", httplimit.ByAddress, "[fe80::1%eth0]:1234", nil, "fe80::/64"},
		{"a Unix socket", httplimit.ByAddress, "@", nil, "unknown"},
		{"a header that is not asked for", httplimit.ByAddress, "203.0.113.7:1", []string{"X-Forwarded-For", "198.51.100.1"}, "203.0.113.7"},
		{"behind a proxy", proxies, "10.0.0.1:1", []string{"X-Forwarded-For", "198.51.100.1"}, "198.51.100.1"},
		{"behind two", proxies, "[fd00::1]:1", []string{"X-Forwarded-For", "198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"behind two in two lines", proxies, "10.0.0.1:1", []string{"X-Forwarded-For", "198.51.100.1", "X-Forwarded-For", "10.0.0.2"}, "198.51.100.1"},
		{"what the client made up", proxies, "10.0.0.1:1", []string{"X-Forwarded-For", "192.0.2.1, 198.51.100.1"}, "198.51.100.1"},
		{"what a stranger made up", proxies, "203.0.113.7:1", []string{"X-Forwarded-For", "192.0.2.1"}, "203.0.113.7"},
		{"junk", proxies, "10.0.0.1:1", []string{"X-Forwarded-For", "192.0.2.1, unknown"}, "10.0.0.1"},
		{"a port", proxies, "10.0.0.1:1", []string{"X-Forwarded-For", "192.0.2.1, 198.51.100.1:49152, [fd00::2]:443"}, "198.51.100.1"},
		{"IPv6 and a port", proxies, "10.0.0.1:1", []string{"X-Forwarded-For", "[2001:db8::9]:443, [fd00::2]"}, "2001:db8::/64"},
		{"no header behind a proxy", proxies, "10.0.0.1:1", nil, "10.0.0.1"},
		{"IPv6 behind a proxy", proxies, "10.0.0.1:1", []string{"X-Forwarded-For", "2001:db8::9"}, "2001:db8::/64"},
		{"behind a proxy by NAT64", proxies, "[64:ff9b::10.0.0.1]:1", []string{"X-Forwarded-For", "64:ff9b::198.51.100.1, [64:ff9b::10.0.0.2]:443"}, "198.51.100.1"},
		{"no header", header, "203.0.113.7:1", nil, "203.0.113.7"},
		{"a header", header, "203.0.113.7:1", []string{"X-Api-Key", "secret"}, "X-Api-Key/@sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = test.from
		for i := 0; i < len(test.header); i += 2 {
			r.Header.Add(test.header[i], test.header[i+1])
		}
		check.Equal(t, test.key(r), test.want, "%s", test.name)
	}
}

type broken struct{}

func (broken) Take(context.Context, []leakybucket.Charge, []leakybucket.Decision) error {
	return errors.New("no route to the store")
}
func (broken) Settle(context.Context, []leakybucket.Settlement) error { return nil }

func TestAStoreThatFails(t *testing.T) {
	for _, closed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			l := limiterOf(t, broken{}, 3, 1, leakybucket.LimiterOptions{FailClosed: closed})
			h := httplimit.Middleware(l, httplimit.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})(served)
			for range 50 {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				check.Equal(t, w.Code, map[bool]int{false: 200, true: 503}[closed], "fail closed %v", closed)
				if closed && w.Header().Get("Cache-Control") != "no-store" {
					t.Errorf("got %v, want it kept by nobody", w.Header())
				}
				time.Sleep(2 * time.Second) // virtual
			}
			check.Equal(t, strings.Count(log.String(), "no route to the store"), 2, "fail closed %v: lines in 100 seconds:\n%s", closed, &log)
		})
	}
}

// TestAClientThatHangsUp: that is no failure of the store, and nobody does work for it.
func TestAClientThatHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := httplimit.Middleware(limiter(t, patient{}, 3, 1), httplimit.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})(
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler was called") }))
		ctx, hangUp := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, hangUp)
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))
		check.That(t, log.Len() == 0, "got the log line %s, want none", &log)
	})
}

// A patient store waits until its caller has left.
type patient struct{ broken }

func (patient) Take(ctx context.Context, _ []leakybucket.Charge, _ []leakybucket.Decision) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestPlansAreTold(t *testing.T) {
	h := httplimit.Middleware(limiter(t, memstore.New(memstore.Options{}), 2, 0.01), httplimit.Options{
		Key: func(r *http.Request) string { return r.URL.Path },
		Limit: func(r *http.Request) (l leakybucket.Limit) {
			if r.URL.Path == "/pro" {
				l = leakybucket.Limit{Capacity: 100, Leak: 2}
			}
			return l
		},
		Policy: "plan",
	})(served)
	for _, test := range []struct {
		path          string
		status        int
		policy, field string
	}{
		{"/free", 200, `"plan";q=2;w=200`, `"plan";r=1;t=100`},
		{"/free", 200, `"plan";q=2;w=200`, `"plan";r=0;t=100`},
		{"/free", 429, `"plan";q=2;w=200`, `"plan";r=0;t=100`},
		{"/pro", 200, `"plan";q=100;w=50`, `"plan";r=99;t=1`},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", test.path, nil))
		policy, field := w.Header().Get("RateLimit-Policy"), w.Header().Get("RateLimit")
		check.That(t, w.Code == test.status && policy == test.policy && field == test.field, "got %d, %s, %s, want %+v", w.Code, policy, field, test)
	}
	w := httptest.NewRecorder()
	httplimit.Middleware(limiter(t, memstore.New(memstore.Options{}), 3, 1), httplimit.Options{Policy: "burst"})(h).ServeHTTP(w, httptest.NewRequest("GET", "/pro", nil))
	check.Slices(t, w.Header()["Ratelimit"], []string{`"burst";r=2;t=1`, `"plan";r=98;t=1`})
	check.Slices(t, w.Header()["Ratelimit-Policy"], []string{`"burst";q=3;w=3`, `"plan";q=100;w=50`})
}

func TestAnAnswerAndCostsOfOnesOwn(t *testing.T) {
	h := httplimit.Middleware(limiter(t, memstore.New(memstore.Options{}), 10, 1), httplimit.Options{
		Key: func(r *http.Request) string { return r.Header.Get("User") },
		Cost: func(r *http.Request) float64 {
			if r.URL.Path == "/search" {
				return 8
			}
			return 1
		},
		Refuse: func(w http.ResponseWriter, _ *http.Request, result leakybucket.Result) {
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprintf(w, "%.0f left", result.Remaining)
		},
	})(served)
	ask := func(user, path string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest("GET", path, nil), httptest.NewRecorder()
		r.Header.Set("User", user)
		h.ServeHTTP(w, r)
		return w
	}
	ask("alice", "/search")
	got := ask("alice", "/search")
	check.That(t, got.Code == http.StatusTeapot && got.Body.String() == "2 left" && got.Header().Get("Retry-After") == "6", "got %d %v %q", got.Code, got.Header(), got.Body)
	for range 20 {
		check.Need(t, ask("", "/search").Code, 200, "without a key, want it passed")
	}
}

// slow is a store that answers nobody in time.
type slow struct{ leakybucket.Store }

func (slow) Take(ctx context.Context, _ []leakybucket.Charge, _ []leakybucket.Decision) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestADeadlineOfTheServersOwn: if the context ends because some middleware gives each request
// so long, its client is still there, and must not take an empty answer for the page.
func TestADeadlineOfTheServersOwn(t *testing.T) {
	limited := httplimit.Middleware(limiter(t, slow{}, 3, 1), httplimit.Options{Log: slog.New(slog.DiscardHandler)})(served)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	w := httptest.NewRecorder()
	limited.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
	check.That(t, w.Code == 503, "got status %d %q", w.Code, w.Body)
}
