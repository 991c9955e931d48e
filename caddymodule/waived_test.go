package caddymodule

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
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
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, zone, 30*time.Minute)
			visits := s.visits(4, office, "/")
			for i, v := range visits {
				if v.reached != (i == 0) {
					t.Fatalf("%q, request %d: got it served: %v, want only the first", zone, i+1, v.reached)
				}
			}
			s.app.engine.Control.Changes.Table.Apply(time.Now(), override.NewShadow("other", override.Span{Since: time.Now(), Until: time.Now().Add(time.Hour)}))
			pass(time.Second)
			if visits[1].reached {
				t.Errorf("%q: got a request served while another zone is in shadow, want it to wait", zone)
			}
			s.app.engine.Control.Changes.Table.Apply(time.Now(), override.NewShadow("", override.Span{Since: time.Now(), Until: time.Now().Add(time.Hour)}))
			pass(time.Millisecond)
			for i, v := range append(visits, s.visit(office, "/")) {
				if !v.reached {
					t.Errorf("%q, request %d: got it waiting, want it served", zone, i+1)
				}
			}
			pass(time.Hour) // all are over
			for i, v := range visits {
				if v.Code != http.StatusOK {
					t.Errorf("%q, request %d: got %d, want 200", zone, i+1, v.Code)
				}
			}
			if waiting, served := s.app.engine.Zones["waits"].State.Enforced.Counts(); waiting != 0 || served != 0 {
				t.Errorf("%q: got %d waiting and %d slots taken, want none left", zone, waiting, served)
			}
			s.app.engine.Control.Changes.Table.Apply(time.Now(), override.Entry{Name: override.Name{Kind: override.OfShadow, Zone: ""}, Ended: true})
			more := s.visits(2, visitor, "/")
			if !more[0].reached || more[1].reached {
				t.Errorf("%q: got served %v, %v after the switch, want the second to wait", zone, more[0].reached, more[1].reached)
			}
			pass(3 * time.Hour)
		})
	}
}
