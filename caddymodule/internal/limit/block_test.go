package limit_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
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

func TestAClientThatHammersClimbsTheLadderAndComesDownWhenCalm(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, "limit 3 1/s\nblock 1m 10m 1h", 0)
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
		s := servertest.RunZone(t, "login", "limit 1 1/d\nblock 1h", "")
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
		got := lines[0]
		check.That(t, got["key"] == "203.0.113.0" && got["for_seconds"] == 3600.0 && got["zone"] == "login", "got %v, want the key and for how long", got)
		lines = s.Logs.Lines(t, "zone refused requests")
		check.That(t, len(lines) == 1 && lines[0]["blocks"] == 25.0, "got %v, want one line with 25 blocks", lines)
	})
}

// newGate is a site with a zone that blocks everywhere.
func newGate(t testing.TB, shadow string) *servertest.FuncSite {
	t.Helper()
	return servertest.NewWaitSite(t, `throttle /login {
		zone gate {
			exempt {
				header X-Free *
			}
			limit 1 1/d
			block 1h everywhere
			`+shadow+`
		}
	}
	throttle /other* {
		zone other {
			limit 1000 1/d
		}
	}
	throttle /third* {
		zone third {
			limit 5 1/s
		}
	}`, 0)
}

func TestABlockEverywhereHoldsInEveryHandlerAndEndsWithTheBlock(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newGate(t, "")
		servertest.WantWaits(t, s.Visits(1, servertest.Office, "/other"), 0)
		servertest.WantWaits(t, s.Visits(2, servertest.Office, "/login"), 0, -1)
		for _, target := range []string{"/other", "/other/x", "/third", "/login"} {
			v := s.Visit(servertest.Office, target)
			if v.Code != http.StatusTooManyRequests || v.Reached || retryAfter(t, v) < time.Hour {
				t.Errorf("%s: got %v with Retry-After %q, want 429 for an hour", target, v.Code, v.Header().Get("Retry-After"))
			}
		}
		// Routes without throttle, other clients and clients that the zone
		// exempts are not blocked.
		servertest.WantWaits(t, []*servertest.Visit{s.Visit(servertest.Office, "/static"), s.Visit(servertest.Visitor, "/other"), s.Visit(servertest.Office, "/other", "X-Free", "1")}, 0, 0, 0)
		got := s.Fullness("other", servertest.Office, 1000, 1./86400, false)
		check.That(t, got >= 1.9 && got <= 2.1, "got level %v, want 2: who is blocked is not charged", got)
		servertest.WantCounts(t, "gate", map[string]float64{"admitted": 1, "refused capacity": 1, "refused blocked": 4})
		servertest.WantCounts(t, "other", map[string]float64{"admitted": 3})
		servertest.Sleep(time.Hour - time.Second)
		servertest.WantWaits(t, s.Visits(1, servertest.Office, "/other"), -1)
		servertest.Sleep(time.Second)
		servertest.WantWaits(t, s.Visits(1, servertest.Office, "/other"), 0)
	})
}

func TestABlockEverywhereHoldsInOtherSitesOfTheSameZone(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.Run(t, `http://one.example {
			throttle {
				zone gate {
					limit 1 1/d
					block 1h everywhere
				}
			}
			respond ok
		}
		http://two.example {
			throttle other 100 1/s
			respond ok
		}`)
		s.From(servertest.Someone).Passes(1, "http://one.example/")
		s.From(servertest.Someone).Passes(0, "http://two.example/")
		s.From("198.51.100.9:1").Passes(1, "http://one.example/")
	})
}

func TestAShadowThatBlocksEverywhereRefusesNobodyAndCounts(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newGate(t, "shadow")
		servertest.WantWaits(t, s.Visits(2, servertest.Office, "/login"), 0, 0)
		servertest.WantWaits(t, []*servertest.Visit{s.Visit(servertest.Office, "/other"), s.Visit(servertest.Office, "/third"), s.Visit(servertest.Office, "/login")}, 0, 0, 0)
		servertest.WantCounts(t, "gate", map[string]float64{"admitted": 1, "shadow_refused capacity": 1, "shadow_refused blocked": 3})
		servertest.WantCounts(t, "other", map[string]float64{"admitted": 1})
	})
}

func TestAnOfficeInTheGlobalExemptIsNeverRefusedBlockedOrCounted(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.Run(t, `{
			throttle {
				exempt {
					remote_ip 203.0.113.0/24
				}
			}
		}
		http:// {
			@blocked throttle_blocked
			respond @blocked blocked 403
			throttle {
				zone gate {
					limit 1 1/d
					delay 0.1
					cost 0.5
					block 1h everywhere
				}
			}
			respond ok
		}`)
		// The block was known before the exemption was configured.
		c := leakybucket.Charge{Zone: "gate", Key: "203.0.113.7", Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, Cost: 1, Block: &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}}
		for range 2 {
			_ = s.Engine().Store.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1))
		}
		for range 50 {
			w := s.From(servertest.Someone).Get("/")
			check.Assume(t, w.Code == http.StatusOK && w.Body.String() == "ok", "got %v, %q, want ok", w.Code, w.Body)
		}
		servertest.WantCounts(t, "gate", map[string]float64{})
		got := servertest.Counted(t, telemetry.BlocksBegun, "gate")
		check.That(t, len(got) == 0, "got blocks %v, want none", got)
	})
}

func TestABucketThatIsResetIsBlockedEverywhereForTwoSecondsAtMost(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newGate(t, "")
		s.Visits(2, servertest.Office, "/login")
		servertest.Sleep(time.Minute)
		servertest.WantWaits(t, s.Visits(1, servertest.Office, "/other"), -1)
		check.OK(t, s.Store.Reset(context.Background(), "gate", servertest.Office, false))
		for range 4 { // hammering does not prolong it
			s.Visit(servertest.Office, "/other")
			servertest.Sleep(500 * time.Millisecond)
		}
		servertest.WantWaits(t, s.Visits(1, servertest.Office, "/other"), 0)
		// The zone itself notices at once.
		s.Visits(2, servertest.Office, "/login")
		check.OK(t, s.Store.Reset(context.Background(), "gate", servertest.Office, false))
		servertest.Sleep(2 * time.Second)
		servertest.WantWaits(t, s.Visits(1, servertest.Office, "/login"), 0)
	})
}

func TestAStoreThatIsDownEndsNoBlock(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := newGate(t, "")
		s.Visits(2, servertest.Office, "/login")
		s.Store.Failing = func(int) bool { return true }
		servertest.Sleep(time.Minute)
		servertest.WantWaits(t, s.Visits(1, servertest.Office, "/other"), -1)
		servertest.Sleep(time.Hour)
		servertest.WantWaits(t, s.Visits(1, servertest.Office, "/other"), 0)
	})
}

// Buckets of requests without a usable key have names of their own, and so have
// their blocks.
func TestABlockEverywhereHoldsForClientsThatNoOverrideLists(t *testing.T) {
	for _, options := range []string{
		"key client_ip unlisted client_ip\noverride 198.51.100.1 100 1/s",
		"key client_ip missing client_ip",
		"key client_ip unlisted client_ip\noverride 198.51.100.1 100 1/s\nsettle header X-Cost after",
	} {
		t.Run(options, func(t *testing.T) {
			servertest.InBubble(t, func(t *testing.T) {
				s := servertest.NewWaitSite(t, `throttle /login {
				zone gate {
					limit 1 1/d
					block 1h everywhere
					`+options+`
				}
			}
			throttle /other* {
				zone other {
					limit 1000 1/d
				}
			}`, 0)
				s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
					w.Header().Set("X-Cost", "1")
					return nil
				}
				servertest.WantWaits(t, s.Visits(2, servertest.Office, "/login"), 0, -1)
				v := s.Visit(servertest.Office, "/other")
				check.That(t, v.Code == http.StatusTooManyRequests && !v.Reached, "got %v for the blocked client elsewhere, want 429", v.Code)
				servertest.WantWaits(t, s.Visits(1, servertest.Visitor, "/other"), 0)
				servertest.Sleep(time.Hour)
				servertest.WantWaits(t, s.Visits(1, servertest.Office, "/other"), 0)
			})
		})
	}
}

func TestABlockEverywhereOfUnlistedClientsHoldsInAnOutage(t *testing.T) {
	const zones = "zone gate {\nmatch {\npath /login\n}\nkey client_ip unlisted client_ip\noverride 198.51.100.1 100 1/s\nlimit 1 1/h\nblock 1h everywhere\n}\n}\nthrottle {\nzone other {\nlimit 100 1/s\n}\n"
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", zones)
		s.From(servertest.Someone).WantStatuses("/login", map[int]int{200: 1, 429: 1})
		s.From(servertest.Someone).WantStatuses("/", map[int]int{429: 3})
		servertest.TheShared.Down.Store(true)
		<-time.After(time.Minute)
		s.From(servertest.Someone).WantStatuses("/", map[int]int{429: 3})
		s.From("198.51.100.9:1").WantStatuses("/", map[int]int{200: 3})
		<-time.After(time.Hour)
		s.From(servertest.Someone).WantStatuses("/", map[int]int{200: 3})
	})
}
