package telemetry_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A listener is an event handler that records its events.
type listener struct{}

var heard struct {
	sync.Mutex
	events []caddy.Event
}

func init() { caddy.RegisterModule(listener{}) }

func (listener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.test_listener", New: func() caddy.Module { return new(listener) }}
}

func (*listener) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	return nil
}

func (*listener) Handle(_ context.Context, event caddy.Event) error {
	heard.Lock()
	defer heard.Unlock()
	heard.events = append(heard.events, event)
	return nil
}

var _ caddyevents.Handler = (*listener)(nil)

// startEvents starts the app of events, and forgets those of earlier tests.
func startEvents(s *servertest.Site) {
	s.Helper()
	heard.events = nil
	events, err := s.Ctx.App("events")
	check.OK(s, err)
	check.OK(s, events.(*caddyevents.App).Start())
}

func TestSubscribersHearOfAnOutageAndOfItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunSharedWith(t, "events {\non throttle_store_down test_listener\non throttle_store_up test_listener\n}", "", "zone z {\nlimit 100 1/h\n}")
		startEvents(s)
		servertest.TheShared.Down.Store(true)
		s.From(servertest.Someone).Statuses(50, "/")
		<-time.After(3*time.Second - time.Millisecond)
		servertest.TheShared.Down.Store(false)
		<-time.After(2 * time.Second)
		synctest.Wait()
		var names []string
		for _, event := range heard.events {
			names = append(names, event.Name())
			check.Equal(t, event.Data["store"], any("test_shared"), "%s: the store", event.Name())
		}
		want := []string{"throttle_store_down", "throttle_store_up"}
		check.Assume(t, slices.Equal(names, want), "got events %v, want %v", names, want)
		check.Equal(t, heard.events[0].Data["error"], any("connection refused"), "down: the error")
		took, _ := heard.events[1].Data["seconds"].(float64)
		check.That(t, took >= 3 && took <= 5, "up: got seconds %v, want 3 to 5", took)
	})
}

// heardOf runs a site with a zone, whose events a listener hears.
func heardOf(t *testing.T, zone string) *servertest.Site {
	t.Helper()
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
	startEvents(s)
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
	check.That(t, slices.Equal(got, want), "got the events\n%q, want\n%q", got, want)
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
			c.Statuses(5, "/")
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
		c.Statuses(4, "/")
		s.From("203.0.113.66:1").Get("/") // is refused, and overflows nothing
		wantHeard(t,
			"throttle_blocked map[key:203.0.113.7 seconds:10 shadow:false zone:some]",
			"throttle_overflow map[key:203.0.113.7 reason:capacity shadow:false zone:some]")
		<-time.After(2 * time.Minute)
	})
}
