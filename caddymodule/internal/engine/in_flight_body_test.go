package engine_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
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
	r.RemoteAddr = servertest.Office + ":1"
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
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitSite(t, strings.Replace(slotAndForm, "SLOT", "", 1), time.Second)
			s.Visit(servertest.Office, "/")
			v := s.Come(uploadSlowly(path))
			if !v.Ended || v.Code != http.StatusTooManyRequests || v.Waited != 0 {
				t.Errorf("%s: got %v after %v, want 429 at once", path, v.Code, v.Waited)
			}
			servertest.Sleep(time.Minute)
			servertest.WantCounts(t, "slot", map[string]float64{"admitted": 1, "refused in_flight": 1})
			servertest.WantEmpty(t, "slot", "upload", "items")
		})
	}
}

func TestASlotThatIsTakenDuringTheUploadRefuses(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, strings.Replace(slotAndForm, "SLOT", "", 1), time.Minute)
		v := s.Come(uploadSlowly("/items"))
		s.Visit(servertest.Office, "/other")
		servertest.Sleep(time.Hour)
		if v.Code != http.StatusTooManyRequests || v.Waited != time.Second {
			t.Errorf("got %v after %v, want 429 after a second", v.Code, v.Waited)
		}
		servertest.WantEmpty(t, "slot", "upload", "items")
	})
}

func TestAClientThatMayWaitForASlotUploadsMeanwhile(t *testing.T) {
	for _, path := range []string{"/", "/items"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitSite(t, strings.Replace(slotAndForm, "SLOT", "wait 1m", 1), 5*time.Second)
			s.Visit(servertest.Office, "/")
			v := s.Come(uploadSlowly(path))
			servertest.Sleep(time.Minute)
			if v.Code != http.StatusOK || v.Waited != 5*time.Second {
				t.Errorf("%s: got %v after %v, panic %v, want 200 after 5s", path, v.Code, v.Waited, v.Panicked)
			}
			servertest.WantEmpty(t, "slot", "upload", "items")
		})
	}
}

func TestAStoreThatIsDownTakesNobodysSlot(t *testing.T) {
	for _, option := range []string{"", "\ndelay", "\ncost body_items", "\nsettle header X-Cost"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, "limit 100 1/d\nin_flight 1"+option, time.Second)
			s.Store.Failing = func(int) bool { return true }
			visits := s.Visits(2, servertest.Office, "/")
			servertest.Sleep(time.Second)
			visits = append(visits, s.Visit(servertest.Office, "/"))
			servertest.Sleep(time.Minute)
			servertest.WantWaits(t, visits, 0, -1, 0)
			servertest.WantEmpty(t, "waits")
		})
	}
}
