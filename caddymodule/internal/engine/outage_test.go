package engine_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

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
		check.That(t, w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "5", "got %v with Retry-After %q, want 503 with 5", w.Code, w.Header().Get("Retry-After"))
		check.Equal(t, s.Counts(t)["z"]["refused store"], 1, "refused for want of a store: counted")
	})
}

// A store that corrects no charge leaves it as it was reserved, and that is counted: what the
// response cost, and what a refusal further in gives back.
func TestChargesThatCannotBeCorrectedAreCounted(t *testing.T) {
	for zones, statuses := range map[string]map[int]int{
		"zone z {\nlimit 100 1/h\ncost 10\nsettle status 404 50\n}":               {200: 2},
		"zone z {\nlimit 100 1/d\n}\n}\nthrottle {\nzone inner {\nlimit 1 1/d\n}": {200: 1, 429: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := servertest.RunShared(t, "", zones)
			servertest.TheShared.Deaf.Store(true)
			s.From(servertest.Someone).WantStatuses("/", statuses)
			synctest.Wait()
			check.Equal(t, servertest.Counted(t, telemetry.Unsettled, "z")["unsettled_total"], 2, "%s: charges counted", zones)
		})
	}
}

func TestAKnownBlockIsNotAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 1 1/s\nblock 10m\n}")
		c := s.From(servertest.Someone)
		c.WantStatuses("/", map[int]int{200: 1, 429: 1})
		before := servertest.TheShared.Takes.Load()
		for range 100 {
			w := c.Get("/")
			after, _ := strconv.Atoi(w.Header().Get("Retry-After"))
			check.Assume(t, w.Code == http.StatusTooManyRequests && after >= 595 && after <= 600, "got %v with Retry-After %d, want 429 with some 600", w.Code, after)
			<-time.After(50 * time.Millisecond)
		}
		got := servertest.TheShared.Takes.Load() - before
		check.That(t, got <= 6, "in 5 s of asking: got the store asked %d times, want at most 6", got)
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
		check.Equal(t, servertest.TheShared.Closed.Load(), 0, "while requests wait: times the store was closed")
		<-time.After(3 * time.Second)
		synctest.Wait()
		got := servertest.TheShared.Closed.Load()
		check.That(t, got == 1 && codes == [2]int{200, 200}, "after their end: got it closed %d times after answers %v, want once after 200 and 200", got, codes)
	})
}

// failuresToOpen is how many calls open the breaker, if all fail.
const failuresToOpen = 3

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
			check.Equal(t, len(s.Logs.Lines(t, text)), want, "log lines that say %q", text)
		}
		for name, want := range map[string]float64{
			"caddy_throttle_breaker_open": 0, "caddy_throttle_store_outages_total": 1, "caddy_throttle_store_errors_total": failuresToOpen,
		} {
			check.Equal(t, s.StoreMetric(t, name), want, "%s", name)
		}
		got := s.Metric(t, "caddy_throttle_without_store_total")
		check.That(t, len(got) == 1 && got[0].Value == 50, "decided without the store: got %v, want 50", got)
	})
}

// started runs and starts a site whose store has not been reached yet.
func started(t *testing.T, config string) *servertest.Site {
	t.Helper()
	s := servertest.Run(t, config)
	check.OK(t, s.Module().Start())
	t.Cleanup(func() {
		time.Sleep(time.Second) // for what no request waits for
		_ = s.Module().Stop()
	})
	return s
}

// TestFirstRequests wait until the store was reached, if an enforced zone concerns them, but no
// longer than two seconds after the start.
func TestFirstRequests(t *testing.T) {
	const far = 1500 * time.Millisecond
	for _, test := range []struct {
		name, global, zone, path string
		hangs                    bool
		want                     time.Duration
	}{
		{"enforced", "", "limit 3 1/h", "/", false, far},
		{"never reached", "", "limit 3 1/h", "/", true, 2 * time.Second},
		{"another path", "", "limit 3 1/h\nmatch path /login", "/", true, 0},
		{"exempt", "exempt path /health", "limit 3 1/h", "/health", true, 0},
		{"in shadow", "", "limit 3 1/h\nshadow", "/", true, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servertest.TheShared = &servertest.SharedStore{Store: memstore.New(memstore.Options{})}
				servertest.TheShared.Hung.Store(test.hangs)
				servertest.TheShared.Slow.Store(int64(far))
				s := started(t, "{\nthrottle {\nstore test_shared\n"+test.global+"\n}\n}\nhttp:// {\nthrottle {\nzone z {\n"+test.zone+"\n}\n}\nrespond ok\n}")
				s.Engine().Exiting = nil
				synctest.Wait()
				servertest.TheShared.Slow.Store(0) // from the second call on
				for _, want := range []time.Duration{test.want, 0} {
					began := time.Now()
					w := s.From(servertest.Someone).Get(test.path)
					check.That(t, w.Code == http.StatusOK && time.Since(began) == want, "got %d after %v, want 200 after %v", w.Code, time.Since(began), want)
				}
			})
		})
	}
}

// foreignStore is a store module of somebody else's.
type foreignStore struct{}

func init() { caddy.RegisterModule(new(foreignStore)) }

func (*foreignStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle.stores.foreign_test", New: func() caddy.Module { return new(foreignStore) }}
}

func (*foreignStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	return nil
}

func (*foreignStore) Store() leakybucket.Store { return stubborn{servertest.TheShared} }

// stubborn is a store that heeds no context.
type stubborn struct{ of *servertest.SharedStore }

func (s stubborn) Take(_ context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	return s.of.Take(context.Background(), charges, decisions)
}

func (s stubborn) Settle(_ context.Context, settlements []leakybucket.Settlement) error {
	return s.of.Settle(context.Background(), settlements)
}

// TestForeignStores have the timeout and the policy of all others, and no client that hangs up
// takes one down.
func TestForeignStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servertest.TheShared = &servertest.SharedStore{Store: memstore.New(memstore.Options{})}
		s := started(t, "{\nthrottle {\nstore foreign_test\non_store_error deny\n}\n}\nhttp:// {\nthrottle {\nzone z {\nlimit 3 1/h\n}\n}\nrespond ok\n}")
		c := s.From(servertest.Someone)
		c.WantStatuses("/", map[int]int{200: 3, 429: 2})
		left, leave := context.WithCancel(t.Context())
		leave()
		for range 1000 {
			r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil).WithContext(left)
			r.RemoteAddr = "198.51.100.1:1"
			s.Do(r)
		}
		check.That(t, !s.Engine().Shared.Failing(), "after hang-ups: got the store failing")
		servertest.TheShared.Slow.Store(int64(700 * time.Millisecond))
		began := time.Now()
		w := c.Get("/")
		check.That(t, w.Code == http.StatusServiceUnavailable && time.Since(began) == 50*time.Millisecond, "a store that takes 700ms: got %d after %v, want 503 after 50ms", w.Code, time.Since(began))
		servertest.TheShared.Slow.Store(0)
		servertest.TheShared.Down.Store(true)
		c.WantStatuses("/", map[int]int{503: 5})
		servertest.TheShared.Down.Store(false)
		time.Sleep(3 * time.Second)
		c.WantStatuses("/", map[int]int{429: 2})
	})
}

// TestCallsOfTheStore that one request makes, by the options of its zones. The documentation
// of store_timeout has the most.
func TestCallsOfTheStore(t *testing.T) {
	for _, test := range []struct {
		name, zones    string
		takes, settles int32
	}{
		{"plain", "zone a {\nlimit 100 1/h\n}", 1, 0},
		{"several zones", "zone a {\nlimit 100 1/h\n}\nzone b {\nlimit 200 1/h\n}\nzone c {\nlimit 300 1/h\nshadow\n}", 1, 0},
		{"delay", "zone a {\nlimit 100 1/h\ndelay 50\n}", 1, 0},
		{"block", "zone a {\nlimit 100 1/h\nblock 1h everywhere\n}", 1, 0},
		{"settle", "zone a {\nlimit 100 1/h\nsettle status 200 5\n}", 1, 1},
		{"body", "zone a {\nlimit 100 1/h\ncost body_items\n}", 1, 0},
		{"body of several zones", "zone a {\nlimit 100 1/h\ncost body_items\n}\nzone b {\nlimit 200 1/h\ncost body_items\n}", 1, 0},
		{"body and other zones", "zone a {\nlimit 100 1/h\ncost body_items\n}\nzone b {\nlimit 200 1/h\n}", 2, 0},
		{"trust_devices", "zone a {\nlimit 100 1/h\n}\nzone b {\nkey field user\nlimit 200 1/h\nrefund status 200\ntrust_devices sid\n}", 2, 1},
		{"shadow that would refuse the body", "zone a {\nlimit 100 1/h\nsettle status 200 5\n}\nzone b {\nlimit 200 1/h\nshadow\n}\nzone c {\nlimit 2 1/h\ncost body_items rows\nshadow\n}", 2, 1},
		{"shadow that would refuse the body, alone", "zone b {\nlimit 200 1/h\nshadow\n}\nzone c {\nlimit 2 1/h\ncost body_items rows\nshadow\n}", 2, 1},
		{"all", "zone a {\nlimit 100 1/h\ncost body_items\nsettle status 200 5\n}\nzone b {\nlimit 200 1/h\nsettle status 200 5\ndelay 50\nblock 1h\n}\nzone c {\nlimit 300 1/h\nshadow\n}", 2, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servertest.RunShared(t, "", test.zones)
				r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(`{"user": "a", "rows": [1,2,3]}`))
				r.Header.Set("Content-Type", "application/json")
				check.Need(t, s.Do(r).Code, http.StatusOK)
				synctest.Wait()
				takes, settles := servertest.TheShared.Takes.Load(), servertest.TheShared.Settles.Load()
				check.That(t, takes == test.takes && settles == test.settles, "got %d takes and %d settlements, want %d and %d", takes, settles, test.takes, test.settles)
			})
		})
	}
}

// A reload keeps the store, and errors that no request waits for go to the log of
// the config that runs.
func TestErrorsOfAStoreThatNoRequestWaitsForAreLoggedByTheConfigThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servertest.TheShared = &servertest.SharedStore{Store: memstore.New(memstore.Options{})}
		const config = "{\nthrottle {\nstore test_shared\n}\n}\nhttp:// {\nthrottle site 5 1/s\n}"
		start := func() *servertest.Site {
			s := servertest.Run(t, config)
			check.OK(t, s.Module().Start())
			return s
		}
		wantLines := func(s *servertest.Site, want int) {
			t.Helper()
			synctest.Wait()
			if got := s.Logs.Lines(t, "looking after the store"); len(got) != want || want > 0 && !strings.Contains(got[0]["error"].(string), "disk full") {
				t.Errorf("got %v, want %d lines", got, want)
			}
		}
		fail := func() { (*servertest.TheShared.OnError.Load())(errors.New("disk full")) }
		first := start()
		for range 3 {
			fail()
		}
		wantLines(first, 1)
		<-time.After(time.Minute)
		fail()
		wantLines(first, 2)

		second := start()
		_ = first.Module().Stop()
		first.Stop()
		<-time.After(time.Minute)
		fail()
		wantLines(first, 2)
		wantLines(second, 1)

		// A reload that fails takes nothing with it.
		third := start()
		_ = third.Module().Stop()
		third.Stop()
		<-time.After(time.Minute)
		fail()
		wantLines(second, 2)
		wantLines(third, 0)
		_ = second.Module().Stop()
		second.Stop()
		<-time.After(time.Second)
	})
}
