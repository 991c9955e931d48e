package caddymodule

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// newGate is a site with a zone that blocks everywhere.
func newGate(t testing.TB, shadow string) *settleSite {
	t.Helper()
	return newWaitSite(t, `throttle /login {
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
			in_flight 5
		}
	}`, 0)
}

func TestABlockEverywhereHoldsInEveryHandlerAndEndsWithTheBlock(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newGate(t, "")
		wantWaits(t, s.visits(1, office, "/other"), 0)
		wantWaits(t, s.visits(2, office, "/login"), 0, -1)
		for _, target := range []string{"/other", "/other/x", "/third", "/login"} {
			v := s.visit(office, target)
			if v.Code != http.StatusTooManyRequests || v.reached || retryAfter(t, v) < time.Hour {
				t.Errorf("%s: got %v with Retry-After %q, want 429 for an hour", target, v.Code, v.Header().Get("Retry-After"))
			}
		}
		// Routes without throttle, other clients and clients that the zone
		// exempts are not blocked.
		wantWaits(t, []*visit{s.visit(office, "/static"), s.visit(visitor, "/other"), s.visit(office, "/other", "X-Free", "1")}, 0, 0, 0)
		if got := s.fullness("other", office, 1000, 1./86400, false); got < 1.9 || got > 2.1 {
			t.Errorf("got level %v, want 2: who is blocked is not charged", got)
		}
		wantCounts(t, "gate", map[string]float64{"admitted": 1, "refused capacity": 1, "refused blocked": 4})
		wantCounts(t, "other", map[string]float64{"admitted": 3})
		pass(time.Hour - time.Second)
		wantWaits(t, s.visits(1, office, "/other"), -1)
		pass(time.Second)
		wantWaits(t, s.visits(1, office, "/other"), 0)
	})
}

func TestABlockEverywhereHoldsInOtherSitesOfTheSameZone(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := run(t, `http://one.example {
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
		s.from(someone).passes(1, "http://one.example/")
		s.from(someone).passes(0, "http://two.example/")
		s.from("198.51.100.9:1").passes(1, "http://one.example/")
		s.stop()
	})
}

func TestAShadowThatBlocksEverywhereRefusesNobodyAndCounts(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newGate(t, "shadow")
		wantWaits(t, s.visits(2, office, "/login"), 0, 0)
		wantWaits(t, []*visit{s.visit(office, "/other"), s.visit(office, "/third"), s.visit(office, "/login")}, 0, 0, 0)
		wantCounts(t, "gate", map[string]float64{"admitted": 1, "shadow_refused capacity": 1, "shadow_refused blocked": 3})
		wantCounts(t, "other", map[string]float64{"admitted": 1})
	})
}

func TestAnOfficeInTheGlobalExemptIsNeverRefusedBlockedOrCounted(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := run(t, `{
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
					in_flight 1
					delay 0.1
					cost 0.5
					block 1h everywhere
				}
			}
			respond ok
		}`)
		// The block was known before the exemption was configured.
		c := &leakybucket.Charge{Zone: "gate", Key: "203.0.113.7", Block: new(leakybucket.Ladder)}
		s.app().Blocks.Note(c, &leakybucket.Decision{BlockedUntil: leakybucket.Instant(time.Hour.Microseconds()), Began: true})
		for range 50 {
			if w := s.from(someone).get("/"); w.Code != http.StatusOK || w.Body.String() != "ok" {
				t.Fatalf("got %v, %q, want ok", w.Code, w.Body)
			}
		}
		wantCounts(t, "gate", map[string]float64{})
		if got := counted(t, telemetry.BlocksBegun, "gate"); len(got) != 0 {
			t.Errorf("got blocks %v, want none", got)
		}
		s.stop()
	})
}

func TestABucketThatIsResetIsBlockedEverywhereForTwoSecondsAtMost(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newGate(t, "")
		s.visits(2, office, "/login")
		pass(time.Minute)
		wantWaits(t, s.visits(1, office, "/other"), -1)
		if err := s.store.Reset(context.Background(), "gate", office, false); err != nil {
			t.Fatal(err)
		}
		for range 4 { // hammering does not prolong it
			s.visit(office, "/other")
			pass(500 * time.Millisecond)
		}
		wantWaits(t, s.visits(1, office, "/other"), 0)
		// The zone itself notices at once.
		s.visits(2, office, "/login")
		if err := s.store.Reset(context.Background(), "gate", office, false); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		wantWaits(t, s.visits(1, office, "/login"), 0)
	})
}

func TestAStoreThatIsDownEndsNoBlock(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newGate(t, "")
		s.visits(2, office, "/login")
		s.store.failing = func(int) bool { return true }
		pass(time.Minute)
		wantWaits(t, s.visits(1, office, "/other"), -1)
		pass(time.Hour)
		wantWaits(t, s.visits(1, office, "/other"), 0)
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
			inSettleBubble(t, func(t *testing.T) {
				s := newWaitSite(t, `throttle /login {
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
				s.serve = func(w http.ResponseWriter, _ *http.Request) error {
					w.Header().Set("X-Cost", "1")
					return nil
				}
				wantWaits(t, s.visits(2, office, "/login"), 0, -1)
				if v := s.visit(office, "/other"); v.Code != http.StatusTooManyRequests || v.reached {
					t.Errorf("got %v for the blocked client elsewhere, want 429", v.Code)
				}
				wantWaits(t, s.visits(1, visitor, "/other"), 0)
				pass(time.Hour)
				wantWaits(t, s.visits(1, office, "/other"), 0)
			})
		})
	}
}

func TestABlockEverywhereOfUnlistedClientsHoldsInAnOutage(t *testing.T) {
	const zones = "zone gate {\nmatch {\npath /login\n}\nkey client_ip unlisted client_ip\noverride 198.51.100.1 100 1/s\nlimit 1 1/h\nblock 1h everywhere\n}\n}\nthrottle {\nzone other {\nlimit 100 1/s\n}\n"
	inSettleBubble(t, func(t *testing.T) {
		s := runShared(t, "", zones)
		s.from(someone).wantStatuses("/login", map[int]int{200: 1, 429: 1})
		s.from(someone).wantStatuses("/", map[int]int{429: 3})
		theShared.down.Store(true)
		<-time.After(time.Minute)
		s.from(someone).wantStatuses("/", map[int]int{429: 3})
		s.from("198.51.100.9:1").wantStatuses("/", map[int]int{200: 3})
		<-time.After(time.Hour)
		s.from(someone).wantStatuses("/", map[int]int{200: 3})
	})
}
