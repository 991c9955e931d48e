package engine_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// TestLocalBucketsAreKeptForTheNextOutage, and the store is told nothing of either.
func TestLocalBucketsAreKeptForTheNextOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 10 1/h\n}")
		c := s.From(servertest.Someone)
		c.WantStatuses("/", map[int]int{200: 6})
		servertest.TheShared.Down.Store(true)
		c.WantStatuses("/", map[int]int{200: 10, 429: 3})
		servertest.TheShared.Down.Store(false)
		<-time.After(3 * time.Second)
		c.WantStatuses("/", map[int]int{200: 4, 429: 3})
		servertest.TheShared.Down.Store(true)
		c.WantStatuses("/", map[int]int{429: 5})
	})
}

func TestEveryNodeHasItsShareOfALimitInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "nodes 4", "zone z {\nlimit 20 4/s\ncost 3 {\npath /dear\n}\n}")
		c := s.From(servertest.Someone)
		servertest.TheShared.Down.Store(true)
		c.WantStatuses("/", map[int]int{200: 5, 429: 1})
		<-time.After(3 * time.Second)
		c.WantStatuses("/", map[int]int{200: 3, 429: 1})
		<-time.After(5 * time.Second)
		c.WantStatuses("/dear", map[int]int{200: 1, 429: 1})
	})
}

func TestAShareHoldsAtLeastTheDearestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "nodes 10", "zone z {\nlimit 20 1/h\ncost 8 {\npath /dear\n}\n}")
		servertest.TheShared.Down.Store(true)
		s.From(servertest.Someone).WantStatuses("/dear", map[int]int{200: 1, 429: 1})
	})
}

func TestABlockedClientStaysBlockedInAnOutage(t *testing.T) {
	for _, nodes := range []string{"nodes 1", "nodes 3"} {
		synctest.Test(t, func(t *testing.T) {
			s := servertest.RunShared(t, nodes, "zone z {\nlimit 1 1/s\nblock 10m\n}")
			c := s.From(servertest.Someone)
			c.WantStatuses("/", map[int]int{200: 1, 429: 1})
			servertest.TheShared.Down.Store(true)
			<-time.After(9 * time.Minute)
			c.WantStatuses("/", map[int]int{429: 5})
			<-time.After(time.Minute)
			c.WantStatuses("/", map[int]int{200: 1})
		})
	}
}

// A share of the limit leaks more slowly, and is what admits the client in the end.
func TestABlockedClientThatWaitsAsLongAsItIsToldPassesInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "nodes 3", "zone z {\nlimit 4 4/m\nblock 2s\n}")
		servertest.TheShared.Down.Store(true)
		c := s.From(servertest.Someone)
		c.WantStatuses("/", map[int]int{200: 1, 429: 5})
		after := c.Get("/").Header().Get("Retry-After")
		wait, err := time.ParseDuration(after + "s")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
		if w := c.Get("/"); w.Code != http.StatusOK {
			t.Errorf("after %v: got %d and Retry-After %s, want 200", wait, w.Code, w.Header().Get("Retry-After"))
		}
	})
}

func TestPoliciesAreEachZonesOwn(t *testing.T) {
	for _, test := range []struct {
		global, zones string
		want          map[int]int
	}{
		{"on_store_error allow", "zone z {\nlimit 2 1/h\n}", map[int]int{200: 9}},
		{"on_store_error deny", "zone z {\nlimit 2 1/h\n}", map[int]int{503: 9}},
		{"", "zone z {\nlimit 2 1/h\non_store_error deny\n}", map[int]int{503: 9}},
		{"on_store_error deny", "zone z {\nlimit 2 1/h\non_store_error local\n}", map[int]int{200: 2, 429: 7}},
		{"on_store_error deny", "zone z {\nlimit 2 1/h\nshadow\n}", map[int]int{200: 9}},
		{"on_store_error deny", "zone z {\nlimit 2 1/h\nenforce 1\n}", map[int]int{200: 9}},
		{"", "zone a {\nlimit 4 1/h\n}\nzone b {\nlimit 2 1/h\non_store_error allow\n}", map[int]int{200: 4, 429: 5}},
		{"", "zone a {\nlimit 4 1/h\n}\nzone b {\nlimit 2 1/h\non_store_error deny\n}", map[int]int{503: 9}},
		{"", "zone a {\nlimit 4 1/h\n}\nzone b {\nlimit 2 1/h\n}", map[int]int{200: 2, 429: 7}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := servertest.RunShared(t, test.global, test.zones)
			servertest.TheShared.Down.Store(true)
			s.From(servertest.Someone).WantStatuses("/", test.want)
		})
	}
}

func TestARequestDeniedForWantOfAStoreIsToldWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "on_store_error deny", "zone z {\nlimit 2 1/h\n}")
		servertest.TheShared.Down.Store(true)
		w := s.From(servertest.Someone).Get("/")
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "5" {
			t.Errorf("got %v with Retry-After %q, want 503 with 5", w.Code, w.Header().Get("Retry-After"))
		}
		if got := s.Counts(t)["z"]["refused store"]; got != 1 {
			t.Errorf("refused for want of a store: got %v counted, want 1", got)
		}
	})
}

// The store is asked for the least that a body can cost, for its cost, and to settle
// that, which delays nothing for longer than a fifth of the timeout.
func TestEachCallOfAStoreHasATimeoutOfItsOwn(t *testing.T) {
	for _, test := range []struct {
		slow time.Duration
		want time.Duration
	}{
		{10 * time.Millisecond, 30 * time.Millisecond},
		{24 * time.Millisecond, 58 * time.Millisecond},
		{40 * time.Millisecond, 90 * time.Millisecond},
		{90 * time.Millisecond, 100 * time.Millisecond}, // then locally
	} {
		synctest.Test(t, func(t *testing.T) {
			s := servertest.RunShared(t, "", "zone z {\nlimit 100 1/h\ncost body_items\nsettle status 404 50\n}\nzone y {\nlimit 100 1/h\n}")
			servertest.TheShared.Slow.Store(int64(test.slow))
			r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(`[1,2,3]`))
			r.Header.Set("Content-Type", "application/json")
			start := time.Now()
			if w := s.Do(r); w.Code != http.StatusOK {
				t.Errorf("a store that takes %v: got %v, want 200", test.slow, w.Code)
			}
			if got := time.Since(start); got != test.want {
				t.Errorf("a store that takes %v: got the request answered after %v, want after %v", test.slow, got, test.want)
			}
		})
	}
}

func TestChargesAreSettledInTheStoreThatTookThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 100 1/h\ncost 10\nsettle status 404 50\n}")
		c := s.From(servertest.Someone)
		c.Get("/") // 200 settles it down to nothing
		if got := servertest.TheShared.Settles.Load(); got != 1 {
			t.Errorf("settlements in the shared store: got %d, want 1", got)
		}
		servertest.TheShared.Down.Store(true)
		c.WantStatuses("/", map[int]int{200: 50}) // each is settled down to nothing here
		if got := servertest.TheShared.Settles.Load(); got != 1 {
			t.Errorf("settlements in the shared store, after an outage: got %d, want 1", got)
		}
		if got := s.Metric(t, "caddy_throttle_unsettled_total"); got[0].Value != 0 {
			t.Errorf("unsettled: got %v, want 0", got[0].Value)
		}
	})
}

func TestChargesThatCannotBeSettledAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 100 1/h\ncost 10\nsettle status 404 50\n}")
		servertest.TheShared.Deaf.Store(true)
		c := s.From(servertest.Someone)
		c.WantStatuses("/", map[int]int{200: 2})
		synctest.Wait()
		if got := s.Metric(t, "caddy_throttle_unsettled_total"); len(got) != 1 || got[0].Value != 2 {
			t.Errorf("unsettled: got %v, want 2", got)
		}
	})
}

func TestAKnownBlockIsNotAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 1 1/s\nblock 10m\n}")
		c := s.From(servertest.Someone)
		c.WantStatuses("/", map[int]int{200: 1, 429: 1})
		before := servertest.TheShared.Takes.Load()
		for range 100 {
			w := c.Get("/")
			if after, _ := strconv.Atoi(w.Header().Get("Retry-After")); w.Code != http.StatusTooManyRequests || after < 595 || after > 600 {
				t.Fatalf("got %v with Retry-After %d, want 429 with some 600", w.Code, after)
			}
			<-time.After(50 * time.Millisecond)
		}
		if got := servertest.TheShared.Takes.Load() - before; got > 6 {
			t.Errorf("in 5 s of asking: got the store asked %d times, want at most 6", got)
		}
	})
}

func TestABlockedClientIsNotToldToRetryWhatNeverFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 2 1/s\ncost {header.X-Cost}\nblock 10m\n}")
		c := s.From(servertest.Someone).With("X-Cost", "2")
		c.WantStatuses("/", map[int]int{200: 1, 429: 1})
		if w := s.From(servertest.Someone).With("X-Cost", "3").Get("/"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "" {
			t.Errorf("got %d and Retry-After %q, want 429 and none", w.Code, w.Header().Get("Retry-After"))
		}
	})
}

func TestAResetIsHeededWithinTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 1 1/s\nblock 10m everywhere\n}")
		c := s.From(servertest.Someone)
		c.WantStatuses("/", map[int]int{200: 1, 429: 3})
		if err := servertest.TheShared.Reset(t.Context(), "z", "203.0.113.7", false); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		c.WantStatuses("/", map[int]int{200: 1})
	})
}

func TestAStoreIsClosedWhenTheLastRequestThatUsesItHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 5 1/s\ndelay\n}")
		c := s.From(servertest.Someone)
		c.Get("/")
		var codes [2]int
		for i := range codes {
			go func() { codes[i] = c.Get("/").Code }()
		}
		synctest.Wait()
		s.Stop()
		synctest.Wait()
		if got := servertest.TheShared.Closed.Load(); got != 0 {
			t.Error("while requests wait: got the store closed, want it open")
		}
		<-time.After(3 * time.Second)
		synctest.Wait()
		if got := servertest.TheShared.Closed.Load(); got != 1 || codes != [2]int{200, 200} {
			t.Errorf("after their end: got it closed %d times after answers %v, want once after 200 and 200", got, codes)
		}
	})
}
