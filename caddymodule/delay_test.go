package caddymodule

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

const office, visitor = "203.0.113.7", "198.51.100.1"

// nginx's waits for rate=1r/s burst=5.
const likeNginx = "limit 6 1/s\ndelay"

// wantWaits checks how long requests wait, in seconds. A refused request is -1.
func wantWaits(t *testing.T, visits []*visit, want ...float64) {
	t.Helper()
	var got []float64
	for _, v := range visits {
		switch {
		case !v.ended:
			got = append(got, -2)
		case v.Code == http.StatusTooManyRequests:
			got = append(got, -1)
		default:
			got = append(got, v.waited.Round(time.Millisecond).Seconds())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got waits of %v seconds, want %v", got, want)
	}
}

func TestSevenInOneInstantWaitAsInNginxAndTheSeventhIsRefused(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, likeNginx, 0)
		visits := s.visits(7, office, "/")
		pass(time.Minute)
		wantWaits(t, visits, 0, 1, 2, 3, 4, 5, -1)
		if got := visits[6].Header().Get("Retry-After"); got != "6" {
			t.Errorf("got Retry-After %q, want 6", got)
		}
		wantCounts(t, "waits", map[string]float64{"admitted": 1, "delayed": 5, "refused capacity": 1})
		emptyRooms(t, "waits")
	})
}

func TestDelayLetsPassWhatIsUndelayed(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, "limit 6 2/s\ndelay 2", 0)
		visits := s.visits(7, office, "/")
		pass(time.Minute)
		wantWaits(t, visits, 0, 0, 0, 0.5, 1, 1.5, -1)
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, likeNginx, 0)
		visits := slices.Concat(s.visits(3, office, "/"), s.visits(2, visitor, "/"))
		pass(time.Minute)
		wantWaits(t, visits, 0, 1, 2, 0, 1)
	})
}

func TestMaxWaitRefusesWhatWouldWaitLongerAndSaysWhenItWouldNot(t *testing.T) {
	for _, test := range []struct{ option, want string }{
		{"", "3"}, // until the bucket is empty
		{"refusal retry_after fit", "1"},
	} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, likeNginx+" wait 2s\n"+test.option, 0)
			visits := s.visits(5, office, "/")
			if got := visits[3].Header().Get("Retry-After"); got != test.want {
				t.Errorf("%q: got Retry-After %q, want %v", test.option, got, test.want)
			}
			pass(time.Second)
			visits = append(visits, s.visit(office, "/"), s.visit(office, "/"))
			pass(time.Minute)
			wantWaits(t, visits, 0, 1, 2, -1, -1, 2, -1)
		})
	}
}

func TestOfSeveralZonesTheLongestWaitCounts(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitSite(t, `throttle {
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
		visits := s.visits(5, office, "/")
		pass(time.Minute)
		wantWaits(t, visits, 0, 0.25, 1, 2, 3)
		wantCounts(t, "quick", map[string]float64{"admitted": 1, "delayed": 4})
		wantCounts(t, "slow", map[string]float64{"admitted": 2, "delayed": 3})
		wantCounts(t, "plain", map[string]float64{"admitted": 5})
		o := visits[4].result.Decisive()
		if got := o.Zone.Name; got != "slow" && got != "quick" {
			t.Errorf("got %s as the deciding zone, want one that delays", got)
		}
		emptyRooms(t, "quick", "slow", "plain")
	})
}

func TestTheOrderOfAKeyIsKept(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		// Their turns are a millisecond apart, so none is served with the next.
		s := newWaitZone(t, "limit 400 1000/s\ndelay", 0)
		var mu sync.Mutex
		var order []string
		s.serve = func(_ http.ResponseWriter, r *http.Request) error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, r.URL.Path)
			return nil
		}
		var want []string
		for i := range 300 {
			want = append(want, fmt.Sprint("/", i))
			s.visit(office, want[i])
		}
		pass(time.Minute)
		if !slices.Equal(order, want) {
			t.Errorf("got the order %v, want that in which they came", order)
		}
	})
}

func TestPlaceholdersAndTheAccessLogTellOfTheDelay(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, likeNginx, 0)
		s.serve = func(w http.ResponseWriter, r *http.Request) error {
			repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
			_, err := w.Write([]byte(repl.ReplaceKnown("{http.throttle.decision} {http.throttle.delay} {http.throttle.reason}.", "")))
			return err
		}
		visits := s.visits(3, office, "/")
		pass(time.Minute)
		for i, want := range []string{"admitted 0 .", "delayed 1 .", "delayed 2 ."} {
			if got := visits[i].Body.String(); got != want {
				t.Errorf("request %d: got %q, want %q", i+1, got, want)
			}
		}
		got := settleLogged(visits[2].result)
		if got["decision"] != "delayed" || got["delay"] != 2.0 || got["level"] != 3.0 {
			t.Errorf("got %v in the access log, want delayed by 2 seconds up to a level of 3", got)
		}
		if got := settleLogged(visits[0].result); got["delay"] != nil {
			t.Errorf("got %v in the access log, want no delay", got)
		}
	})
}

func TestAShadowDelaysNobodyAndCountsWhatEnforcementWould(t *testing.T) {
	for _, options := range []string{
		"limit 5 2/s\ndelay 1",
		"limit 20 2/s\ndelay wait 2s",
		"limit 20 2/s\ndelay queue 3",
		"limit 20 2/s\ndelay 2 wait 3s queue 4\ncost 0.5 {\nremote_ip 203.0.113.1\n}",
	} {
		counts := func(option string) (counts map[string]float64, longest time.Duration) {
			inSettleBubble(t, func(t *testing.T) {
				s := newWaitZone(t, options+"\n"+option, 0)
				traffic := randomTrace(1, 3)
				for i := range 2000 {
					v := s.visit(traffic.addrs[i%3], "/")
					longest = max(longest, v.waited)
					pass(traffic.rest())
				}
				pass(time.Hour)
				counts = counted(t, telemetry.Requests, "waits")
				emptyRooms(t, "waits")
			})
			return counts, longest
		}
		enforced, _ := counts("")
		shadow, longest := counts("shadow")
		if enforced["delayed"] == 0 || enforced["refused capacity"]+enforced["refused waiting"] == 0 {
			t.Fatalf("%s: got %v, want some delayed and some refused", options, enforced)
		}
		for decision, n := range enforced {
			if decision != "admitted" {
				decision = "shadow_" + decision
			}
			if shadow[decision] != n {
				t.Errorf("%s: got %v in shadow, want what was enforced: %v", options, shadow, enforced)
			}
		}
		if longest != 0 {
			t.Errorf("%s: somebody waited for %v in shadow", options, longest)
		}
	}
}
