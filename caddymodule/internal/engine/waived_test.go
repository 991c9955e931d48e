package engine_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// A wait of an hour ends when the panic switch comes, for delays, slots and turns, and
// with a body that is read first.
func TestThePanicSwitchLetsWaitingRequestsThroughAtOnce(t *testing.T) {
	for _, zone := range []string{
		"limit 100 1/h\ndelay",
		"in_flight 1 wait 1h",
		"in_flight 1 wait 1h buffer 1KiB",
		"in_flight 1 wait 1h {\n\tshare\n}",
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, zone, 30*time.Minute)
			visits := s.Visits(4, servertest.Office, "/")
			for i, v := range visits {
				if v.Reached != (i == 0) {
					t.Fatalf("%q, request %d: got it served: %v, want only the first", zone, i+1, v.Reached)
				}
			}
			s.App.Engine().Control.Changes.Table.Apply(time.Now(), override.NewShadow("other", override.Span{Since: time.Now(), Until: time.Now().Add(time.Hour)}))
			servertest.Sleep(time.Second)
			if visits[1].Reached {
				t.Errorf("%q: got a request served while another zone is in shadow, want it to wait", zone)
			}
			s.App.Engine().Control.Changes.Table.Apply(time.Now(), override.NewShadow("", override.Span{Since: time.Now(), Until: time.Now().Add(time.Hour)}))
			servertest.Sleep(time.Millisecond)
			for i, v := range append(visits, s.Visit(servertest.Office, "/")) {
				if !v.Reached {
					t.Errorf("%q, request %d: got it waiting, want it served", zone, i+1)
				}
			}
			servertest.Sleep(time.Hour) // all are over
			for i, v := range visits {
				if v.Code != http.StatusOK {
					t.Errorf("%q, request %d: got %d, want 200", zone, i+1, v.Code)
				}
			}
			if waiting, served := s.App.Engine().Zones["waits"].State.Enforced.Counts(); waiting != 0 || served != 0 {
				t.Errorf("%q: got %d waiting and %d slots taken, want none left", zone, waiting, served)
			}
			s.App.Engine().Control.Changes.Table.Apply(time.Now(), override.Entry{Name: override.Name{Kind: override.OfShadow, Zone: ""}, Ended: true})
			more := s.Visits(2, servertest.Visitor, "/")
			if !more[0].Reached || more[1].Reached {
				t.Errorf("%q: got served %v, %v after the switch, want the second to wait", zone, more[0].Reached, more[1].Reached)
			}
			servertest.Sleep(3 * time.Hour)
		})
	}
}
