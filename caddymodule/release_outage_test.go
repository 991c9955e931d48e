package caddymodule

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

func TestAReleaseInAnOutageFreesHereAndTellsTheStore(t *testing.T) {
	for _, nodes := range []string{"nodes 1", "nodes 3"} {
		synctest.Test(t, func(t *testing.T) {
			s := runShared(t, nodes, "zone a {\nlimit 3 1/h\nblock 10m\n}\nzone b {\nlimit 9 1/h\n}")
			c := s.from(someone)
			c.statuses(5, "/")
			theShared.down.Store(true)
			c.wantStatuses("/", map[int]int{429: 5})
			var got wire.Released
			status := s.admin(http.MethodPost, "/throttle/release", `{"client": "203.0.113.7"}`, &got)
			if want := []string{"a/203.0.113.7", "b/203.0.113.7"}; status != 200 || !slices.Equal(got.Freed, want) || !got.Pending || got.Failed != "" {
				t.Errorf("got status %d and %+v, want %v freed, and the store to be told", status, got, want)
			}
			c.wantStatuses("/", map[int]int{200: 1})
			var why wire.Why
			s.admin(http.MethodPost, "/throttle/why", `{"client": "203.0.113.7"}`, &why)
			for _, b := range why.Buckets {
				if b.Share != (nodes == "nodes 3") || b.Fraction != b.Level/b.Capacity || b.Zone == "a" && nodes == "nodes 3" && b.Capacity != 1 {
					t.Errorf("%s: got %+v, want the limit in force", nodes, b)
				}
			}
			var list wire.Buckets
			s.admin(http.MethodPost, "/throttle/buckets", `{"zone": "b"}`, &list)
			if len(list.Buckets) != 1 || len(why.Buckets) != 2 || list.Buckets[0].Fraction != why.Buckets[1].Fraction ||
				list.Buckets[0].EmptyIn-why.Buckets[1].EmptyIn > 1 {
				t.Errorf("got %+v in the listing and %+v why, want the same", list.Buckets, why.Buckets)
			}
			theShared.down.Store(false)
			<-time.After(5 * time.Second)
			synctest.Wait()
			c.wantStatuses("/", map[int]int{200: 2})
		})
	}
}

func TestOnlyOneClientIsReleased(t *testing.T) {
	s := run(t, threeZones)
	for _, client := range []string{"203.0.113.0/24", "203.0.113.7/32", "2001:db8::/64", "pages", "*"} {
		if got := s.admin(http.MethodPost, "/throttle/release", `{"client": "`+client+`"}`, nil); got != http.StatusBadRequest {
			t.Errorf("release %s: got status %d, want 400", client, got)
		}
	}
}
