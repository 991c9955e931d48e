package telemetry_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// heardOf runs a site with a zone, whose events a listener hears.
func heardOf(t *testing.T, zone string) *servertest.Site {
	t.Helper()
	heard.events = nil
	s := servertest.Start(t, servertest.Run(t, `{
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
	events, err := s.Ctx.App("events")
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
			c := s.From(servertest.Someone)
			c.Get("/")
			wantHeard(t)
			for range 5 {
				c.Get("/")
			}
			wantHeard(t, fmt.Sprintf("throttle_overflow map[key:203.0.113.7 reason:capacity shadow:%v zone:some]", shadow))
			<-time.After(50 * time.Second)
			c.Get("/")
			c.Get("/")
			wantHeard(t)
			<-time.After(59 * time.Second)
			wantHeard(t)
			<-time.After(2 * time.Second)
			wantHeard(t, fmt.Sprintf("throttle_recovered map[key:203.0.113.7 requests:6 seconds:50 shadow:%v zone:some]", shadow))
			c.Get("/")
			c.Get("/")
			wantHeard(t, fmt.Sprintf("throttle_overflow map[key:203.0.113.7 reason:capacity shadow:%v zone:some]", shadow))
			<-time.After(2 * time.Minute)
		})
	}
}

func TestSubscribersHearOfEachBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := heardOf(t, "limit 1 1/s\nblock 10s\noverride 203.0.113.66 deny")
		c := s.From(servertest.Someone)
		for range 4 {
			c.Get("/")
		}
		s.From("203.0.113.66:1").Get("/") // is refused, and overflows nothing
		wantHeard(t,
			"throttle_blocked map[key:203.0.113.7 seconds:10 shadow:false zone:some]",
			"throttle_overflow map[key:203.0.113.7 reason:capacity shadow:false zone:some]")
		<-time.After(2 * time.Minute)
	})
}
