package engine_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// wantFullness allows for rounding.
func wantFullness(t *testing.T, s *servertest.FuncSite, want float64) {
	t.Helper()
	got := s.Fullness("waits", servertest.Office, 6, 1, false)
	check.That(t, math.Abs(got-want) <= 1e-5, "got level %v, want %v", got, want)
}

func TestTheLastInTheQueueGivesItsPlaceBackWhenItLeaves(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, servertest.LikeNginx, 0)
		visits := s.Visits(3, servertest.Office, "/")
		servertest.Sleep(500 * time.Millisecond)
		wantFullness(t, s, 2.5)
		visits[2].Leave()
		servertest.Sleep(0)
		servertest.WantGone(t, visits[2])
		wantFullness(t, s, 1.5)
		next := s.Visit(servertest.Office, "/")
		servertest.Sleep(time.Minute)
		servertest.WantWaits(t, []*servertest.Visit{visits[0], visits[1], next}, 0, 1, 1.5)
		servertest.WantCounts(t, "waits", map[string]float64{"admitted": 1, "delayed": 3}) // who left, too
		servertest.WantEmpty(t, "waits")
	})
}

func TestTooManyThatWaitAreRefusedAndNotCharged(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, servertest.LikeNginx+" queue 4\nrefusal retry_after fit", 0)
		visits := s.Visits(4, servertest.Office, "/")
		wantFullness(t, s, 3)
		v := visits[3]
		check.That(t, v.Code == http.StatusTooManyRequests && v.Header().Get("Retry-After") == "3", "got %v with Retry-After %q, want 429 with 3", v.Code, v.Header().Get("Retry-After"))
		// A client holds no more places than are free. Requests that need not wait
		// do not count.
		visits = append(visits, s.Visit(servertest.Visitor, "/"), s.Visit(servertest.Visitor, "/"))
		servertest.Sleep(time.Second)
		visits = append(visits, s.Visit(servertest.Office, "/"))
		servertest.Sleep(time.Minute)
		servertest.WantWaits(t, visits, 0, 1, 2, -1, 0, 1, 2)
		servertest.WantCounts(t, "waits", map[string]float64{"admitted": 2, "delayed": 4, "refused waiting": 1})
		servertest.WantEmpty(t, "waits")
	})
}

func TestAtTheEndOfTheProcessAllWaitingClientsAreToldSo(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, servertest.LikeNginx, 10*time.Second)
		first := s.Visit(servertest.Office, "/")
		waiting := s.Visits(3, servertest.Office, "/")
		servertest.Sleep(500 * time.Millisecond)
		s.Exit()
		servertest.Sleep(0)
		for _, v := range waiting {
			check.That(t, v.Ended && !v.Reached && v.Code == http.StatusServiceUnavailable, "got %v, over %v, want 503", v.Code, v.Ended)
		}
		servertest.WantCounts(t, "waits", map[string]float64{"admitted": 1, "refused waiting": 3})
		late := s.Visit(servertest.Visitor, "/") // need not wait
		servertest.Sleep(time.Minute)
		check.That(t, first.Code == http.StatusOK && late.Code == http.StatusOK, "got %v and %v for who need not wait, want 200", first.Code, late.Code)
		servertest.WantEmpty(t, "waits")
	})
}
