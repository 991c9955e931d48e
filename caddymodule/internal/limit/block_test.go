package limit_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

func retryAfter(t *testing.T, v *servertest.Visit) time.Duration {
	t.Helper()
	seconds, err := strconv.Atoi(v.Header().Get("Retry-After"))
	if err != nil {
		t.Fatalf("got %v with Retry-After %q, want a number", v.Code, v.Header().Get("Retry-After"))
	}
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
			if got := retryAfter(t, v); got != test.want {
				t.Errorf("%s: got Retry-After %v, want %v", test.options, got, test.want)
			}
			servertest.Sleep(test.want)
			servertest.WantWaits(t, s.Visits(1, servertest.Office, "/"), 0)
			servertest.WantWaits(t, s.Visits(1, servertest.Visitor, "/"), 0)
			counts := servertest.Counted(t, telemetry.Requests, "waits")
			if counts["refused capacity"] != 1 || counts["refused blocked"] != 2 {
				t.Errorf("%s: got %v, want one refused for capacity and two that were blocked", test.options, counts)
			}
			if got := servertest.Counted(t, telemetry.BlocksBegun, "waits"); got["refused"] != 1 {
				t.Errorf("%s: got blocks %v, want one", test.options, got)
			}
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
				if v := s.Visit(servertest.Office, "/"); v.Code != http.StatusOK {
					t.Fatalf("%q: request %d: got %v, want 200", option, i, v.Code)
				}
				servertest.Sleep(time.Second)
			}
			if got := servertest.Counted(t, telemetry.BlocksBegun, "waits"); got["refused"] != 1 {
				t.Errorf("%q: got blocks %v, want one", option, got)
			}
		})
	}
}

func TestAClientThatHammersClimbsTheLadderAndComesDownWhenCalm(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, ladder, 0)
		for _, want := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour, time.Hour} {
			servertest.WantWaits(t, s.Visits(4, servertest.Office, "/"), 0, 0, 0, -1)
			v := s.Visit(servertest.Office, "/")
			if got := retryAfter(t, v); got != want {
				t.Errorf("got a block of %v, want %v", got, want)
			}
			servertest.Sleep(want / 2) // asking makes it no longer
			if got := retryAfter(t, s.Visit(servertest.Office, "/")); got != want/2 {
				t.Errorf("got a block of %v after half of it, want %v", got, want/2)
			}
			servertest.Sleep(want / 2)
		}
		servertest.Sleep(time.Hour + time.Second)
		s.Visits(4, servertest.Office, "/")
		if got := retryAfter(t, s.Visit(servertest.Office, "/")); got != time.Minute {
			t.Errorf("got a block of %v after an hour of calm, want 1m", got)
		}
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
		if len(lines) != 11 {
			t.Fatalf("got %d lines of blocks, want 10 and one of the next minute", len(lines))
		}
		if got := lines[0]; got["key"] != "203.0.113.0" || got["for_seconds"] != 3600.0 || got["zone"] != "login" {
			t.Errorf("got %v, want the key and for how long", got)
		}
		if got := s.Logs.Lines(t, "zone refused requests"); len(got) != 1 || got[0]["blocks"] != 25.0 {
			t.Errorf("got %v, want one line with 25 blocks", got)
		}
		s.Stop()
	})
}
