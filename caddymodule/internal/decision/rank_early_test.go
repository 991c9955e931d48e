package decision_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// filledSite is a site with one slot, which members hold and wait for without end, and a
// member who has logged in before.
func filledSite(t *testing.T, zone, options string) (s *servertest.FuncSite, ann *person) {
	t.Helper()
	s = wordpressSite(t, zone, "rank member issued wordpress_logged_in_*\n"+options)
	ann = newPerson(s, "203.0.113.1")
	ann.keeps(ann.opens("POST", "/?login=ann"))
	wantRank(ann.opens("GET", "/"), t, "member")
	return s, ann
}

// slowly lets the site take so long for each request from now on.
func slowly(s *servertest.FuncSite, takes time.Duration) {
	serve := s.Serve
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		time.Sleep(takes)
		return serve(w, r)
	}
}

func TestAMemberWhoOpensFortyTabsIsServedWithinHalfAMinute(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s, ann := filledSite(t, "tabs", "")
		slowly(s, 500*time.Millisecond)
		began := time.Now()
		refused := 0
		for range 40 {
			v := ann.opens("GET", "/")
			if !v.Ended {
				continue
			}
			refused++
			if wait := ann.keeps(v); wait < time.Second || wait > 10*time.Second {
				t.Errorf("got Retry-After %v, want the rest of 5 to 10 s", wait)
			}
		}
		if refused == 0 { // one at least; the others may wait if their time is near
			t.Error("got no tab refused")
		}
		servertest.Sleep(time.Second)
		again := ann.opens("GET", "/") // she clicks again
		for !again.Ended || again.Code == http.StatusServiceUnavailable {
			if again.Ended {
				servertest.Sleep(ann.keeps(again))
				again = ann.opens("GET", "/")
			}
			if servertest.Sleep(100 * time.Millisecond); time.Since(began) > 30*time.Second {
				t.Fatal("got her not served within 30 s")
			}
		}
		if rank := standing(again, t).Rank.String(); rank != "member" && rank != "returned" {
			t.Errorf("got the rank %s, want member or returned", rank)
		}
		servertest.Sleep(time.Minute)
		servertest.WantEmpty(t, "tabs")
	})
}

// Her slots are held by others, and nobody gets one for long.
func TestAnEarlyRequestOfAMemberMovesNothing(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s, ann := filledSite(t, "eager", "wait 4s")
		slowly(s, time.Hour)
		for i := range 30 {
			s.Visit("198.51.100."+strconv.Itoa(i), "/")
		}
		first := ann.opens("GET", "/")
		servertest.Sleep(4 * time.Second) // a member may wait
		wait := ann.keeps(first)
		told := time.Now().Add(wait).Truncate(time.Second)
		if first.Code != http.StatusServiceUnavailable || wait < 5*time.Second || wait > 10*time.Second {
			t.Fatalf("got %d and Retry-After %v, want 5 to 10 s", first.Code, wait)
		}
		for range 3 { // she clicks again at once, which is more than wait too early
			early := ann.opens("GET", "/")
			if got, rest := ann.keeps(early), time.Until(told); early.Code != http.StatusServiceUnavailable || got < rest || got > rest+time.Second {
				t.Errorf("got %d and Retry-After %v, want it refused with the rest of %v", early.Code, got, rest)
			}
		}
		servertest.Sleep(time.Until(told) - 2*time.Second)
		waits := ann.opens("GET", "/")
		if servertest.Sleep(5900 * time.Millisecond); waits.Ended {
			t.Errorf("got it ended after %v, want it to wait for its time, and then for as long as one who has come back", waits.Waited)
		}
		if servertest.Sleep(200 * time.Millisecond); waits.Code != http.StatusServiceUnavailable {
			t.Errorf("got %d, want it refused when wait is over", waits.Code)
		}
		servertest.Sleep(3 * time.Hour)
		servertest.WantEmpty(t, "eager")
	})
}

// However often a member is refused, the wait does not double.
func TestAMembersRefusalsNeverOrderMoreThanTenSeconds(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s, ann := filledSite(t, "often", "wait 1s")
		slowly(s, time.Hour)
		for i := range 10 {
			s.Visit("198.51.100."+strconv.Itoa(i), "/")
		}
		for try := range 8 {
			v := ann.opens("GET", "/")
			servertest.Sleep(2 * time.Second)
			if v.Code != http.StatusServiceUnavailable {
				t.Fatalf("try %d: got %d", try+1, v.Code)
			}
			wait := ann.keeps(v)
			if wait < 5*time.Second || wait > 10*time.Second {
				t.Errorf("try %d: got Retry-After %v, want 5 to 10 s", try+1, wait)
			}
			servertest.Sleep(wait)
		}
		servertest.Sleep(3 * time.Hour)
	})
}

// A client that keeps its first pass is early after each refusal, also if it says that it
// asks for an image.
func TestAClientThatKeepsItsFirstPassComesEarly(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		for zone, headers := range map[string][]string{"kept": nil, "images": {"Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}} {
			s := busySite(t, zone, "", time.Hour)
			robot := newPerson(s, "203.0.113.1")
			robot.keeps(robot.opens("GET", "/"))
			servertest.Sleep(time.Minute)
			again := robot.opens("GET", "/", headers...)
			servertest.Sleep(5 * time.Second) // it may wait
			if again.Code != http.StatusServiceUnavailable {
				t.Fatalf("%s: got %d, want it refused", zone, again.Code)
			}
			robot.opens("GET", "/", headers...)
			servertest.Sleep(6 * time.Second)
			if got := servertest.Counted(t, telemetry.Passes, zone); got["valid"] != 1 || got["early"] != 1 {
				t.Errorf("%s: got the passes %v, want a valid one and then an early one", zone, got)
			}
			servertest.Sleep(3 * time.Hour)
		}
	})
}
