package caddymodule

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestAStoreThatHangsCostsNobodyMoreThanItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runShared(t, "store_timeout 20ms", "zone z {\ncapacity 100\nleak 1/h\nsettle header X-Cost\n}")
		c := s.from(someone)
		theShared.hung.Store(true)
		for i := range 10 {
			start := time.Now()
			if w := c.get("/"); w.Code != http.StatusOK {
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
		theShared.hung.Store(false)
		<-time.After(time.Second)
		synctest.Wait()
		before := theShared.takes.Load()
		c.get("/")
		if got := theShared.takes.Load(); got != before+1 {
			t.Errorf("a second after it answers again: got it asked %d times by a request, want once", got-before)
		}
	})
}

// It would be asked by requests again and again otherwise, each of which waits.
func TestAStoreThatAnswersTooLateIsDownUntilItAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runShared(t, "", "zone z {\ncapacity 10000\nleak 1/h\n}")
		c := s.from(someone)
		theShared.slow.Store(int64(60 * time.Millisecond))
		late := 0
		for start := time.Now(); time.Since(start) < 30*time.Second; {
			before := time.Now()
			c.get("/")
			if time.Since(before) > 0 {
				late++
			}
			<-time.After(10 * time.Millisecond)
		}
		if late != failuresToOpen {
			t.Errorf("in 30s of answers after 60ms: got %d requests that waited, want %d", late, failuresToOpen)
		}
		theShared.slow.Store(int64(10 * time.Millisecond))
		<-time.After(time.Second)
		synctest.Wait()
		before := theShared.takes.Load()
		c.get("/")
		if got := theShared.takes.Load() - before; got != 1 {
			t.Errorf("a second after it answers in time again: got it asked %d times by a request, want once", got)
		}
	})
}

func TestAnOutageIsSaidOnceAndItsEndToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runShared(t, "", "zone z {\ncapacity 100\nleak 1/h\n}")
		c := s.from(someone)
		theShared.down.Store(true)
		c.statuses(50, "/")
		<-time.After(3 * time.Second)
		theShared.down.Store(false)
		<-time.After(time.Second)
		synctest.Wait()
		c.statuses(5, "/")
		for text, want := range map[string]int{"the store is down": 1, "the store is up again": 1, "asking the store": 1} {
			if got := len(s.logs.lines(t, text)); got != want {
				t.Errorf("log lines that say %q: got %d, want %d", text, got, want)
			}
		}
		for name, want := range map[string]float64{
			"caddy_throttle_store_up": 1, "caddy_throttle_store_outages_total": 1, "caddy_throttle_store_errors_total": failuresToOpen,
			"caddy_throttle_without_store_total": 50,
		} {
			if got := s.metric(t, name); len(got) != 1 || got[0].value != want {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
		}
	})
}

// Something else stands under one name. That is no reason to do without the store
// for all others, however often that one is asked for.
func TestABucketThatIsNoneIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runShared(t, "on_store_error deny", "zone z {\ncapacity 100\nleak 1/h\n}")
		theShared.none = "203.0.113.99"
		s.from("203.0.113.99:1").wantStatuses("/", map[int]int{503: 20})
		s.from(someone).wantStatuses("/", map[int]int{200: 20})
		if got := s.metric(t, "caddy_throttle_store_outages_total"); len(got) != 1 || got[0].value != 0 {
			t.Errorf("outages: got %v, want none", got)
		}
		if got := len(s.logs.lines(t, "asking the store")); got != 1 {
			t.Errorf("log lines of it: got %d, want 1", got)
		}
	})
}

// Requests have no time to learn that a password is wrong; probes have.
func TestWhyAStoreIsDownIsSaidOnceItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runShared(t, "", "zone z {\ncapacity 100\nleak 1/h\n}")
		theShared.hung.Store(true)
		s.from(someone).statuses(5, "/")
		theShared.down.Store(true)
		theShared.hung.Store(false)
		<-time.After(10 * time.Second)
		lines := s.logs.lines(t, "why the store is down")
		if len(lines) != 1 || lines[0]["error"] != "connection refused" {
			t.Errorf("got %v, want one line that says that the connection was refused", lines)
		}
	})
}
