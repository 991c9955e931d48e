package caddymodule

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
)

// heardOf runs a site with a zone, whose events a listener hears.
func heardOf(t *testing.T, zone string) *site {
	t.Helper()
	heard.events = nil
	s := withApp(t, run(t, `{
		events {
			on throttle_overflow test_listener
			on throttle_recovered test_listener
			on throttle_blocked test_listener
		}
	}
	http:// {
		throttle {
			zone some {
				`+zone+`
			}
		}
		respond ok
	}`))
	events, err := s.ctx.App("events")
	if err != nil {
		t.Fatal(err)
	}
	if err := events.(*caddyevents.App).Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func wantHeard(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	heard.Lock()
	defer heard.Unlock()
	var got []string
	for _, e := range heard.events {
		got = append(got, fmt.Sprint(e.Name(), " ", e.Data))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got the events\n%q, want\n%q", got, want)
	}
	heard.events = nil
}

func TestSubscribersHearOnceThatAKeyOverflowsAndThatItHasRecovered(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		option := map[bool]string{true: "shadow"}[shadow]
		synctest.Test(t, func(t *testing.T) {
			s := heardOf(t, "limit 1 1/s\n"+option)
			c := s.from(someone)
			c.get("/")
			wantHeard(t)
			for range 5 {
				c.get("/")
			}
			wantHeard(t, fmt.Sprintf("throttle_overflow map[key:203.0.113.7 reason:capacity shadow:%v zone:some]", shadow))
			<-time.After(50 * time.Second)
			c.get("/")
			c.get("/")
			wantHeard(t)
			<-time.After(59 * time.Second)
			wantHeard(t)
			<-time.After(2 * time.Second)
			wantHeard(t, fmt.Sprintf("throttle_recovered map[key:203.0.113.7 requests:6 seconds:50 shadow:%v zone:some]", shadow))
			c.get("/")
			c.get("/")
			wantHeard(t, fmt.Sprintf("throttle_overflow map[key:203.0.113.7 reason:capacity shadow:%v zone:some]", shadow))
			<-time.After(2 * time.Minute)
		})
	}
}

func TestSubscribersHearOfEachBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := heardOf(t, "limit 1 1/s\nblock 10s\noverride 203.0.113.66 deny")
		c := s.from(someone)
		for range 4 {
			c.get("/")
		}
		s.from("203.0.113.66:1").get("/") // is refused, and overflows nothing
		wantHeard(t,
			"throttle_blocked map[key:203.0.113.7 seconds:10 shadow:false zone:some]",
			"throttle_overflow map[key:203.0.113.7 reason:capacity shadow:false zone:some]")
		<-time.After(2 * time.Minute)
	})
}

func TestNothingIsKeptOfKeysWithoutSubscribers(t *testing.T) {
	s := withApp(t, run(t, "http:// {\nthrottle some 1 1/h\nrespond ok\n}"))
	s.from(someone).passes(1, "/")
	if got := len(s.app().zones["some"].overflows[decision.Refused].keys); got != 0 {
		t.Errorf("got %d keys, want none", got)
	}
}

func TestASlowSubscriberHoldsUpNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, told := make(chan struct{}), 0
		drops := func() int {
			var m dto.Metric
			if err := eventsDropped.Write(&m); err != nil {
				t.Fatal(err)
			}
			return int(m.GetCounter().GetValue())
		}
		before := drops()
		q := &background[event]{most: mostEvents, pass: func(event) {
			<-hang
			told++
		}}
		q.add(event{eventBlocked, nil})
		synctest.Wait() // for the subscriber to have this one in its hands
		f := &overflows{zone: "some", queue: q, wanted: func() subscriptions { return subscriptions{true, true} }}
		for i := range 3000 {
			o := &decision.Outcome{Key: fmt.Sprint(i), Began: true, Block: time.Second}
			o.Refuse(rule.Capacity)
			f.note(o)
		}
		synctest.Wait()
		f.mu.Lock()
		q.mu.Lock()
		if len(f.keys) != mostOverflowing || len(q.waiting) != mostEvents {
			t.Errorf("got %d keys and %d events, want %d and %d", len(f.keys), len(q.waiting), mostOverflowing, mostEvents)
		}
		q.mu.Unlock()
		f.mu.Unlock()
		close(hang)
		synctest.Wait()
		// Of the first, 3000 blocks and 1000 overflows.
		if all := told + drops() - before; all != 4001 || told != 1+mostEvents {
			t.Errorf("got %d told of %d, want %d of 4001", told, all, 1+mostEvents)
		}
		q.close()
		q.add(event{eventBlocked, nil})
		synctest.Wait()
		q.mu.Lock()
		if len(q.waiting) != 0 || q.passed != nil {
			t.Errorf("got %d waiting after the end, want none", len(q.waiting))
		}
		q.mu.Unlock()
		<-time.After(2 * time.Minute)
	})
}
