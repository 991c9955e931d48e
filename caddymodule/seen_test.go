package caddymodule

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

const seenSite = `http:// {
	throttle_seen /seen
	throttle {
		zone pages {
			limit 1 1/h
			shadow server_timing
		}
		zone quiet {
			limit 1 1/h
			shadow
		}
	}
	header Server-Timing "php;dur=3"
	respond ok
}`

// report sends what the script of a page would send.
func (c client) report(zones string) *httptest.ResponseRecorder {
	c.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://example.com/seen", strings.NewReader(zones))
	r.RemoteAddr = c.addr
	return c.do(r)
}

// value returns the sample of a zone, and 0 if there is none.
func (s *site) value(t testing.TB, name, zone string) float64 {
	t.Helper()
	for _, sample := range s.metric(t, name) {
		if sample.labels["zone"] == zone {
			return sample.value
		}
	}
	return 0
}

func TestServerTimingMarksWhatAShadowZoneWouldRefuse(t *testing.T) {
	s := run(t, seenSite)
	c := s.from(someone)
	if got := c.get("/").Header().Values("Server-Timing"); slices.Contains(got, `throttle;desc="pages"`) {
		t.Errorf("got Server-Timing %q of an admitted request, want no mark", got)
	}
	w := c.get("/")
	if got := w.Header().Values("Server-Timing"); w.Code != 200 || !slices.Contains(got, `throttle;desc="pages"`) || slices.Contains(got, `throttle;desc="quiet"`) {
		t.Errorf("got %d with Server-Timing %q, want 200 with a mark of pages only", w.Code, got)
	}
}

func TestAReportCountsAPersonOnceAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, seenSite)
		c := s.from("[2001:db8::1]:1")
		c.get("/")
		c.get("/")
		check := func(want float64) {
			t.Helper()
			if got := s.value(t, "caddy_throttle_refused_people_total", "pages"); got != want {
				t.Errorf("got %v people, want %v", got, want)
			}
		}
		check(0)
		same := s.from("[2001:db8::2]:1") // in the same /64
		if w := same.report("quiet, pages,unknown"); w.Code != http.StatusNoContent {
			t.Errorf("got %d, want 204", w.Code)
		}
		check(1)
		for range 5 {
			c.get("/")
			c.report("pages")
		}
		check(1)
		<-time.After(telemetry.PersonFor + time.Second)
		c.report("pages") // without a mark
		check(1)
		c.get("/")
		c.get("/")
		c.report("pages")
		check(2)
		s.stop()
	})
}

func TestAReportWithoutAMarkCountsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, seenSite)
		for i := range 300 {
			s.from(fmt.Sprintf("203.0.113.%d:1", i%250)).report("pages,quiet")
		}
		c := s.from("198.51.100.1:1")
		c.get("/")
		c.report("pages") // admitted
		c.get("/")
		<-time.After(telemetry.MarkFor + time.Second)
		c.report("pages") // too late
		if got := s.value(t, "caddy_throttle_refused_people_total", "pages"); got != 0 {
			t.Errorf("got %v people, want none", got)
		}
		s.stop()
	})
}

func TestAReportThatIsNoneIsRefused(t *testing.T) {
	s := run(t, seenSite)
	c := s.from(someone)
	if w := c.get("/seen"); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "POST" {
		t.Errorf("GET: got %d with Allow %q, want 405 with POST", w.Code, w.Header().Get("Allow"))
	}
	if w := c.report(strings.Repeat("x", mostReport+1)); w.Code != http.StatusBadRequest {
		t.Errorf("a long report: got %d, want 400", w.Code)
	}
	for _, junk := range []string{"", ",,,", "\x00\xff", strings.Repeat("a,", 500)} {
		if w := c.report(junk); w.Code != http.StatusNoContent {
			t.Errorf("%.10q: got %d, want 204", junk, w.Code)
		}
	}
}

// TestReportsAreNotCharged: a report must not take from the budget of the person who
// sends it.
func TestReportsAreNotCharged(t *testing.T) {
	s := run(t, seenSite)
	c := s.from(someone)
	for range 5 {
		c.report("pages")
	}
	if got := s.counts(t)["pages"]["admitted"]; got != 0 {
		t.Errorf("got %v requests charged, want none", got)
	}
}

func TestRefusedKeysAreEstimatedOverReloads(t *testing.T) {
	const config = `http:// {
		throttle {
			zone pages {
				limit 1 1/h
				MODE
			}
		}
		respond ok
	}`
	first := run(t, strings.Replace(config, "MODE", "shadow", 1))
	for i := range 100 {
		c := first.from(fmt.Sprintf("203.0.113.%d:1", i))
		c.get("/")
		if i < 40 {
			c.get("/")
			c.get("/")
		}
	}
	second := run(t, strings.Replace(config, "MODE", "enforce 100", 1))
	first.stop()
	if got := second.value(t, "caddy_throttle_refused_keys", "pages"); got != 40 {
		t.Errorf("got %v refused keys after a reload, want the 40 of before", got)
	}
	for range 2 {
		second.from("198.51.100.1:1").get("/")
	}
	if got := second.value(t, "caddy_throttle_refused_keys", "pages"); got != 41 {
		t.Errorf("got %v refused keys, want 41", got)
	}
}
