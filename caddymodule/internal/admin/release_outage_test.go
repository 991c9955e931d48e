package admin_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

func TestAReleaseInAnOutageFreesHereAlone(t *testing.T) {
	for _, nodes := range []string{"nodes 1", "nodes 3"} {
		synctest.Test(t, func(t *testing.T) {
			s := servertest.RunShared(t, nodes, "zone a {\nlimit 3 1/h\nblock 10m\n}\nzone b {\nlimit 9 1/h\n}")
			c := s.From(servertest.Someone)
			c.Statuses(5, "/")
			servertest.TheShared.Down.Store(true)
			c.WantStatuses("/", map[int]int{429: 5})
			other := s.From("203.0.113.8:1")
			other.Statuses(30, "/")
			var got wire.Released
			status := s.Admin(http.MethodPost, "/throttle/release", `{"client": "203.0.113.7"}`, &got)
			if want := []string{"a/203.0.113.7"}; status != 200 || !slices.Equal(got.Freed, want) || got.Complete || !strings.Contains(got.Problem, "release again") || got.Failed != "" {
				t.Errorf("got status %d and %+v, want %v freed, here alone", status, got, want)
			}
			c.WantStatuses("/", map[int]int{200: 1})
			var why wire.Why
			s.Admin(http.MethodPost, "/throttle/why", `{"client": "203.0.113.7"}`, &why)
			for _, b := range why.Buckets {
				if b.Share != (nodes == "nodes 3") || b.Fraction != b.Level/b.Capacity || b.Zone == "a" && nodes == "nodes 3" && b.Capacity != 1 {
					t.Errorf("%s: got %+v, want the limit in force", nodes, b)
				}
			}
			var list wire.Buckets
			s.Admin(http.MethodPost, "/throttle/buckets", `{"zone": "b", "prefix": "203.0.113.7"}`, &list)
			if len(list.Buckets) != 1 || len(why.Buckets) != 2 || list.Buckets[0].Fraction != why.Buckets[1].Fraction ||
				list.Buckets[0].EmptyIn-why.Buckets[1].EmptyIn > 1 {
				t.Errorf("got %+v in the listing and %+v why, want the same", list.Buckets, why.Buckets)
			}
			if !why.Local || !list.Local {
				t.Errorf("got local %v why and %v in the listing, want both", why.Local, list.Local)
			}
			for _, body := range []string{`{"zone": "a", "all": true}`, `{"client": "203.0.113.0/24"}`} {
				got = wire.Released{}
				if s.Admin(http.MethodPost, "/throttle/release", body, &got); got.Complete || !strings.Contains(got.Problem, "the store is down") {
					t.Errorf("release %s: got %+v, want that buckets in the store stay", body, got)
				}
			}
			servertest.TheShared.Down.Store(false)
			<-time.After(5 * time.Second)
			synctest.Wait()
			c.WantStatuses("/", map[int]int{429: 3}) // by the store, which was told nothing
			got = wire.Released{}
			if s.Admin(http.MethodPost, "/throttle/release", `{"client": "203.0.113.7"}`, &got); got.Count != 2 || !got.Complete {
				t.Errorf("released again: got %+v, want both buckets", got)
			}
			c.WantStatuses("/", map[int]int{200: 3})
		})
	}
}

func TestNamesOfZonesAreNoClients(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	for _, body := range []string{`{"client": "pages"}`, `{"client": "*"}`, `{}`, `{"all": true}`, `{"all": true, "zone": "pages", "client": "203.0.113.7"}`} {
		if got := s.Admin(http.MethodPost, "/throttle/release", body, nil); got != http.StatusBadRequest {
			t.Errorf("release %s: got status %d, want 400", body, got)
		}
	}
}

// TestReleaseOfANetworkAndOfAZone: all clients of it are let in, and no others.
func TestReleaseOfANetworkAndOfAZone(t *testing.T) {
	s := servertest.Run(t, `{
		throttle {
			zone each {
				limit 1 1/h
				block 10m
			}
			zone masked {
				key client_ip {
					ipv4 24
				}
				limit 1 1/h
			}
			zone pairs {
				key client_ip host
				limit 1 1/h
			}
			zone accounts {
				key header X-Account plain
				limit 1 1/h
			}
		}
	}
	http:// {
		throttle /each each
		throttle /masked masked
		throttle /pairs pairs
		throttle /accounts accounts
		respond ok
	}`)
	fill := func() {
		for n := range 150 {
			for _, path := range []string{"/each", "/each", "/pairs", "/masked"} {
				s.From(fmt.Sprintf("203.0.113.%d:1", n)).Get(path)
			}
		}
		for _, path := range []string{"/each", "/masked", "/pairs"} {
			s.From("198.51.100.1:1").Get(path)
		}
		s.From("203.0.113.7:1").With("X-Account", "alice").Get("/accounts")
	}
	released := func(body string, want int) {
		t.Helper()
		var got wire.Released
		if s.Admin(http.MethodPost, "/throttle/release", body, &got); got.Count != want || len(got.Freed) != min(want, 100) || !got.Complete {
			t.Errorf("release %s: got %d buckets, %d named, complete %v, want %d", body, got.Count, len(got.Freed), got.Complete, want)
		}
	}
	fill()
	released(`{"client": "203.0.113.64/26"}`, 2*64+1) // of the masked zone the whole network
	fill()
	released(`{"client": "203.0.113.0/24"}`, 2*150+1)
	s.From("198.51.100.1:1").Answers("/each", http.StatusTooManyRequests)
	s.From("203.0.113.9:1").Answers("/each", http.StatusOK)
	fill()
	released(`{"client": "203.0.113.7/32", "zone": "each"}`, 1)
	released(`{"zone": "each", "all": true}`, 150)
	released(`{"zone": "accounts", "all": true}`, 1)
	s.From("198.51.100.1:1").Answers("/pairs", http.StatusTooManyRequests)

	var why wire.Why
	s.Admin(http.MethodPost, "/throttle/why", `{"client": "203.0.113.0/24", "zone": "masked"}`, &why)
	if len(why.Buckets) != 1 || why.Buckets[0].Network != "203.0.113.0/24" || !why.Refused {
		t.Errorf("why: got %+v, want the one bucket of the network", why)
	}
	s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "1h"}`)
	if got := s.Admin(http.MethodPost, "/throttle/unban", `{"network": "203.0.113.7"}`, nil); got != http.StatusBadRequest {
		t.Errorf("unban of an address in a banned network: got status %d, want 400", got)
	}
}
