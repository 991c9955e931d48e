package caddymodule

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// wantTurns checks how long requests waited, in seconds. A refused request is -1.
func wantTurns(t *testing.T, visits []*visit, want ...float64) {
	t.Helper()
	for i, v := range visits {
		got := v.waited.Round(time.Millisecond).Seconds()
		switch {
		case !v.ended:
			got = -2
		case v.Code == http.StatusServiceUnavailable:
			got = -1
		}
		if got != want[i] {
			t.Errorf("request %d: got %v, want %v", i+1, got, want[i])
		}
	}
}

// newShareZone is the site of a zone with share, whose clients have the ranks that the
// header X-Rank says.
func newShareZone(t *testing.T, options string, takes time.Duration) *settleSite {
	s := newWaitZone(t, options, takes)
	rankByHeader(s, "waits")
	return s
}

func rankByHeader(s *settleSite, zone string) {
	s.app.zones[zone].Standing = func(subject *decision.Subject) decision.Standing {
		header := subject.Request.Header
		standing := decision.Standing{Rank: fairqueue.First, Pass: header.Get("X-Pass"), Member: header.Get("X-Member")}
		for rank := fairqueue.Member; rank < fairqueue.First; rank++ {
			if rank.String() == header.Get("X-Rank") {
				standing.Rank, standing.Why = rank, "header"
			}
		}
		return standing
	}
}

func TestClientsTakeTurnsForTheSlotsOfTheWholeZone(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 2\nshare", 200*time.Millisecond)
		for range 60 { // the mean learns how long requests take
			s.visit(office, "/")
			pass(time.Second)
		}
		greedy := s.visits(4, office, "/")
		others := []*visit{s.visit(visitor, "/")}
		pass(time.Minute)
		// Half the slots are for others: one of two, while they wait.
		wantTurns(t, greedy, 0, .2, .4, .6)
		wantTurns(t, others, 0)
		emptyRooms(t, "waits")
	})
}

func TestWhoseTurnWouldComeTooLateIsRefusedAtOnce(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 1\nshare", 2*time.Second)
		var visits []*visit
		for i := range 4 {
			visits = append(visits, s.visit("203.0.113."+strconv.Itoa(i), "/"))
		}
		if v := visits[2]; !v.ended || v.Code != http.StatusServiceUnavailable {
			t.Fatalf("got %d, ended %v, want 503 at once", v.Code, v.ended)
		}
		seconds, _ := strconv.Atoi(visits[2].Header().Get("Retry-After"))
		if seconds < 5 || seconds > 10 {
			t.Errorf("got Retry-After %d, want from 5 to 10", seconds)
		}
		member := s.visit("203.0.113.9", "/", "X-Rank", "member", "X-Member", "ann")
		pass(time.Minute)
		wantTurns(t, append(visits, member), 0, -1, -1, -1, 2)
		wantCounts(t, "waits", map[string]float64{"admitted": 1, "delayed": 1, "refused timeout": 1, "refused wait": 2})
		emptyRooms(t, "waits")
	})
}

func TestHigherRanksGoFirstAndAreDisplacedLast(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 1\nshare\nmax_waiting 2", 100*time.Millisecond)
		for range 200 { // the mean falls to a tenth of a second
			s.visit(office, "/")
			pass(time.Second)
		}
		come := func(address, rank string) *visit { return s.visit(address, "/", "X-Rank", rank) }
		visits := []*visit{
			come("203.0.113.1", "first"), come("203.0.113.2", "first"), come("203.0.113.3", "crawler"),
			come("203.0.113.4", "returned"), come("203.0.113.5", "member"), come("203.0.113.6", "crawler"),
		}
		pass(time.Minute)
		// Two may wait: the newcomer goes for the one with a pass, the crawler for the
		// member, and the last crawler finds two that go before it.
		wantTurns(t, visits, 0, -1, -1, .2, .1, -1)
		emptyRooms(t, "waits")
	})
}

func TestAnEarlyRefusalAsksNoStore(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitSite(t, "throttle {\nzone waits {\nin_flight 1\nshare\n}\nzone beside {\nlimit 100 1/d\n}\n}", 2*time.Second)
		visits := []*visit{s.visit("203.0.113.1", "/"), s.visit("203.0.113.2", "/")}
		pass(1500 * time.Millisecond)
		visits = append(visits, s.visit("203.0.113.3", "/"))
		store := &countingStore{Store: s.app.store}
		s.app.store = store
		refused := s.visit("203.0.113.4", "/")
		if !refused.ended || refused.Code != http.StatusServiceUnavailable || store.calls != 0 {
			t.Errorf("got %d, ended %v, and %d calls of the store, want 503 at once and none", refused.Code, refused.ended, store.calls)
		}
		pass(time.Minute)
		wantTurns(t, visits, 0, -1, .5)
		wantCounts(t, "waits", map[string]float64{"admitted": 1, "delayed": 1, "refused timeout": 1, "refused wait": 1})
		emptyRooms(t, "waits", "beside")
	})
}

// countingStore counts calls.
type countingStore struct {
	leakybucket.Store
	calls int
}

func (s *countingStore) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	s.calls++
	return s.Store.Take(ctx, charges, decisions)
}

func (s *countingStore) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	s.calls++
	return s.Store.Settle(ctx, settlements)
}

func TestSlotsAndTurnsSurviveAReload(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newShareZone(t, "in_flight 1\nshare\nmax_wait 8s", 4*time.Second)
		visits := []*visit{
			s.visit("203.0.113.1", "/", "X-Rank", "member"), s.visit("203.0.113.2", "/", "X-Rank", "member"),
			s.visit("203.0.113.3", "/", "X-Rank", "member"),
		}
		pass(time.Second)
		// A new config with more slots starts: those who wait get them at once.
		live := s.app.zones["waits"].live
		more := *s.app.zones["waits"].Rule
		more.InFlight = 2
		live.start(&runningZone{Rule: &more, live: live})
		quiet()
		pass(time.Second)
		if !visits[1].reached {
			t.Error("got it waiting, want it served when there are more slots")
		}
		// And one with fewer: both keep theirs, and nobody gets one until one is left.
		fewer := more
		fewer.InFlight = 1
		live.start(&runningZone{Rule: &fewer, live: live})
		pass(time.Minute)
		wantTurns(t, visits, 0, 1, 5)
		emptyRooms(t, "waits")
	})
}
