package seen_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	_ "github.com/caddy-throttle/caddy-throttle/caddymodule/seen"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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

func TestCaddyfilesAdaptAsTheGoldenFilesSay(t *testing.T) { golden.Run(t) }

// report sends what the script of a page would send.
func report(c servertest.Client, zones string) *httptest.ResponseRecorder {
	c.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://example.com/seen", strings.NewReader(zones))
	r.RemoteAddr = c.Addr
	return c.Do(r)
}

// wantPeople checks how many people the zone pages would have refused.
func wantPeople(t *testing.T, s *servertest.Site, want float64) {
	t.Helper()
	got := 0.0
	for _, sample := range s.Metric(t, "caddy_throttle_refused_people_total") {
		if sample.Labels["zone"] == "pages" {
			got = sample.Value
		}
	}
	check.Equal(t, got, want, "people")
}

func TestServerTimingMarksWhatAShadowZoneWouldRefuse(t *testing.T) {
	s := servertest.Run(t, seenSite)
	c := s.From(servertest.Someone)
	got := c.Get("/").Header().Values("Server-Timing")
	check.That(t, !slices.Contains(got, `throttle;desc="pages"`), "got Server-Timing %q of an admitted request, want no mark", got)
	w := c.Get("/")
	if got := w.Header().Values("Server-Timing"); w.Code != 200 || !slices.Contains(got, `throttle;desc="pages"`) || slices.Contains(got, `throttle;desc="quiet"`) {
		t.Errorf("got %d with Server-Timing %q, want 200 with a mark of pages only", w.Code, got)
	}
}

// A block everywhere would refuse requests of other handlers, too.
func TestServerTimingMarksWhatABlockWouldRefuse(t *testing.T) {
	s := servertest.Run(t, "http:// {\nthrottle /login {\nzone gate {\nlimit 1 1/d\nblock 1h everywhere\nshadow server_timing\n}\n}\nthrottle /other other 10 1/s\n}")
	c := s.From(servertest.Someone)
	c.Get("/login")
	c.Get("/login")
	got := c.Get("/other").Header().Values("Server-Timing")
	check.That(t, slices.Equal(got, []string{`throttle;desc="gate"`}), "got Server-Timing %q, want the mark of gate", got)
}

func TestAReportCountsAPersonOnceAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, seenSite)
		c := s.From("[2001:db8::1]:1")
		c.Get("/")
		c.Get("/")
		wantPeople(t, s, 0)
		same := s.From("[2001:db8::2]:1") // in the same /64
		check.Equal(t, report(same, "quiet, pages,unknown").Code, http.StatusNoContent)
		wantPeople(t, s, 1)
		for range 5 {
			c.Get("/")
			report(c, "pages")
		}
		wantPeople(t, s, 1)
		<-time.After(telemetry.PersonFor + time.Second)
		report(c, "pages") // without a mark
		wantPeople(t, s, 1)
		c.Get("/")
		c.Get("/")
		report(c, "pages")
		wantPeople(t, s, 2)
	})
}

func TestAReportWithoutAMarkCountsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, seenSite)
		for i := range 300 {
			report(s.From(fmt.Sprintf("203.0.113.%d:1", i%250)), "pages,quiet")
		}
		c := s.From("198.51.100.1:1")
		c.Get("/")
		report(c, "pages") // admitted
		c.Get("/")
		<-time.After(telemetry.MarkFor + time.Second)
		report(c, "pages") // too late
		wantPeople(t, s, 0)
	})
}

func TestAReportThatIsNoneIsRefused(t *testing.T) {
	s := servertest.Run(t, seenSite)
	c := s.From(servertest.Someone)
	w := c.Get("/seen")
	check.That(t, w.Code == http.StatusMethodNotAllowed && w.Header().Get("Allow") == "POST", "GET: got %d with Allow %q, want 405 with POST", w.Code, w.Header().Get("Allow"))
	check.Equal(t, report(c, strings.Repeat("x", 1025)).Code, http.StatusBadRequest, "a long report")
	for _, junk := range []string{"", ",,,", "\x00\xff", strings.Repeat("a,", 500)} {
		check.Equal(t, report(c, junk).Code, http.StatusNoContent, "%.10q", junk)
	}
}
