package caddymodule

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

func TestInFlightServesSoManyOfAKeyAtOnce(t *testing.T) {
	for _, options := range []string{"in_flight 2", "limit 100 1/d\nin_flight 2"} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, options, time.Second)
			visits := s.visits(3, office, "/")
			wantWaits(t, visits, -2, -2, -1)
			if v := visits[2]; v.Header().Get("Retry-After") != "1" || v.reached {
				t.Errorf("got Retry-After %q, want 1", v.Header().Get("Retry-After"))
			}
			other := s.visit(visitor, "/")
			pass(time.Second)
			visits = append(visits, other, s.visit(office, "/"))
			pass(time.Minute)
			wantWaits(t, visits, 0, 0, -1, 0, 0)
			wantCounts(t, "waits", map[string]float64{"admitted": 4, "refused in_flight": 1})
			emptyRooms(t, "waits")
		})
	}
}

func TestARequestThatFindsNoSlotIsNotCharged(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitSite(t, `throttle {
			zone waits {
				limit 100 1/d
				in_flight 1
			}
			zone beside {
				limit 100 1/d
			}
			zone strict {
				match {
					path /strict
				}
				limit 1 1/d
				block 1h
			}
		}`, time.Second)
		s.visit(office, "/strict")
		refused := s.visit(office, "/strict")
		for _, zone := range []string{"waits", "beside"} {
			if got := s.fullness(zone, office, 100, 1./86400, false); got != 1 {
				t.Errorf("zone %s: got level %v, want 1", zone, got)
			}
		}
		// The other zones are asked all the same: the refusal with the longest
		// wait is reported, and a block begins.
		if got := refused.Header().Get("Retry-After"); got != "86400" {
			t.Errorf("got Retry-After %q, want 86400", got)
		}
		wantCounts(t, "beside", map[string]float64{"admitted": 1})
		wantCounts(t, "waits", map[string]float64{"admitted": 1, "refused in_flight": 1})
		wantCounts(t, "strict", map[string]float64{"admitted": 1, "refused capacity": 1})
		if got := counted(t, telemetry.BlocksBegun, "strict"); got["refused"] != 1 {
			t.Errorf("got blocks %v, want 1", got)
		}
		pass(time.Minute)
		emptyRooms(t, "waits", "beside", "strict")
	})
}

func TestARefusalForAnotherReasonGivesTheSlotBack(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitSite(t, `throttle {
			zone waits {
				limit 2 1/d
				in_flight 5
			}
			zone other {
				in_flight 5
			}
		}`, 0)
		wantWaits(t, s.visits(4, office, "/"), 0, 0, -1, -1)
		wantCounts(t, "waits", map[string]float64{"admitted": 2, "refused capacity": 2})
		wantCounts(t, "other", map[string]float64{"admitted": 2})
		emptyRooms(t, "waits", "other")
	})
}

func TestEveryWayARequestCanEndGivesTheSlotBack(t *testing.T) {
	for name, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"response": func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(http.StatusOK); return nil },
		"nothing":  func(http.ResponseWriter, *http.Request) error { return nil },
		"error":    func(http.ResponseWriter, *http.Request) error { return errors.New("broken") },
		"panic":    func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) },
	} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, "in_flight 1", 0)
			s.serve = serve
			for range 3 {
				if v := s.visit(office, "/"); !v.reached {
					t.Errorf("%s: got %v, want to get to the upstream", name, v.Code)
				}
			}
			emptyRooms(t, "waits")
		})
	}
}

func TestAClientThatLeavesGivesTheSlotBack(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, "in_flight 1", time.Hour)
		first := s.visit(office, "/")
		wantWaits(t, s.visits(1, office, "/"), -1)
		first.leave()
		pass(0)
		if second := s.visit(office, "/"); !second.reached {
			t.Errorf("got %v, want to get to the upstream", second.Code)
		}
		pass(time.Hour)
		emptyRooms(t, "waits")
	})
}

func TestAThousandPanicsLoseNoSlot(t *testing.T) {
	for _, options := range []string{"in_flight 3", "limit 5000 1/s\nin_flight 3", "in_flight 3 wait 1h"} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, options, 0)
			s.serve = func(w http.ResponseWriter, r *http.Request) error {
				<-time.After(time.Millisecond)
				panic(http.ErrAbortHandler)
			}
			for range 500 {
				for _, v := range s.visits(2, office, "/") {
					if pass(time.Millisecond); v.panicked != http.ErrAbortHandler {
						t.Fatalf("%s: got %v, panic %v, want the upstream's panic", options, v.Code, v.panicked)
					}
				}
			}
			emptyRooms(t, "waits")
		})
	}
}

func TestATunnelKeepsNoSlot(t *testing.T) {
	upgrade := func(method string, major int) *http.Request {
		r := httptest.NewRequest(method, "http://example.com/", nil)
		r.ProtoMajor, r.RemoteAddr = major, office+":1"
		if major == 1 {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
		}
		return r
	}
	for _, test := range []struct {
		name   string
		r      *http.Request
		begin  func(w http.ResponseWriter)
		tunnel bool
	}{
		{"101", upgrade("GET", 1), func(w http.ResponseWriter) { w.WriteHeader(http.StatusSwitchingProtocols) }, true},
		{"upgrade declined", upgrade("GET", 1), func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) }, false},
		{"hints before an upgrade", upgrade("GET", 1), func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints) }, false},
		{"CONNECT in HTTP/2", upgrade("CONNECT", 2), func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) }, true},
		{"CONNECT declined", upgrade("CONNECT", 2), func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) }, false},
		{"GET in HTTP/2", upgrade("GET", 2), func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) }, false},
	} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, "in_flight 1\nlimit 1000 1/d\nsettle seconds", 0)
			s.serve = func(w http.ResponseWriter, r *http.Request) error {
				test.begin(w)
				<-time.After(time.Hour)
				return nil
			}
			s.come(test.r)
			if second := s.visit(office, "/"); second.reached != test.tunnel {
				t.Errorf("%s: the next one gets to the upstream: got %v, want %v", test.name, second.reached, test.tunnel)
			}
			pass(2 * time.Hour)
			emptyRooms(t, "waits")
		})
	}
}

// A request that is refused anyway must not keep a slot from another one while
// the store is asked about it.
func TestARequestThatWaitsForTheStoreHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := runShared(t, "", "zone clients {\nlimit 1 1/h\n}\nzone server {\nkey text all\nin_flight 1\n}")
		greedy, lawful := s.from(someone), s.from("198.51.100.1:1")
		greedy.wantStatuses("/", map[int]int{200: 1})
		theShared.slow.Store(int64(30 * time.Millisecond))
		over := make(chan int)
		go func() { over <- greedy.get("/").Code }()
		<-time.After(10 * time.Millisecond)
		if got := lawful.get("/").Code; got != http.StatusOK {
			t.Errorf("while a request over its limit waits for the store: got %v for another client, want 200", got)
		}
		if got := <-over; got != http.StatusTooManyRequests {
			t.Errorf("the request over its limit: got %v, want 429", got)
		}
	})
}

func TestATunnelKeepsNoSlotOfTheHandlersAroundIt(t *testing.T) {
	const zone = "throttle {\nzone %s {\nkey text all\nin_flight 1\n}\n}\n"
	for _, inner := range []string{"in_flight 1", "in_flight 1 wait 1m", "in_flight 1\nshadow", "limit 100 1/h\nsettle seconds"} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitSite(t, fmt.Sprintf(zone, "outer")+"throttle {\nzone inner {\nkey text all\n"+inner+"\n}\n}\n"+fmt.Sprintf(zone, "innermost"), 0)
			s.serve = func(w http.ResponseWriter, _ *http.Request) error {
				w.WriteHeader(http.StatusSwitchingProtocols)
				<-time.After(time.Hour)
				return nil
			}
			for range 3 {
				if v := s.visit(office, "/", "Connection", "Upgrade", "Upgrade", "websocket"); !v.reached {
					t.Errorf("inner %s: got %v for the next one, want it at the upstream", inner, v.Code)
				}
			}
			emptyRooms(t, "outer", "inner", "innermost") // while the tunnels last
			pass(2 * time.Hour)
			emptyRooms(t, "outer", "inner", "innermost")
		})
	}
}

// The last slot is taken while the store decides, and the store admits the
// request.
func TestARequestWhoseSlotIsTakenWhileTheStoreIsAskedIsNotCharged(t *testing.T) {
	for _, test := range []struct {
		options       string
		beside, slots float64 // levels
		counts        map[string]float64
	}{
		{"", 1, 1, map[string]float64{"admitted": 1, "refused in_flight": 1}},
		{"settle header X-Cost", 1, 5, map[string]float64{"admitted": 1, "refused in_flight": 1}},
		{"shadow", 2, 1, map[string]float64{"admitted": 1, "shadow_refused in_flight": 1}},
		{"shadow\nsettle header X-Cost", 2, 5, map[string]float64{"admitted": 1, "shadow_refused in_flight": 1}},
	} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitSite(t, "throttle {\nzone beside {\nlimit 100 1/d\nblock 1h\n}\nzone slots {\nblock 1h\nlimit 100 1/d\nin_flight 1\n"+test.options+"\n}\n}", 0)
			s.store.slow = 30 * time.Millisecond
			s.serve = func(w http.ResponseWriter, _ *http.Request) error {
				w.Header().Set("X-Cost", "5")
				<-time.After(time.Second)
				return nil
			}
			s.visits(2, office, "/")
			pass(time.Minute)
			wantCounts(t, "slots", test.counts)
			for zone, want := range map[string]float64{"beside": test.beside, "slots": test.slots} {
				got := s.fullness(zone, office, 100, 1./86400, zone == "slots" && strings.HasPrefix(test.options, "shadow"))
				if math.Abs(got-want) > 0.01 {
					t.Errorf("%q: got level %v of zone %s, want %v", test.options, got, zone, want)
				}
			}
			emptyRooms(t, "slots")
		})
	}
}
