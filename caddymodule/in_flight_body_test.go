package caddymodule

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// uploadSlowly sends a request with a form that takes a second to come.
func uploadSlowly(path string) *http.Request {
	reader, writer := io.Pipe()
	go func() {
		<-time.After(time.Second)
		_, _ = io.WriteString(writer, "user=alice")
		writer.Close()
	}()
	r := httptest.NewRequest(http.MethodPost, "http://example.com"+path, reader)
	r.RemoteAddr = office + ":1"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

const slotAndForm = `throttle {
	zone slot {
		in_flight 1 SLOT
	}
	zone upload {
		key client_ip form user
		limit 100 1/d
	}
	zone items {
		match {
			path /items
		}
		cost body_items user
		limit 100 1/d
	}
}`

func TestAClientThatFindsNoSlotUploadsNothing(t *testing.T) {
	for _, path := range []string{"/", "/items"} { // where nothing is charged before, and where something is
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitSite(t, strings.Replace(slotAndForm, "SLOT", "", 1), time.Second)
			s.visit(office, "/")
			v := s.come(uploadSlowly(path))
			if !v.ended || v.Code != http.StatusTooManyRequests || v.waited != 0 {
				t.Errorf("%s: got %v after %v, want 429 at once", path, v.Code, v.waited)
			}
			pass(time.Minute)
			wantCounts(t, "slot", map[string]float64{"admitted": 1, "refused in_flight": 1})
			emptyRooms(t, "slot", "upload", "items")
		})
	}
}

func TestASlotThatIsTakenDuringTheUploadRefuses(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitSite(t, strings.Replace(slotAndForm, "SLOT", "", 1), time.Minute)
		v := s.come(uploadSlowly("/items"))
		s.visit(office, "/other")
		pass(time.Hour)
		if v.Code != http.StatusTooManyRequests || v.waited != time.Second {
			t.Errorf("got %v after %v, want 429 after a second", v.Code, v.waited)
		}
		emptyRooms(t, "slot", "upload", "items")
	})
}

func TestAClientThatMayWaitForASlotUploadsMeanwhile(t *testing.T) {
	for _, path := range []string{"/", "/items"} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitSite(t, strings.Replace(slotAndForm, "SLOT", "wait 1m", 1), 5*time.Second)
			s.visit(office, "/")
			v := s.come(uploadSlowly(path))
			pass(time.Minute)
			if v.Code != http.StatusOK || v.waited != 5*time.Second {
				t.Errorf("%s: got %v after %v, panic %v, want 200 after 5s", path, v.Code, v.waited, v.panicked)
			}
			emptyRooms(t, "slot", "upload", "items")
		})
	}
}

func TestAStoreThatIsDownTakesNobodysSlot(t *testing.T) {
	for _, option := range []string{"", "\ndelay", "\ncost body_items", "\nsettle header X-Cost"} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, "limit 100 1/d\nin_flight 1"+option, time.Second)
			s.store.failing = func(int) bool { return true }
			visits := s.visits(2, office, "/")
			pass(time.Second)
			visits = append(visits, s.visit(office, "/"))
			pass(time.Minute)
			wantWaits(t, visits, 0, -1, 0)
			emptyRooms(t, "waits")
		})
	}
}
