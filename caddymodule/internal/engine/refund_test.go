package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
)

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
		}, kept},
		{"fails_within_the_body", "refund cookie sid_*", func(w http.ResponseWriter, r *http.Request) error {
			_ = sets("sid_0f=a")(w, r)
			return errors.New("the upstream is gone")
		}, kept},
		{"whole_body_then_fails", "refund cookie sid_*", func(w http.ResponseWriter, r *http.Request) error {
			_ = servertest.Says(200, "Set-Cookie", "sid_0f=a", "Content-Length", "10")(w, r)
			return errors.New("the upstream hangs up")
		}, refunded},
		{"tunnel", "refund status 1xx 2xx 101", servertest.Says(101), kept},
		{"early_hints", "refund status 2xx", func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusForbidden)
			return nil
		}, kept},
	} {
		if strings.Contains(test.options, "1xx") {
			test.options = "refund header Upgrade *"
		}
		t.Run(test.about, func(t *testing.T) {
			servertest.InBubble(t, func(t *testing.T) {
				s := servertest.NewFuncZone(t, "cost 10\n"+test.options)
				s.Serve = test.serve
				s.Get("/x")
				if got := s.Level("settled", false); math.Abs(got-test.want) > 1e-2 {
					t.Errorf("got level %v, want %v", got, test.want)
				}
				if got := s.Unsettled("settled"); got != 0 {
					t.Errorf("got %v unsettled, want none", got)
				}
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

func TestRefundInShadow(t *testing.T) {
	s := servertest.NewFuncZone(t, "cost 10\nrefund status 302\nshadow")
	s.Serve = servertest.Says(302)
	s.Get("/")
	if got := s.Level("settled", true); math.Abs(got-1) > 0.01 {
		t.Errorf("got level %v in shadow, want 1", got)
	}
}

// dokuWiki answers like DokuWiki: 403 to a wrong password, and 302 if the client asks for that.
func dokuWiki(w http.ResponseWriter, r *http.Request) error {
	w.Header().Add("Set-Cookie", "DokuWiki=session; path=/; HttpOnly")
	switch {
	case r.FormValue("p") == "right":
		w.Header().Add("Set-Cookie", "DW0123=who%7C1; path=/; HttpOnly")
		w.Header().Set("Location", "/doku.php?id=start")
		w.WriteHeader(http.StatusFound)
	case r.FormValue("do") == "redirect":
		w.Header().Set("Location", "/doku.php?id=start")
		w.WriteHeader(http.StatusFound)
	default:
		w.Header().Add("Set-Cookie", "DW0123=deleted; expires=Thu, 01-Jan-1970 00:00:00 GMT; Max-Age=0; path=/")
		w.WriteHeader(http.StatusForbidden)
	}
	return nil
}

// logIn sends a log-in from the address of the site's client.
func logIn(s *servertest.FuncSite, password, query string) (status int) {
	r := httptest.NewRequest("POST", "http://example.com/doku.php"+query, strings.NewReader("u=alice&p="+password))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code
}

// loginZone is a site of the documented limit, and counts the wrong passwords that its
// upstream has tried.
func loginZone(t *testing.T, refund string, serve upstream) (s *servertest.FuncSite, tried *int) {
	s, tried = servertest.NewFuncSite(t, "throttle {\nzone login {\nlimit 5 30/h\n"+refund+"\n}\n}\nsettle_upstream"), new(int)
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		if r.FormValue("p") != "right" {
			*tried++
		}
		return serve(w, r)
	}
	return s, tried
}

// A line that is wrong lets no more than ten times as many guesses through, and one that
// never matches lets no more.
func TestRefundBoundsGuesses(t *testing.T) {
	everyAnswer := func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Add("Set-Cookie", fmt.Sprintf("DW0123=%s; path=/", r.FormValue("p")))
		return dokuWiki(w, r)
	}
	for _, test := range []struct {
		about, refund, query string
		serve                upstream
		most                 int
	}{
		{"right", "refund cookie DW*", "", dokuWiki, 5},
		{"right_redirect", "refund cookie DW*", "?do=redirect", dokuWiki, 5},
		{"narrow_cookie", "refund cookie wordpress_logged_in_*", "", dokuWiki, 5},
		{"narrow_status", "refund status 303", "?do=redirect", dokuWiki, 5},
		{"narrow_header", "refund header Location */wp-admin*", "?do=redirect", dokuWiki, 5},
		{"none", "", "", dokuWiki, 5},
		{"wide_status", "refund status 302", "?do=redirect", dokuWiki, 50},
		{"wide_failure", "refund status 403", "", dokuWiki, 50},
		{"wide_header", "refund header Location *", "?do=redirect", dokuWiki, 50},
		{"wide_cookie", "refund cookie DW*", "?do=redirect", everyAnswer, 50},
	} {
		t.Run(test.about, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, tried := loginZone(t, test.refund, test.serve)
				for range 150 {
					logIn(s, "wrong", test.query)
				}
				if *tried > test.most || *tried < test.most-10 {
					t.Errorf("got %d of 150 guesses tried, want at most %d, and as many as fit", *tried, test.most)
				}
			})
		})
	}
}

func TestRefundHoldsGuessesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := loginZone(t, "refund status 302", dokuWiki)
		var mu sync.Mutex
		running, most, done := 0, 0, make(chan struct{}, 80)
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return dokuWiki(w, r)
		}
		for range 80 {
			go func() {
				logIn(s, "wrong", "?do=redirect")
				done <- struct{}{}
			}()
		}
		for range 80 {
			<-done
		}
		if most > 5 {
			t.Errorf("got %d of 80 guesses at once, want at most 5", most)
		}
	})
}

// People behind one address mistype, and whole offices log in.
func TestRefundLetsPeopleIn(t *testing.T) {
	for about, passwords := range map[string]string{
		"three_errors_eight_right": strings.Repeat("wrong ", 3) + strings.Repeat("right ", 8),
		"fifty_right":              strings.Repeat("right ", 50),
	} {
		t.Run(about, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := loginZone(t, "refund cookie DW*", dokuWiki)
				words := strings.Fields(passwords)
				for i, password := range words {
					if status := logIn(s, password, ""); status == http.StatusTooManyRequests {
						t.Fatalf("log-in %d, %s: got 429, want it let in", i+1, password)
					}
					time.Sleep(15 * time.Minute / time.Duration(len(words)))
				}
			})
		})
	}
}

// A zone that refunds speaks of log-ins where they are why it refuses, and of nothing else.
func TestRefundNamesFailedLogIns(t *testing.T) {
	const reason, busy = "Too many failed log-ins.", "This site is receiving too many requests right now."
	for _, test := range []struct {
		about, options string
		prepare        func(*servertest.Site)
		says, not      string
	}{
		{"capacity", "refund status 302", nil, reason, busy},
		{"blocked", "refund status 302\nblock 1h", nil, reason, busy},
		{"message", "refund status 302\nrefusal message \"Wrong passwords.\"", nil, "Wrong passwords.", reason},
		{"banned", "refund status 302", func(s *servertest.Site) {
			s.Changes("/throttle/ban", `{"network": "203.0.113.0/24", "for": "1h"}`)
		}, busy, reason},
		{"no_store", "refund status 302\non_store_error deny", func(*servertest.Site) { servertest.TheShared.Down.Store(true) }, busy, reason},
		{"denied", "refund status 302\noverride 203.0.113.7 deny", nil, "does not accept this request", reason},
		{"settle", "settle status 200 1", nil, busy, reason},
	} {
		t.Run(test.about, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servertest.RunShared(t, "", "zone login {\nlimit 1 1/h\n"+test.options+"\n}")
				c := s.From("203.0.113.7:1000").With("Accept", "application/json")
				c.Get("/")
				if test.prepare != nil {
					test.prepare(s)
				}
				for range 2 {
					if body := c.Get("/").Body.String(); !strings.Contains(body, test.says) || strings.Contains(body, test.not) {
						t.Errorf("got %s, want %q and no %q", body, test.says, test.not)
					}
				}
			})
		})
	}
}

// An office behind one address, with the limit of README: who types a password wrong leaves room
// for the others.
func TestRefundLeavesAnOfficeRoom(t *testing.T) {
	const zone = "throttle {\nzone login {\nfield pwd\nlimit 5 30/h\nrefund cookie sid\n}\n}\nsettle_upstream"
	for _, test := range []struct {
		about                string
		wrong, right, passes int
		every                time.Duration
	}{
		{"three errors and eight right", 3, 8, 11, 0},
		{"fifty right in a quarter of an hour", 0, 50, 50, 18 * time.Second},
		{"fifty right at once", 0, 50, 41, 0},
		{"nothing but errors", 50, 0, 5, 0},
	} {
		t.Run(strings.ReplaceAll(test.about, " ", "_"), func(t *testing.T) {
			servertest.InBubble(t, func(t *testing.T) {
				s, passed := servertest.NewFuncSite(t, zone), 0
				s.Serve = func(w http.ResponseWriter, r *http.Request) error {
					passed++
					if r.PostFormValue("pwd") == "right" {
						return servertest.Says(302, "Set-Cookie", "sid=a")(w, r)
					}
					return servertest.Says(200)(w, r)
				}
				for i := range test.wrong + test.right {
					password := "right"
					if i < test.wrong {
						password = "wrong"
					}
					r := httptest.NewRequest("POST", "/login", strings.NewReader("log=user&pwd="+password))
					r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
					r.RemoteAddr = "192.0.2.1:1000"
					s.ServeHTTP(httptest.NewRecorder(), r)
					time.Sleep(test.every)
				}
				if passed != test.passes {
					t.Errorf("got %d of %d passed, want %d", passed, test.wrong+test.right, test.passes)
				}
			})
		})
	}
}
