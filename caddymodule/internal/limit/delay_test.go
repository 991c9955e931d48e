package limit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestSevenInOneInstantWaitAsInNginxAndTheSeventhIsRefused(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, servertest.LikeNginx, 0)
		visits := s.Visits(7, servertest.Office, "/")
		servertest.Sleep(time.Minute)
		servertest.WantWaits(t, visits, 0, 1, 2, 3, 4, 5, -1)
		check.Equal(t, visits[6].Header().Get("Retry-After"), "6", "Retry-After")
		servertest.WantCounts(t, "waits", map[string]float64{"admitted": 1, "delayed": 5, "refused capacity": 1})
		servertest.WantEmpty(t, "waits")
	})
}

// TestNginx: nginx has decided about these requests in the same way. Its burst does not count the
// request that fits at once. If there are several limits, both charge a request to all of them or
// to none, and let it wait for the longest.
func TestNginx(t *testing.T) {
	const ms = time.Millisecond
	type arrivals struct {
		after time.Duration // the ones before
		waits []float64     // in seconds; -1 is a refusal
	}
	for _, test := range []struct {
		nginx, zones string
		trace        []arrivals
	}{
		{"rate=4r/s", "zone a {\nlimit 1 4/s\n}", []arrivals{{0, []float64{0, -1, -1}}, {375 * ms, []float64{0}}, {125 * ms, []float64{-1}}, {250 * ms, []float64{0, -1}}}},
		{"rate=4r/s burst=5 nodelay", "zone a {\nlimit 6 4/s\n}", []arrivals{{0, []float64{0, 0, 0, 0, 0, 0, -1, -1}}, {625 * ms, []float64{0, 0, -1}}, {250 * ms, []float64{0, -1}}}},
		{"rate=4r/s burst=5", "zone a {\nlimit 6 4/s\ndelay\n}", []arrivals{{0, []float64{0, 0.25, 0.5, 0.75, 1, 1.25, -1, -1}}, {625 * ms, []float64{0.875, 1.125, -1}}}},
		{"rate=4r/s burst=5 delay=3", "zone a {\nlimit 6 4/s\ndelay 3\n}", []arrivals{{0, []float64{0, 0, 0, 0, 0.25, 0.5, -1}}, {625 * ms, []float64{0.125, 0.375, -1}}}},
		// The first is in the way at once, and the second later: it has paid for none of the refused.
		{"rate=8r/s burst=2 nodelay; rate=1r/s burst=4 nodelay", "zone a {\nlimit 3 8/s\n}\nzone b {\nlimit 5 1/s\n}", []arrivals{{0, []float64{0, 0, 0, -1, -1}}, {440 * ms, []float64{0, 0, -1}}, {1060 * ms, []float64{0, -1}}}},
		{"rate=8r/s burst=5; rate=2r/s burst=4 delay=3", "zone a {\nlimit 6 8/s\ndelay\n}\nzone b {\nlimit 5 2/s\ndelay 3\n}", []arrivals{{0, []float64{0, 0.125, 0.25, 0.375, 0.5, -1}}, {750 * ms, []float64{0.25, -1}}}},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			t.Log(test.nginx)
			s := servertest.NewWaitSite(t, "throttle {\n"+test.zones+"\n}", 0)
			for _, a := range test.trace {
				servertest.Sleep(a.after)
				visits := s.Visits(len(a.waits), servertest.Office, "/")
				defer servertest.WantWaits(t, visits, a.waits...)
			}
			servertest.Sleep(time.Minute)
		})
	}
}

// The places of clients are those of an IPv4 address or of an IPv6 /48, whatever the key is.
func TestNobodyHoldsMorePlacesOfAQueueThanAreFree(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, servertest.LikeNginx+" queue 6", 0)
		var flood []*servertest.Visit
		for i := range 5 { // each of them in a bucket of its own
			flood = append(flood, s.Visits(2, fmt.Sprintf("[2001:db8:1:%d::1]", i), "/")...)
		}
		check.Equal(t, flood[9].Header().Get("Retry-After"), "1", "Retry-After")
		others := slices.Concat(s.Visits(3, servertest.Office, "/"), s.Visits(2, servertest.Visitor, "/"), s.Visits(2, "[2001:db8:2::1]", "/"))
		servertest.Sleep(time.Minute)
		servertest.WantWaits(t, flood, 0, 1, 0, 1, 0, 1, 0, -1, 0, -1)
		servertest.WantWaits(t, others, 0, 1, 2, 0, 1, 0, -1)
		flood = s.Visits(4, "[2001:db8:1:0::2]", "/")
		servertest.Sleep(time.Minute)
		servertest.WantWaits(t, flood, 0, 1, 2, 3)
		servertest.WantEmpty(t, "waits")
	})
}

func TestMaxWaitRefusesWhatWouldWaitLongerAndSaysWhenItWouldNot(t *testing.T) {
	for _, test := range []struct{ option, want string }{
		{"", "3"}, // until the bucket is empty
		{"refusal retry_after fit", "1"},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, servertest.LikeNginx+" wait 2s\n"+test.option, 0)
			visits := s.Visits(5, servertest.Office, "/")
			check.Equal(t, visits[3].Header().Get("Retry-After"), test.want, "%q: Retry-After", test.option)
			servertest.Sleep(time.Second)
			visits = append(visits, s.Visit(servertest.Office, "/"), s.Visit(servertest.Office, "/"))
			servertest.Sleep(time.Minute)
			servertest.WantWaits(t, visits, 0, 1, 2, -1, -1, 2, -1)
		})
	}
}

func TestOfSeveralZonesTheLongestWaitCounts(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, `throttle {
			zone quick {
				limit 20 4/s
				delay
			}
			zone slow {
				limit 6 1/s
				delay 1
			}
			zone plain {
				limit 20 1/s
			}
		}`, 0)
		visits := s.Visits(5, servertest.Office, "/")
		servertest.Sleep(time.Minute)
		servertest.WantWaits(t, visits, 0, 0.25, 1, 2, 3)
		servertest.WantCounts(t, "quick", map[string]float64{"admitted": 1, "delayed": 4})
		servertest.WantCounts(t, "slow", map[string]float64{"admitted": 2, "delayed": 3})
		servertest.WantCounts(t, "plain", map[string]float64{"admitted": 5})
		o := visits[4].Verdict.Decisive()
		if got := o.Zone.Name; got != "slow" && got != "quick" {
			t.Errorf("got %s as the deciding zone, want one that delays", got)
		}
		servertest.WantEmpty(t, "quick", "slow", "plain")
	})
}

func TestTheOrderOfAKeyIsKept(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		// Their turns are a millisecond apart, so none is served with the next.
		s := servertest.NewWaitZone(t, "limit 400 1000/s\ndelay", 0)
		var mu sync.Mutex
		var order []string
		s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, r.URL.Path)
			return nil
		}
		var want []string
		for i := range 300 {
			want = append(want, fmt.Sprint("/", i))
			s.Visit(servertest.Office, want[i])
		}
		servertest.Sleep(time.Minute)
		check.Slices(t, order, want, "the order, want that in which they came")
	})
}

func TestPlaceholdersAndTheAccessLogTellOfTheDelay(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, servertest.LikeNginx, 0)
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
			_, err := w.Write([]byte(repl.ReplaceKnown("{http.throttle.decision} {http.throttle.delay} {http.throttle.reason}.", "")))
			return err
		}
		visits := s.Visits(3, servertest.Office, "/")
		servertest.Sleep(time.Minute)
		for i, want := range []string{"admitted 0 .", "delayed 1 .", "delayed 2 ."} {
			check.Equal(t, visits[i].Body.String(), want, "request %d", i+1)
		}
		got := servertest.Logged(visits[2].Verdict)
		check.That(t, got["decision"] == "delayed" && got["delay"] == 2.0 && got["level"] == 3.0, "got %v in the access log, want delayed by 2 seconds up to a level of 3", got)
		got = servertest.Logged(visits[0].Verdict)
		check.That(t, got["delay"] == nil, "got %v in the access log, want no delay", got)
	})
}

// What is ahead of a request leaks while its body comes.
func TestAnUploadIsPartOfTheWait(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone waits {\n"+servertest.LikeNginx+"\n}\nzone login {\nlimit 100 1/d\nfield pwd\n}\n}", 0)
		var visits []*servertest.Visit
		for _, takes := range []time.Duration{0, 500 * time.Millisecond, 5 * time.Second, time.Second} {
			body, send := io.Pipe()
			r := httptest.NewRequest(http.MethodPost, "http://example.com/", body)
			r.RemoteAddr = servertest.Office + ":1"
			visits = append(visits, s.Come(r))
			time.AfterFunc(takes, func() { send.Close() })
		}
		servertest.Sleep(time.Minute)
		servertest.WantWaits(t, visits, 0, 1, 5, 3)
	})
}
