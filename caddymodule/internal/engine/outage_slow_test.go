package engine_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func TestAStoreThatHangsCostsNobodyMoreThanItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "store_timeout 20ms", "zone z {\nlimit 100 1/h\nsettle header X-Cost\n}")
		c := s.From(servertest.Someone)
		servertest.TheShared.Hung.Store(true)
		for i := range 10 {
			start := time.Now()
			if w := c.Get("/"); w.Code != http.StatusOK {
				t.Fatalf("request %d: got %v, want 200", i+1, w.Code)
			}
			took, want := time.Since(start), 20*time.Millisecond
			if i >= failuresToOpen {
				want = 0 // it is known by now
			}
			if took != want {
				t.Errorf("request %d: got it answered after %v, want after %v", i+1, took, want)
			}
		}
		servertest.TheShared.Hung.Store(false)
		<-time.After(3 * time.Second)
		synctest.Wait()
		before := servertest.TheShared.Takes.Load()
		c.Get("/")
		if got := servertest.TheShared.Takes.Load(); got != before+1 {
			t.Errorf("three seconds after it answers again: got it asked %d times by a request, want once", got-before)
		}
	})
}

// failuresToOpen is how many calls open the breaker, if all fail.
const failuresToOpen = 3

// Otherwise requests would ask it again and again, and each would wait.
func TestAStoreThatAnswersTooLateIsDownUntilItAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 10000 1/h\n}")
		c := s.From(servertest.Someone)
		servertest.TheShared.Slow.Store(int64(60 * time.Millisecond))
		late := 0
		for start := time.Now(); time.Since(start) < 30*time.Second; {
			before := time.Now()
			c.Get("/")
			if time.Since(before) >= 50*time.Millisecond {
				late++
			}
			<-time.After(10 * time.Millisecond)
		}
		if late != failuresToOpen {
			t.Errorf("in 30s of answers after 60ms: got %d requests that waited, want %d", late, failuresToOpen)
		}
		servertest.TheShared.Slow.Store(int64(10 * time.Millisecond))
		<-time.After(3 * time.Second)
		synctest.Wait()
		before := servertest.TheShared.Takes.Load()
		c.Get("/")
		if got := servertest.TheShared.Takes.Load() - before; got != 1 {
			t.Errorf("three seconds after it answers in time again: got it asked %d times by a request, want once", got)
		}
	})
}

func TestAnOutageIsSaidOnceAndItsEndToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 100 1/h\n}")
		c := s.From(servertest.Someone)
		servertest.TheShared.Down.Store(true)
		c.Statuses(50, "/")
		<-time.After(3 * time.Second)
		servertest.TheShared.Down.Store(false)
		<-time.After(3 * time.Second)
		synctest.Wait()
		c.Statuses(5, "/")
		for text, want := range map[string]int{"the store is down": 1, "the store is up again": 1, "asking the store": 1} {
			if got := len(s.Logs.Lines(t, text)); got != want {
				t.Errorf("log lines that say %q: got %d, want %d", text, got, want)
			}
		}
		for name, want := range map[string]float64{
			"caddy_throttle_breaker_open": 0, "caddy_throttle_store_outages_total": 1, "caddy_throttle_store_errors_total": failuresToOpen,
		} {
			if got := s.StoreMetric(t, name); got != want {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
		}
		if got := s.Metric(t, "caddy_throttle_without_store_total"); len(got) != 1 || got[0].Value != 50 {
			t.Errorf("decided without the store: got %v, want 50", got)
		}
	})
}

// One key holds a value that is no bucket. However often that one is asked for,
// the store stays in use for all others.
func TestABucketThatIsNoneIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "on_store_error deny", "zone z {\nlimit 100 1/h\n}")
		servertest.TheShared.None = "203.0.113.99"
		s.From("203.0.113.99:1").WantStatuses("/", map[int]int{503: 20})
		s.From(servertest.Someone).WantStatuses("/", map[int]int{200: 20})
		if got := s.StoreMetric(t, "caddy_throttle_store_outages_total"); got != 0 {
			t.Errorf("outages: got %v, want none", got)
		}
		if got := len(s.Logs.Lines(t, "asking the store")); got != 1 {
			t.Errorf("log lines of it: got %d, want 1", got)
		}
	})
}

func TestWhyAStoreIsDownIsSaidOnceItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 100 1/h\n}")
		servertest.TheShared.Hung.Store(true)
		s.From(servertest.Someone).Statuses(5, "/")
		servertest.TheShared.Down.Store(true)
		servertest.TheShared.Hung.Store(false)
		<-time.After(10 * time.Second)
		lines := s.Logs.Lines(t, "trying the store")
		if len(lines) != 1 || lines[0]["error"] != "connection refused" {
			t.Errorf("got %v, want one line that says that the connection was refused", lines)
		}
	})
}

// asked is a request whose cost is in its body.
func asked(addr, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.RemoteAddr = addr
	return r
}

// Each of a request's calls is in time, so all are made in the store.
func TestAStoreThatIsSlowAndInTimeDecidesAndSettlesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "store_timeout 50ms", "zone z {\nlimit 100 1/d\ncost body_items\nsettle status 404 50\n}\nzone y {\nlimit 100 1/d\n}")
		servertest.TheShared.Slow.Store(int64(30 * time.Millisecond))
		for range 5 {
			if w := s.Do(asked(servertest.Someone, "[1,2,3]")); w.Code != http.StatusOK {
				t.Errorf("got %v, want 200", w.Code)
			}
			<-time.After(time.Second)
		}
		if takes, settles := servertest.TheShared.Takes.Load(), servertest.TheShared.Settles.Load(); takes != 10 || settles != 5 {
			t.Errorf("got the store asked %d times and told %d times, want 10 and 5", takes, settles)
		}
		if got := level(servertest.TheShared, "z", servertest.Office); got > 0.01 {
			t.Errorf("got level %v after 5 requests that were settled to 0, want 0", got)
		}
		four := make(chan int)
		for range 4 {
			go func() { four <- s.Do(asked(servertest.Someone, "[1,2,3]")).Code }()
		}
		for range 4 {
			<-four
		}
		<-time.After(time.Second)
		if got := s.StoreMetric(t, "caddy_throttle_breaker_open"); got != 0 {
			t.Errorf("after four requests at once: got breaker_open %v, want 0", got)
		}
		for _, name := range []string{"caddy_throttle_without_store_total", "caddy_throttle_unsettled_total"} {
			if got := s.Metric(t, name); len(got) != 2 || got[0].Value+got[1].Value != 0 {
				t.Errorf("%s: got %v, want none", name, got)
			}
		}
	})
}

// level returns how full an enforced bucket is, of which 100 units fit and next to
// nothing leaks.
func level(s *servertest.SharedStore, zone, key string) float64 {
	charges := []leakybucket.Charge{{Zone: zone, Key: key, Probe: true, Limit: leakybucket.Limit{Capacity: 100, Leak: 1. / 86400}}}
	var d [1]leakybucket.Decision
	if err := s.Store.Take(context.Background(), charges, d[:]); err != nil {
		return -1
	}
	return d[0].Level
}

// Its cost is the shared capacity, of which this node has a third.
func TestAnUnreadBodyFitsAnEmptyBucketOfANodesShare(t *testing.T) {
	for _, body := range []string{`<rows>`, `[` + strings.Repeat("1,", 12) + `1]`} { // unread, and 13 items
		synctest.Test(t, func(t *testing.T) {
			s := servertest.RunShared(t, "nodes 3", "zone z {\nlimit 30 3/s\ncost body_items\n}")
			servertest.TheShared.Down.Store(true)
			s.Do(asked("198.51.100.9:1", body)) // so that the breaker opens
			for range 2 {
				if w := s.Do(asked(servertest.Someone, body)); w.Code != http.StatusOK {
					t.Errorf("%.6s: got %v, want 200: the bucket is empty", body, w.Code)
				}
				if w := s.Do(asked(servertest.Someone, body)); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "10" {
					t.Errorf("%.6s: got %v with Retry-After %q, want 429 with 10", body, w.Code, w.Header().Get("Retry-After"))
				}
				<-time.After(10 * time.Second)
			}
			// More than fits the shared bucket never does.
			if w := s.Do(asked(servertest.Someone, "["+strings.Repeat("1,", 30)+"1]")); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "" {
				t.Errorf("31 items: got %v with Retry-After %q, want 429 with none", w.Code, w.Header().Get("Retry-After"))
			}
		})
	}
}
