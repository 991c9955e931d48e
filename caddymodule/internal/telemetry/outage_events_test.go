package telemetry_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
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

func TestSubscribersHearOfAnOutageAndOfItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard.events = nil
		s := servertest.RunSharedWith(t, "events {\non throttle_store_down test_listener\non throttle_store_up test_listener\n}", "", "zone z {\nlimit 100 1/h\n}")
		events, err := s.Ctx.App("events")
		if err != nil {
			t.Fatal(err)
		}
		if err := events.(*caddyevents.App).Start(); err != nil {
			t.Fatal(err)
		}
		servertest.TheShared.Down.Store(true)
		s.From(servertest.Someone).Statuses(50, "/")
		<-time.After(3*time.Second - time.Millisecond)
		servertest.TheShared.Down.Store(false)
		<-time.After(2 * time.Second)
		synctest.Wait()
		var names []string
		for _, event := range heard.events {
			names = append(names, event.Name())
			if got := event.Data["store"]; got != "test_shared" {
				t.Errorf("%s: got store %v, want test_shared", event.Name(), got)
			}
		}
		if want := []string{"throttle_store_down", "throttle_store_up"}; !slices.Equal(names, want) {
			t.Fatalf("got events %v, want %v", names, want)
		}
		if got := heard.events[0].Data["error"]; got != "connection refused" {
			t.Errorf("down: got error %v, want connection refused", got)
		}
		if got, _ := heard.events[1].Data["seconds"].(float64); got < 3 || got > 5 {
			t.Errorf("up: got seconds %v, want 3 to 5", got)
		}
	})
}
