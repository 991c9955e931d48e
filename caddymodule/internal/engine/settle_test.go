package engine_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

// settleAfter is an upstream that sleeps before it sends headers, and again
// before it sends the rest.
func settleAfter(headers, rest time.Duration) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		time.Sleep(headers)
		w.WriteHeader(http.StatusOK)
		time.Sleep(rest)
		_, err := w.Write(make([]byte, 3000))
		return err
	}
}

func settleFails(after time.Duration, err error) func(http.ResponseWriter, *http.Request) error {
	return func(http.ResponseWriter, *http.Request) error {
		time.Sleep(after)
		return err
	}
}

func TestSettleCorrectsTheReservationByWhatTheResponseTells(t *testing.T) {
	notFound := caddyhttp.HandlerError{StatusCode: http.StatusNotFound, Err: errors.New("no such file")}
	nothing := func(http.ResponseWriter, *http.Request) error { return nil }
	for _, test := range []struct {
		about, options string
		serve          func(http.ResponseWriter, *http.Request) error
		want           float64 // the level afterwards
	}{
		{"time until the headers, up", "cost 1\nsettle seconds", settleAfter(9*time.Second, 0), 9},
		{"time until the headers, down", "cost 2\nsettle seconds", settleAfter(500*time.Millisecond, 0), 0.5},
		{"the body takes long", "cost 1\nsettle seconds", settleAfter(3*time.Second, time.Minute), 3},
		{"no headers, and soon", "cost 2\nsettle seconds", settleFails(time.Second, notFound), 2},
		{"no headers, and late", "cost 2\nsettle seconds", settleFails(5*time.Second, notFound), 5},
		{"nothing is written", "cost 2\nsettle seconds", settleFails(3*time.Second, nil), 3},
		{"seconds after", "cost 1\nsettle seconds after", settleAfter(9*time.Second, 0), 9},
		{"no headers, after", "cost 1\nsettle seconds after", settleFails(4*time.Second, notFound), 4},

		{"bytes, up", "cost 1\nsettle bytes 1KB", settleAfter(0, 0), 3},
		{"bytes, down", "cost 10\nsettle bytes 1KB", settleAfter(0, 0), 3},
		{"part of a unit", "cost 1\nsettle bytes 1MB", settleAfter(0, 0), 0.003},
		{"no bytes", "cost 1\nsettle bytes 1KB", nothing, 0},
		{"an error page is not known", "cost 1\nsettle bytes 1KB", settleFails(0, notFound), 1},
		{"bytes after", "settle bytes 1KB after", settleAfter(0, 0), 3},

		{"a header, up", "cost 1\nsettle header X-Cost", servertest.Says(200, "X-Cost", "7.5"), 7.5},
		{"a header, down", "cost 5\nsettle header x-cost", servertest.Says(500, "X-Cost", "0.25"), 0.25},
		{"a header of 0", "cost 5\nsettle header X-Cost", servertest.Says(200, "X-Cost", "0"), 0},
		{"a header after", "settle header X-Cost after", servertest.Says(200, "X-Cost", "7"), 7},
		{"a header of a redirect", "settle header X-Cost after", servertest.Says(302, "X-Cost", "7"), 7},

		{"a status, up", "cost 1\nsettle status 401 422 5", servertest.Says(422), 5},
		{"a status, down", "cost 8\nsettle status 401 5", servertest.Says(401), 5},
		{"another status", "cost 8\nsettle status 401 5", servertest.Says(200), 0},
		{"a class", "cost 1\nsettle status 4xx 5xx 3", servertest.Says(503), 3},
		{"another class", "cost 1\nsettle status 4xx 3", servertest.Says(500), 0},
		{"a status after", "settle status 200 1 after", servertest.Says(200), 1},
		{"another status after", "settle status 200 1 after", servertest.Says(302), 0},
		{"nothing written is a 200", "settle status 200 1 after", nothing, 1},
		{"a body without a status is a 200", "settle status 200 1 after", func(w http.ResponseWriter, _ *http.Request) error {
			_, err := w.Write([]byte("x"))
			return err
		}, 1},
		{"an error's status", "settle status 404 3 after", settleFails(0, notFound), 3},
		{"a wrapped error's status", "settle status 404 3 after", settleFails(0, fmt.Errorf("serving: %w", notFound)), 3},
		{"an error without a status", "settle status 500 3 after", settleFails(0, io.ErrUnexpectedEOF), 3},
		{"a tunnel's status", "settle status 101 3 after", servertest.Says(101), 3},
		{"only the first status", "settle status 200 1 after", func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusOK)
			w.WriteHeader(http.StatusNotFound)
			return nil
		}, 1},
		{"the lines' cost is the reservation", "cost 4 {\npath /x\n}\nsettle header X-Cost", servertest.Says(200), 4},
	} {
		t.Run(test.about, func(t *testing.T) {
			servertest.InBubble(t, func(t *testing.T) {
				s := servertest.NewFuncZone(t, test.options)
				s.Serve = test.serve
				s.Get("/x")
				if got := s.Level("settled", false); math.Abs(got-test.want) > 1e-3 {
					t.Errorf("got level %v, want %v", got, test.want)
				}
			})
		})
	}
}

func TestAChargeStaysReservedAndCountsIfTheResponseDoesNotTellTheCost(t *testing.T) {
	for _, test := range []struct {
		about, options string
		serve          func(http.ResponseWriter, *http.Request) error
		unknown        bool
	}{
		{"NaN", "settle header X-Cost", servertest.Says(200, "X-Cost", "NaN"), true},
		{"negative", "settle header X-Cost", servertest.Says(200, "X-Cost", "-5"), true},
		{"beyond float64", "settle header X-Cost", servertest.Says(200, "X-Cost", "1e400"), true},
		{"infinite", "settle header X-Cost", servertest.Says(200, "X-Cost", "Inf"), true},
		{"hexadecimal", "settle header X-Cost", servertest.Says(200, "X-Cost", "0x5"), true},
		{"a list", "settle header X-Cost", servertest.Says(200, "X-Cost", "1,2"), true},
		{"empty", "settle header X-Cost", servertest.Says(200, "X-Cost", ""), true},
		{"twice", "settle header X-Cost", servertest.Says(200, "X-Cost", "5", "X-Cost", "5"), true},
		{"three values", "settle header X-Cost", servertest.Says(200, "X-Cost", "5", "X-Cost", "6", "X-Cost", "7"), true},
		{"missing", "settle header X-Cost", servertest.Says(200), true},
		{"an error", "settle header X-Cost", settleFails(0, io.EOF), true},
		{"an error's size", "settle bytes 1", settleFails(0, io.EOF), true},
		{"a tunnel's header", "settle header X-Cost", servertest.Says(101, "X-Cost", "50"), true},
		{"a tunnel's time", "settle seconds", servertest.Says(101), true},
		{"a tunnel's size", "settle bytes 1", servertest.Says(101), true},
		{"a tunnel's status", "settle status 1xx 2", servertest.Says(101), false},
		{"a header", "settle header X-Cost", servertest.Says(200, "X-Cost", "2"), false},
		{"as many digits as there are", "settle header X-Cost", servertest.Says(200, "X-Cost", "2.000000"), false},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := servertest.NewFuncZone(t, "cost 2\n"+test.options)
			s.Serve = test.serve
			if _, panicked := s.Get("/"); panicked != nil {
				t.Errorf("got a panic %v, want none", panicked)
			}
			s.WantLevel("settled", 2)
			want := 0.0
			if test.unknown {
				want = 1
			}
			if got := s.Unsettled("settled"); got != want {
				t.Errorf("got %v unsettled, want %v", got, want)
			}
		})
	}
}

func TestWithAfterACostThatTheResponseDoesNotTellIsNothing(t *testing.T) {
	s := servertest.NewFuncZone(t, "cost 2\nsettle header X-Cost after")
	s.Serve = servertest.Says(200, "X-Cost", "-5")
	s.Get("/")
	s.WantLevel("settled", 0)
	if got := s.Unsettled("settled"); got != 1 {
		t.Errorf("got %v unsettled, want 1", got)
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
		{"exempt", "/free", written, 0},
		{"exempt, nothing written", "/free", unwritten, 0},
		{"an error", "/", func(w http.ResponseWriter, r *http.Request) error {
			unwritten(w, r)
			return caddyhttp.HandlerError{StatusCode: 502}
		}, 2},
	} {
		t.Run(test.about, func(t *testing.T) {
			s := servertest.NewFuncZone(t, "cost 2\nsettle header X-Cost\nexempt {\npath /free\n}")
			s.Serve = test.serve
			w, _ := s.Get(test.path)
			if got, other := w.Header()["X-Cost"], w.Header().Get("X-Other"); got != nil || other != "4" {
				t.Errorf("the client sees X-Cost %q and X-Other %q, want none and 4", got, other)
			}
			s.WantLevel("settled", test.want)
		})
	}
}

func TestTheHeaderIsHiddenAlsoWhereOnlyOtherZonesAreCharged(t *testing.T) {
	s := servertest.NewFuncSite(t, `throttle {
		zone plain {
			limit 1000 1/d
		}
		zone settled {
			exempt {
				path /free
			}
			limit 1000 1/d
			settle header X-Cost
		}
	}
	settle_upstream`)
	s.Serve = servertest.Says(200, "X-Cost", "3")
	w, _ := s.Get("/free")
	if got := w.Header()["X-Cost"]; got != nil {
		t.Errorf("the client sees X-Cost %q, want none", got)
	}
	s.WantLevel("plain", 1)
}

func TestACorrectionLiftsABucketToItsDebtAtMost(t *testing.T) {
	for _, test := range []struct {
		debt string
		want float64
	}{{"", 2000}, {"debt 0", 1000}, {"debt 50", 1050}} {
		t.Run(test.debt, func(t *testing.T) {
			s := servertest.NewFuncZone(t, "settle header X-Cost "+test.debt)
			s.Serve = servertest.Says(200, "X-Cost", "5000")
			s.Get("/")
			s.WantLevel("settled", test.want)
			w, _ := s.Get("/")
			if w.Code != http.StatusTooManyRequests {
				t.Errorf("the next request: got %v, want 429", w.Code)
			}
		})
	}
}

func TestTheAccessLogSaysWhatARequestReallyCost(t *testing.T) {
	for _, test := range []struct {
		header string
		want   any
	}{{"7.5", 7.5}, {"0", 0.0}, {"nonsense", 2.0}} {
		s := servertest.NewFuncZone(t, "cost 2\nsettle header X-Cost")
		var seen *limit.Verdicts
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			seen = limit.VerdictsOf(r.Context())
			if got, known := servertest.Logged(seen)["settled"]; known {
				t.Errorf("before there is a response: got settled %v, want none", got)
			}
			return servertest.Says(200, "X-Cost", test.header)(w, r)
		}
		s.Get("/")
		logged := servertest.Logged(seen)
		if logged["settled"] != test.want || logged["cost"] != 2.0 {
			t.Errorf("%s: got settled %v and cost %v, want %v and 2", test.header, logged["settled"], logged["cost"], test.want)
		}
	}
	s := servertest.NewFuncZone(t, "")
	s.Serve = func(_ http.ResponseWriter, r *http.Request) error {
		if got, known := servertest.Logged(limit.VerdictsOf(r.Context()))["settled"]; known {
			t.Errorf("a zone that does not settle: got settled %v, want none", got)
		}
		return nil
	}
	s.Get("/")
}

// The client has its answer within a fifth of the timeout.
func TestSettlingDelaysTheResponseForAFifthOfTheTimeout(t *testing.T) {
	for _, zone := range []string{
		"limit 100 1/h\nsettle status 200 50",
		"limit 100 1/h\nsettle status 200 50\nshadow",
		"limit 200 1/h\n}\nzone settles {\nlimit 100 1/h\nsettle status 200 50",
	} {
		synctest.Test(t, func(t *testing.T) {
			s := servertest.RunShared(t, "", "zone z {\n"+zone+"\n}")
			servertest.TheShared.Slow.Store(int64(40 * time.Millisecond))
			start, answered := time.Now(), make(chan time.Duration)
			go func() {
				s.From(servertest.Someone).Get("/")
				answered <- time.Since(start)
			}()
			if got, want := <-answered, 50*time.Millisecond; got != want {
				t.Errorf("%s: got the response over after %v, want %v", zone, got, want)
			}
			<-time.After(time.Second)
			if got := servertest.TheShared.Settles.Load(); got != 1 {
				t.Errorf("%s: got %d settlements, want 1", zone, got)
			}
		})
	}
}
