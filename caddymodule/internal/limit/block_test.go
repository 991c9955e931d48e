package limit_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func retryAfter(t *testing.T, v *servertest.Visit) time.Duration {
	t.Helper()
	seconds, err := strconv.Atoi(v.Header().Get("Retry-After"))
	check.Assume(t, err == nil, "got %v with Retry-After %q, want a number", v.Code, v.Header().Get("Retry-After"))
	return time.Duration(seconds) * time.Second
}

func TestAnOverflowBlocksForAsLongAsRetryAfterSays(t *testing.T) {
	for _, test := range []struct {
		options string
		want    time.Duration
	}{
		{"block", 3 * time.Second},      // until the bucket is empty
		{"block 10s", 10 * time.Second}, // longer than that
		{"block 1s", 3 * time.Second},   // the bucket takes longer
		{"block 1s\nrefusal retry_after fit", 1 * time.Second},
		{"block 10s\nrefusal retry_after 5s", 10 * time.Second},
		{"block 10s\nrefusal retry_after 15s", 15 * time.Second},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, "limit 3 1/s\n"+test.options, 0)
			servertest.WantWaits(t, s.Visits(5, servertest.Office, "/"), 0, 0, 0, -1, -1)
			v := s.Visit(servertest.Office, "/")
			check.Equal(t, retryAfter(t, v), test.want, "%s: Retry-After", test.options)
			servertest.Sleep(test.want)
			servertest.WantWaits(t, s.Visits(1, servertest.Office, "/"), 0)
			servertest.WantWaits(t, s.Visits(1, servertest.Visitor, "/"), 0)
			counts := servertest.Counted(t, telemetry.Requests, "waits")
			check.That(t, counts["refused capacity"] == 1 && counts["refused blocked"] == 2, "%s: got %v, want one refused for capacity and two that were blocked", test.options, counts)
			got := servertest.Counted(t, telemetry.BlocksBegun, "waits")
			check.That(t, got["refused"] == 1, "%s: got blocks %v, want one", test.options, got)
		})
	}
}

const ladder = "limit 3 1/s\nblock 1m 10m 1h"

func TestAClientThatObeysRetryAfterAndThenKeepsToTheLeakNeverClimbsTheLadder(t *testing.T) {
	for _, option := range []string{"", "refusal retry_after fit"} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewWaitZone(t, ladder+"\n"+option, 0)
			servertest.WantWaits(t, s.Visits(4, servertest.Office, "/"), 0, 0, 0, -1)
			servertest.Sleep(retryAfter(t, s.Visit(servertest.Office, "/")))
			for i := range 5000 {
				check.Need(t, s.Visit(servertest.Office, "/").Code, http.StatusOK, "%q: request %d", option, i)
				servertest.Sleep(time.Second)
			}
			got := servertest.Counted(t, telemetry.BlocksBegun, "waits")
			check.That(t, got["refused"] == 1, "%q: got blocks %v, want one", option, got)
		})
	}
}

func TestAClientThatHammersClimbsTheLadderAndComesDownWhenCalm(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, ladder, 0)
		for _, want := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour, time.Hour} {
			servertest.WantWaits(t, s.Visits(4, servertest.Office, "/"), 0, 0, 0, -1)
			v := s.Visit(servertest.Office, "/")
			check.Equal(t, retryAfter(t, v), want, "a block")
			servertest.Sleep(want / 2) // asking makes it no longer
			check.Equal(t, retryAfter(t, s.Visit(servertest.Office, "/")), want/2, "after half of it: a block")
			servertest.Sleep(want / 2)
		}
		servertest.Sleep(time.Hour + time.Second)
		s.Visits(4, servertest.Office, "/")
		check.Equal(t, retryAfter(t, s.Visit(servertest.Office, "/")), time.Minute, "after an hour of calm: a block")
	})
}

func TestTenBlocksAMinuteAreALineAndTheRestIsCounted(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.Run(t, `http:// {
			throttle {
				zone login {
					limit 1 1/d
					block 1h
				}
			}
		}`)
		for i := range 25 {
			c := s.From(fmt.Sprintf("203.0.113.%d:1", i))
			c.Get("/")
			c.Get("/")
		}
		servertest.Sleep(time.Minute)
		s.From("198.51.100.1:1").Get("/")
		s.From("198.51.100.1:1").Get("/")
		servertest.Quiet()
		lines := s.Logs.Lines(t, "zone blocks a key")
		check.Need(t, len(lines), 11, "lines of blocks, want 10 and one of the next minute")
		if got := lines[0]; got["key"] != "203.0.113.0" || got["for_seconds"] != 3600.0 || got["zone"] != "login" {
			t.Errorf("got %v, want the key and for how long", got)
		}
		if got := s.Logs.Lines(t, "zone refused requests"); len(got) != 1 || got[0]["blocks"] != 25.0 {
			t.Errorf("got %v, want one line with 25 blocks", got)
		}
		s.Stop()
	})
}
