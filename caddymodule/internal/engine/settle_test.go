package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func settleFails(after time.Duration, err error) func(http.ResponseWriter, *http.Request) error {
	return func(http.ResponseWriter, *http.Request) error {
		time.Sleep(after)
		return err
	}
}

func TestSettleCorrectsTheReservationByWhatTheResponseTells(t *testing.T) {
	notFound := caddyhttp.HandlerError{StatusCode: http.StatusNotFound, Err: errors.New("no such file")}
	panics := func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("X-Cost", "0") // which is not sent
		panic(http.ErrAbortHandler)
	}
	for _, test := range []struct {
		about, options string
		serve          func(http.ResponseWriter, *http.Request) error
		want, unknown  float64 // the level afterwards, and how many costs were not known
	}{
		{"time until the end, up", "cost 1\nsettle seconds", settleFails(9*time.Second, nil), 9, 0},
		{"an error page is not known", "cost 1\nsettle bytes 1KB", settleFails(0, notFound), 1, 1},
		{"a header, down", "cost 5\nsettle header x-cost", servertest.Says(500, "X-Cost", "0.25"), 0.25, 0},
		{"the lines' cost is the reservation", "cost 4 {\npath /x\n}\nsettle header X-Cost", servertest.Says(200), 4, 1},
		{"a panic, and a header", "cost 2\nsettle header X-Cost", panics, 2, 1},
		{"a panic, which ends the time", "cost 2\nsettle seconds", panics, 2, 0},
	} {
		t.Run(test.about, func(t *testing.T) {
			servertest.InBubble(t, func(t *testing.T) {
				s := servertest.NewFuncZone(t, test.options)
				s.Serve = test.serve
				s.Get("/x")
				got := s.Level("settled", false)
				check.That(t, math.Abs(got-test.want) <= 1e-3, "got level %v, want %v", got, test.want)
				check.Equal(t, s.Unsettled("settled"), test.unknown, "unsettled")
			})
		})
	}
}

// A client that takes the headers of many answers and no more could else go on guessing.
func TestWhatCostsMoreIsChargedBeforeTheHeaders(t *testing.T) {
	const refused = "throttle {\nzone within {\nlimit 1 1/d\noverride 192.0.2.1 deny\nrefusal status 401\n}\n}\n"
	for _, test := range []struct {
		options, within string
		want            float64 // the level before the body
	}{
		{"settle status 401 2 after", "", 2},
		{"settle status 401 2 after\nshadow", "", 2},
		{"settle status 200 2 after", "", 0},
		{"settle seconds after", "", 3},
		{"settle bytes 1 after", "", 0}, // which are yet to come
		{"cost 5\nsettle status 401 2", "", 5},
		{"cost 1\nsettle status 401 2", "", 2},
		{"cost 0.2\nsettle seconds", "", 3},
		{"cost 5\nsettle seconds", "", 5},
		{"cost 1\nsettle header X-Cost", "", 4},
		{"cost 5\nsettle header X-Cost", "", 5},
		{"settle status 401 2 after", refused, 0},
	} {
		servertest.InBubble(t, func(t *testing.T) {
			s := servertest.NewFuncSite(t, "throttle {\nzone settled {\nlimit 1000 1/d\n"+test.options+"\n}\n}\n"+test.within+"settle_upstream")
			got := 0.0
			look := func() {
				got = s.Fullness("settled", s.Client, 1000, 1.0/86400, strings.HasSuffix(test.options, "shadow"))
			}
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				time.Sleep(3 * time.Second)
				defer look()
				return servertest.Says(401, "X-Cost", "4")(w, r)
			}
			if s.Get("/"); test.within != "" {
				look()
			}
			n, _ := s.Store.Sum()
			check.That(t, math.Abs(got-test.want) <= 1e-3 && n <= 1, "%q: got level %v and %d settlements, want %v and one at most", test.options, got, n, test.want)
		})
	}
}

func TestTheHeaderThatTellsTheCostIsNotForTheClient(t *testing.T) {
	written := servertest.Says(200, "X-Cost", "3", "X-Other", "4")
	unwritten := func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("X-Cost", "3")
		w.Header().Set("X-Other", "4")
		return nil
	}
	for _, test := range []struct {
		about, path string
		serve       func(http.ResponseWriter, *http.Request) error
		want        float64
	}{
		{"charged", "/", written, 3},
		{"charged, nothing written", "/", unwritten, 3},
		{"exempt", "/exempt", written, 0},
		{"exempt, nothing written", "/exempt", unwritten, 0},
		{"another zone is charged", "/free", written, 0},
		{"an error", "/", func(w http.ResponseWriter, r *http.Request) error {
			unwritten(w, r)
			return caddyhttp.HandlerError{StatusCode: 502}
		}, 2},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := servertest.NewFuncSite(t, "throttle {\nzone plain {\nlimit 1000 1/d\nmatch path /free\n}\nzone settled {\nlimit 1000 1/d\ncost 2\nsettle header X-Cost\nexempt path /free /exempt\n}\n}\nsettle_upstream")
			s.Serve = test.serve
			w, _ := s.Get(test.path)
			got, other := w.Header()["X-Cost"], w.Header().Get("X-Other")
			check.That(t, got == nil && other == "4", "the client sees X-Cost %q and X-Other %q, want none and 4", got, other)
			s.WantLevel("settled", test.want)
		})
	}
}

func TestAPanicSettlesOnceAndGoesOnUntouched(t *testing.T) {
	broken := errors.New("broken")
	for _, value := range []any{http.ErrAbortHandler, broken, "a text", &http.Request{}} {
		s := servertest.NewFuncZone(t, "cost 1\nsettle header X-Cost")
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			servertest.Says(200, "X-Cost", "3")(w, r)
			panic(value)
		}
		_, panicked := s.Get("/")
		check.That(t, panicked == value, "got the panic %v, want %v", panicked, value)
		n, diff := s.Store.Sum()
		check.That(t, n == 1 && diff == 2, "got %d settlements of %v together, want one of 2", n, diff)
		s.WantLevel("settled", 3)
	}
}

func TestHandlersWithinEachOtherSettleEachTheirOwn(t *testing.T) {
	zone := func(name, options string) string {
		return "throttle {\nzone " + name + " {\nlimit 1000 1/d\n" + options + "\n}\n}\n"
	}
	s := servertest.NewFuncSite(t, zone("outer", "settle header X-Cost")+
		zone("middle", "exempt {\npath /x\n}\nsettle header X-Other")+
		zone("inner", "settle header X-Cost")+
		zone("outer", "settle header X-Cost")+
		zone("seconds", "settle seconds")+
		zone("status", "settle status 200 7 after")+
		zone("nobody", "match path /never\nsettle header X-Cost")+"settle_upstream")
	var seen *limit.Verdicts
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		seen = limit.VerdictsOf(r.Context())
		return servertest.Says(200, "X-Cost", "3", "X-Other", "4")(w, r)
	}
	w, _ := s.Get("/x")
	for zone, want := range map[string]float64{"outer": 3, "middle": 0, "inner": 3, "seconds": 0, "status": 7} {
		s.WantLevel(zone, want)
		check.Equal(t, s.Unsettled(zone), 0, "zone %s: unsettled", zone)
	}
	for _, name := range []string{"X-Cost", "X-Other"} {
		got := w.Header()[name]
		check.That(t, got == nil, "the client sees %s %q, want none", name, got)
	}
	zones := fmt.Sprint(servertest.Logged(seen)["zones"])
	check.Equal(t, strings.Count(zones, "settled:"), 4, "settled zones in %s", zones)
}

func TestAStoreThatIsDownLetsPassAndHidesWhatTheUpstreamTells(t *testing.T) {
	for _, take := range []int{1, 2} { // that without the body, and that with it
		s := servertest.NewFuncSite(t, "throttle {\nzone plain {\nlimit 1000 1/d\n}\nzone settled {\nlimit 1000 1/d\ncost body_items\nsettle header X-Cost\n}\n}\nsettle_upstream")
		s.Store.Failing = func(n int) bool { return n == take }
		s.Serve = servertest.Says(200, "X-Cost", "3")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("POST", "http://example.com/", strings.NewReader("[1,2]")))
		got := w.Header()["X-Cost"]
		check.That(t, w.Code == http.StatusOK && got == nil, "take %d fails: got %v and X-Cost %q, want 200 and none", take, w.Code, got)
		n, _ := s.Store.Sum()
		check.That(t, n == 2-take, "take %d fails: got %d settlements, want one if the zone that settles was asked", take, n)
	}
}

// TestWithoutSettleNothingStandsBetween: zones without settle do not pay for it.
func TestWithoutSettleNothingStandsBetween(t *testing.T) {
	for _, test := range []struct {
		options, path string
		wrapped       bool
	}{
		{"", "/", false},
		{"settle seconds", "/", true},
		{"settle seconds\nexempt {\npath /free\n}", "/free", false},
		{"settle header X-Cost\nexempt {\npath /free\n}", "/free", true}, // to strip it
	} {
		s := servertest.NewFuncZone(t, test.options)
		s.Serve = func(w http.ResponseWriter, _ *http.Request) error {
			_, wrapped := w.(*limit.Observer)
			check.That(t, wrapped == test.wrapped, "%q, %s: got a %T, want it wrapped: %v", test.options, test.path, w, test.wrapped)
			return nil
		}
		s.Get(test.path)
	}
}

type upstream = func(http.ResponseWriter, *http.Request) error

func TestRefund(t *testing.T) {
	const kept, refunded = 10.0, 1.0
	sets := func(line string) upstream { return servertest.Says(200, "Set-Cookie", line) }
	late := func(next upstream) upstream {
		return func(w http.ResponseWriter, r *http.Request) error {
			time.Sleep(time.Minute)
			return next(w, r)
		}
	}
	for _, test := range []struct {
		about, options string
		serve          upstream
		want           float64 // the level afterwards
	}{
		{"status", "refund status 302", servertest.Says(302), refunded},
		{"other_status", "refund status 302", servertest.Says(200), kept},
		{"class", "refund status 2xx 3xx", servertest.Says(303), refunded},
		{"other_class", "refund status 2xx 3xx", servertest.Says(403), kept},
		{"implicit_status", "refund status 200", func(http.ResponseWriter, *http.Request) error { return nil }, refunded},
		{"late", "refund status 302", late(servertest.Says(302)), refunded},
		{"header", "refund header Location */dashboard*", servertest.Says(302, "Location", "/de/dashboard?x"), refunded},
		{"other_header", "refund header Location */dashboard*", servertest.Says(302, "Location", "/login"), kept},
		{"no_header", "refund header Location */dashboard*", servertest.Says(302), kept},
		{"one_of_two_values", "refund header X-Role admin\nrefund header X-Role user", servertest.Says(200, "X-Role", "user"), refunded},
		{"block", "refund {\nstatus 302\nheader Location /home\n}", servertest.Says(302, "Location", "/home"), refunded},
		{"half_a_block", "refund {\nstatus 302\nheader Location /home\n}", servertest.Says(200, "Location", "/home"), kept},
		{"lines", "refund status 302\nrefund cookie sid_*", sets("sid_0f=a"), refunded},
		{"no_line", "refund status 302\nrefund cookie sid_*", sets("other=a"), kept},

		{"cookie", "refund cookie sid_*", sets("sid_0f=a; path=/; HttpOnly"), refunded},
		{"cookie_lasts", "refund cookie sid_*", sets("sid_0f=a; Max-Age=60"), refunded},
		{"cookie_empty", "refund cookie sid_*", sets("sid_0f=; path=/"), kept},
		{"cookie_blank", "refund cookie sid_*", sets("sid_0f=%20; path=/"), kept},
		{"cookie_cleared", "refund cookie sid_*", sets("sid_0f=deleted; Max-Age=0"), kept},
		{"cookie_negative", "refund cookie sid_*", sets("sid_0f=a; max-age=-1"), kept},
		{"cookie_expired", "refund cookie sid_*", sets("sid_0f=a; expires=Thu, 01-Jan-1970 00:00:00 GMT"), kept},
		{"cookie_set_and_cleared", "refund cookie sid_*", servertest.Says(200, "Set-Cookie", "sid_0f=a", "Set-Cookie", "sid_0f=; Max-Age=0"), kept},
		{"cookie_in_a_value", "refund cookie sid_*", sets("other=sid_0f=a"), kept},

		{"error_route", "refund status 302 404", settleFails(0, caddyhttp.Error(http.StatusNotFound, errors.New("no such file"))), kept},
		{"error_route_with_cookie", "refund cookie sid_*", func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Add("Set-Cookie", "sid_0f=a")
			return caddyhttp.Error(http.StatusBadGateway, errors.New("the upstream is gone"))
		}, kept},
		{"timeout", "refund status 5xx", late(settleFails(0, caddyhttp.Error(http.StatusGatewayTimeout, context.DeadlineExceeded))), kept},
		{"breaks_off", "refund cookie sid_*", func(w http.ResponseWriter, r *http.Request) error {
			_ = sets("sid_0f=a")(w, r)
			panic(http.ErrAbortHandler)
		}, refunded},
		{"tunnel", "refund header Upgrade *", servertest.Says(101, "Upgrade", "websocket"), kept},
		{"early_hints", "refund status 2xx", func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusForbidden)
			return nil
		}, kept},
	} {
		t.Run(test.about, func(t *testing.T) {
			servertest.InBubble(t, func(t *testing.T) {
				s := servertest.NewFuncZone(t, "cost 10\n"+test.options)
				s.Serve = test.serve
				s.Get("/x")
				got := s.Level("settled", false)
				check.That(t, math.Abs(got-test.want) <= 1e-2, "got level %v, want %v", got, test.want)
				check.Equal(t, s.Unsettled("settled"), 0, "unsettled")
			})
		})
	}
}

// What handlers around throttle do to the header is not the upstream's answer.
func TestRefundIsJudgedByWhatComesFromWithin(t *testing.T) {
	const zone = "\nthrottle {\nzone settled {\nlimit 1000 1/d\ncost 10\nrefund cookie sid\nrefund header X-Ok yes\n}\n}\n"
	for _, test := range []struct {
		about, directives string
		serve             upstream
		want              float64
	}{
		{"set_before", "header +Set-Cookie sid=a\nheader X-Ok yes" + zone, servertest.Says(200), 10},
		{"set_before_beside_another", "header +Set-Cookie sid=a" + zone, servertest.Says(200, "Set-Cookie", "other=b"), 10},
		{"set_before_and_within", "header +Set-Cookie other=b" + zone, servertest.Says(200, "Set-Cookie", "sid=a"), 1},
		{"replaced_within", "header X-Ok no" + zone, func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("X-Ok", "yes")
			return nil
		}, 1},
		{"set_afterwards", "header >X-Ok yes" + zone, servertest.Says(200), 10},
		{"removed_afterwards", "header {\n-Set-Cookie\ndefer\n}" + zone, servertest.Says(200, "Set-Cookie", "sid=a"), 1},
		{"set_by_a_handler_within", zone + "header X-Ok yes\n", servertest.Says(200), 1},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := servertest.NewFuncSite(t, test.directives+"settle_upstream")
			s.Serve = test.serve
			s.Get("/")
			s.WantLevel("settled", test.want)
		})
	}
}

func TestRefundIsNoneForAClientThatLeaves(t *testing.T) {
	s := servertest.NewFuncZone(t, "cost 10\nrefund status 200")
	ctx, leave := context.WithCancel(t.Context())
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		leave()
		return servertest.Says(200)(w, r)
	}
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "http://example.com/", nil))
	s.WantLevel("settled", 10)
}
