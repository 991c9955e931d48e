package engine_test

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

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

func TestInFlightServesSoManyOfAKeyAtOnce(t *testing.T) {
	for _, options := range []string{"in_flight 2", "limit 100 1/d\nin_flight 2"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, options, time.Second)
			visits := s.Visits(3, servertest.Office, "/")
			servertest.WantWaits(t, visits, -2, -2, -1)
			if v := visits[2]; v.Header().Get("Retry-After") != "1" || v.Reached {
				t.Errorf("got Retry-After %q, want 1", v.Header().Get("Retry-After"))
			}
			other := s.Visit(servertest.Visitor, "/")
			servertest.Sleep(time.Second)
			visits = append(visits, other, s.Visit(servertest.Office, "/"))
			servertest.Sleep(time.Minute)
			servertest.WantWaits(t, visits, 0, 0, -1, 0, 0)
			servertest.WantCounts(t, "waits", map[string]float64{"admitted": 4, "refused in_flight": 1})
			servertest.WantEmpty(t, "waits")
		})
	}
}

func TestARequestThatFindsNoSlotIsNotCharged(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, `throttle {
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
		s.Visit(servertest.Office, "/strict")
		refused := s.Visit(servertest.Office, "/strict")
		for _, zone := range []string{"waits", "beside"} {
			if got := s.Fullness(zone, servertest.Office, 100, 1./86400, false); got != 1 {
				t.Errorf("zone %s: got level %v, want 1", zone, got)
			}
		}
		// The other zones are asked all the same: the refusal with the longest
		// wait is reported, and a block begins.
		if got := refused.Header().Get("Retry-After"); got != "86400" {
			t.Errorf("got Retry-After %q, want 86400", got)
		}
		servertest.WantCounts(t, "beside", map[string]float64{"admitted": 1})
		servertest.WantCounts(t, "waits", map[string]float64{"admitted": 1, "refused in_flight": 1})
		servertest.WantCounts(t, "strict", map[string]float64{"admitted": 1, "refused capacity": 1})
		if got := servertest.Counted(t, telemetry.BlocksBegun, "strict"); got["refused"] != 1 {
			t.Errorf("got blocks %v, want 1", got)
		}
		servertest.Sleep(time.Minute)
		servertest.WantEmpty(t, "waits", "beside", "strict")
	})
}

func TestARefusalForAnotherReasonGivesTheSlotBack(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, `throttle {
			zone waits {
				limit 2 1/d
				in_flight 5
			}
			zone other {
				in_flight 5
			}
		}`, 0)
		servertest.WantWaits(t, s.Visits(4, servertest.Office, "/"), 0, 0, -1, -1)
		servertest.WantCounts(t, "waits", map[string]float64{"admitted": 2, "refused capacity": 2})
		servertest.WantCounts(t, "other", map[string]float64{"admitted": 2})
		servertest.WantEmpty(t, "waits", "other")
	})
}

func TestEveryWayARequestCanEndGivesTheSlotBack(t *testing.T) {
	for name, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"response": func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(http.StatusOK); return nil },
		"nothing":  func(http.ResponseWriter, *http.Request) error { return nil },
		"error":    func(http.ResponseWriter, *http.Request) error { return errors.New("broken") },
		"panic":    func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) },
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, "in_flight 1", 0)
			s.Serve = serve
			for range 3 {
				if v := s.Visit(servertest.Office, "/"); !v.Reached {
					t.Errorf("%s: got %v, want to get to the upstream", name, v.Code)
				}
			}
			servertest.WantEmpty(t, "waits")
		})
	}
}

func TestAClientThatLeavesGivesTheSlotBack(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, "in_flight 1", time.Hour)
		first := s.Visit(servertest.Office, "/")
		servertest.WantWaits(t, s.Visits(1, servertest.Office, "/"), -1)
		first.Leave()
		servertest.Sleep(0)
		if second := s.Visit(servertest.Office, "/"); !second.Reached {
			t.Errorf("got %v, want to get to the upstream", second.Code)
		}
		servertest.Sleep(time.Hour)
		servertest.WantEmpty(t, "waits")
	})
}

func TestAThousandPanicsLoseNoSlot(t *testing.T) {
	for _, options := range []string{"in_flight 3", "limit 5000 1/s\nin_flight 3", "in_flight 3 wait 1h"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, options, 0)
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				<-time.After(time.Millisecond)
				panic(http.ErrAbortHandler)
			}
			for range 500 {
				for _, v := range s.Visits(2, servertest.Office, "/") {
					if servertest.Sleep(time.Millisecond); v.Panicked != http.ErrAbortHandler {
						t.Fatalf("%s: got %v, panic %v, want the upstream's panic", options, v.Code, v.Panicked)
					}
				}
			}
			servertest.WantEmpty(t, "waits")
		})
	}
}

func TestATunnelKeepsNoSlot(t *testing.T) {
	upgrade := func(method string, major int) *http.Request {
		r := httptest.NewRequest(method, "http://example.com/", nil)
		r.ProtoMajor, r.RemoteAddr = major, servertest.Office+":1"
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
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, "in_flight 1\nlimit 1000 1/d\nsettle seconds", 0)
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				test.begin(w)
				<-time.After(time.Hour)
				return nil
			}
			s.Come(test.r)
			if second := s.Visit(servertest.Office, "/"); second.Reached != test.tunnel {
				t.Errorf("%s: the next one gets to the upstream: got %v, want %v", test.name, second.Reached, test.tunnel)
			}
			servertest.Sleep(2 * time.Hour)
			servertest.WantEmpty(t, "waits")
		})
	}
}

// A request that is refused anyway must not keep a slot from another one while
// the store is asked about it.
func TestARequestThatWaitsForTheStoreHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone clients {\nlimit 1 1/h\n}\nzone server {\nkey text all\nin_flight 1\n}")
		greedy, lawful := s.From(servertest.Someone), s.From("198.51.100.1:1")
		greedy.WantStatuses("/", map[int]int{200: 1})
		servertest.TheShared.Slow.Store(int64(30 * time.Millisecond))
		over := make(chan int)
		go func() { over <- greedy.Get("/").Code }()
		<-time.After(10 * time.Millisecond)
		if got := lawful.Get("/").Code; got != http.StatusOK {
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
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitSite(t, fmt.Sprintf(zone, "outer")+"throttle {\nzone inner {\nkey text all\n"+inner+"\n}\n}\n"+fmt.Sprintf(zone, "innermost"), 0)
			s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
				w.WriteHeader(http.StatusSwitchingProtocols)
				<-time.After(time.Hour)
				return nil
			}
			for range 3 {
				if v := s.Visit(servertest.Office, "/", "Connection", "Upgrade", "Upgrade", "websocket"); !v.Reached {
					t.Errorf("inner %s: got %v for the next one, want it at the upstream", inner, v.Code)
				}
			}
			servertest.WantEmpty(t, "outer", "inner", "innermost") // while the tunnels last
			servertest.Sleep(2 * time.Hour)
			servertest.WantEmpty(t, "outer", "inner", "innermost")
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
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitSite(t, "throttle {\nzone beside {\nlimit 100 1/d\nblock 1h\n}\nzone slots {\nblock 1h\nlimit 100 1/d\nin_flight 1\n"+test.options+"\n}\n}", 0)
			s.Store.Slow = 30 * time.Millisecond
			s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
				w.Header().Set("X-Cost", "5")
				<-time.After(time.Second)
				return nil
			}
			s.Visits(2, servertest.Office, "/")
			servertest.Sleep(time.Minute)
			servertest.WantCounts(t, "slots", test.counts)
			for zone, want := range map[string]float64{"beside": test.beside, "slots": test.slots} {
				got := s.Fullness(zone, servertest.Office, 100, 1./86400, zone == "slots" && strings.HasPrefix(test.options, "shadow"))
				if math.Abs(got-want) > 0.01 {
					t.Errorf("%q: got level %v of zone %s, want %v", test.options, got, zone, want)
				}
			}
			servertest.WantEmpty(t, "slots")
		})
	}
}
