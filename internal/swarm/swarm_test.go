package swarm

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// quick is a small trial.
var quick = Scenario{
	Workers: 5, Seed: 1, RobotsFrom: 100 * time.Millisecond, To: 2 * time.Second, End: 2 * time.Second,
	People: 2, Members: 0.3, Page: 20 * time.Millisecond, Think: 50 * time.Millisecond, Fetches: 2,
	Robots: 2, RobotPage: 40 * time.Millisecond,
}

// A direct transport hands requests to a handler, without a network, so that trials run
// in virtual time.
type direct struct{ http.HandlerFunc }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	recorder := httptest.NewRecorder()
	d.ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// try runs a trial of a site in virtual time.
func try(t *testing.T, site http.HandlerFunc, log string, s Scenario) (result *Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if result, err = Run(t.Context(), Site{URL: "http://site.test", Log: log, transport: direct{site}}, s); err != nil {
			t.Fatal(err)
		}
	})
	return result
}

func TestASiteThatServesEverybodyServesEverybody(t *testing.T) {
	var logins, pages, fetches atomic.Int64
	var clients sync.Map
	result := try(t, func(w http.ResponseWriter, r *http.Request) {
		clients.Store(r.Header.Get("X-Forwarded-For"), true)
		switch {
		case r.URL.Path == "/login.php":
			logins.Add(1)
			http.SetCookie(w, &http.Cookie{Name: "member", Value: r.URL.Query().Get("user")})
		case r.Header.Get("Sec-Fetch-Mode") == "cors":
			fetches.Add(1)
		default:
			pages.Add(1)
			_, err := strconv.Atoi(r.URL.Query().Get("ms"))
			check.NoError(t, err)
		}
	}, "", quick)
	for name, c := range map[string]*Count{"members": &result.Member, "first": &result.First} {
		check.That(t, c.Sessions != 0 && c.Done == c.Sessions && c.Within30 == c.Wanted && c.Fetched == c.Fetches && c.Fetches == 2*c.Wanted, "%s: got %+v, want all served", name, *c)
	}
	check.That(t, result.Robot.Requests != 0 && result.Robot.Served == result.Robot.Requests && result.Utilisation > 0, "got %+v, want robots and a utilisation", *result)
	check.Equal(t, pages.Load(), int64(result.First.Wanted+result.Member.Wanted+result.Robot.Requests), "pages that the site had to serve")
	check.Equal(t, fetches.Load(), int64(result.First.Fetches+result.Member.Fetches), "further requests")
	addresses := 0
	clients.Range(func(any, any) bool { addresses++; return true })
	want := result.Robot.Requests
	check.That(t, addresses >= want && logins.Load() != 0, "got %d addresses and %d logins, want a new address for each of %d robots", addresses, logins.Load(), want)
}

func TestPeopleComeBackAsTheErrorPageSays(t *testing.T) {
	refused := new(sync.Map)
	s := quick
	s.Robots, s.Fetches, s.Members, s.To, s.End = 0, 0, 0, time.Second, time.Second
	result := try(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/login.php" {
			if _, again := refused.LoadOrStore(r.Header.Get("X-Forwarded-For")+r.URL.Query().Get("ms"), true); !again {
				w.Header().Set("Refresh", "1; url=/page.php")
				http.SetCookie(w, &http.Cookie{Name: "pass", Value: "1"})
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, err := r.Cookie("pass")
			check.That(t, err == nil, "a person has lost the cookie")
		}
	}, "", s)
	c := result.First
	check.That(t, c.Refused != 0 && c.Share() >= 0.6, "got %+v, want most people served when they come back", c)
}

func TestAPoolOfRobotsSharesAddressesAndPasses(t *testing.T) {
	for _, test := range []struct {
		name              string
		change            func(*Scenario)
		addresses, passes int // at most
	}{
		{"one address", func(s *Scenario) { s.Addresses = 1 }, 1, 50},
		{"one pass", func(s *Scenario) { s.SharedPass = true }, 50, 1},
	} {
		var mu sync.Mutex
		addresses, passes, issued := map[string]bool{}, map[string]bool{}, 0
		s := quick
		s.Robots, s.Pool, s.Cookies = 4, 50, 1
		test.change(&s)
		result := try(t, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.Header.Get("X-Forwarded-For"), "102.") {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			addresses[r.Header.Get("X-Forwarded-For")] = true
			if cookie, err := r.Cookie("pass"); errors.Is(err, http.ErrNoCookie) {
				if test.passes == 1 && issued > 0 {
					return
				}
				issued++
				http.SetCookie(w, &http.Cookie{Name: "pass", Value: strconv.Itoa(issued)})
			} else {
				passes[cookie.Value] = true
			}
		}, "", s)
		check.That(t, result.Cookie.Requests != 0 && result.Robot.Requests == 0, "%s: got %+v, want robots with cookies only", test.name, *result)
		if len(addresses) > test.addresses || len(passes) > test.passes || len(passes) == 0 {
			t.Errorf("%s: got %d addresses and %d passes, want at most %d and %d", test.name, len(addresses), len(passes), test.addresses, test.passes)
		}
	}
}

func TestRobotsThatFarmHaveCookiesFromTheirFirstRequestOn(t *testing.T) {
	s := quick
	s.Robots, s.Pool, s.Cookies, s.Farmed = 4, 50, 0.5, true
	var began, refused, with, without atomic.Int64
	result := try(t, func(w http.ResponseWriter, r *http.Request) {
		switch address := r.Header.Get("X-Forwarded-For"); {
		case !strings.HasPrefix(address, "102."):
		case r.URL.Query().Get("request") != "":
			began.Store(1)
			if r.Header.Get("Cookie") != "" {
				with.Add(1)
			} else {
				without.Add(1)
			}
		case began.Load() > 0:
			t.Error("got a robot that farms while the trial runs")
		case refused.Add(1)%3 > 0: // not each of them at once
			http.SetCookie(w, &http.Cookie{Name: "pass", Value: address})
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}, "", s)
	got := result.Cookie.Requests
	check.That(t, int64(got) == with.Load() && got != 0 && result.Robot.Requests == int(without.Load()), "got %d requests of robots that keep cookies, %d with one, want all", got, with.Load())
	check.That(t, refused.Load() > 25, "got %d requests before the trial, want more than one for some of 25 robots", refused.Load())
	synctest.Test(t, func(t *testing.T) {
		served := direct{func(http.ResponseWriter, *http.Request) {}}
		_, err := Run(t.Context(), Site{URL: "http://site.test", transport: served}, s)
		check.That(t, err != nil, "got no error from a site that gives no cookies")
	})
}

func TestResultsAreShownAsTables(t *testing.T) {
	rows := []Row{{"x10", "FIFO <today>", 2, time.Hour, &Result{
		Member: Count{Wanted: 10, Within30: 9}, First: Count{Wanted: 100, Within30: 4}, Utilisation: 1, Asked: 10, Took: 10.1, Wasted: 4,
	}}}
	got := Table(rows)
	check.That(t, strings.Contains(got, "| x10 | FIFO <today> | 2 | 60 | 90.0 | 4.0 | 0.0 | - |") && strings.Contains(got, "| 0.50 | 40.0 | 1.0 | steady |"), "got %s", got)
}

func TestWorkForNobodyIsCounted(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	var mu sync.Mutex
	var lines strings.Builder
	lines.WriteString("900000 user=member1\n")
	result := try(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/login.php" {
			return
		}
		mu.Lock()
		millis, _ := strconv.Atoi(r.URL.Query().Get("ms"))
		fmt.Fprintf(&lines, "%d %s\n", 1100*millis, r.URL.RawQuery)
		check.NoError(t, os.WriteFile(log, []byte(lines.String()), 0o644))
		mu.Unlock()
		if strings.HasPrefix(r.Header.Get("X-Forwarded-For"), "101.") {
			w.WriteHeader(http.StatusBadGateway) // robots get nothing
		}
	}, log, quick)
	got := result.Stretch()
	check.That(t, math.Abs(got-0.1) <= 0.001 && result.Disturbed(), "got pages longer by %v, want by a tenth, which is too much", got)
	got = result.Waste()
	check.That(t, got >= 0.05 && got <= 0.95, "got %v of the work wasted, want that of the robots", got)
}

func TestPeopleBehindOneAddressAreCountedApartWithTheMembersAmongThem(t *testing.T) {
	s := quick
	s.NAT, s.Fetches = 1, 0
	var members, others atomic.Int64
	result := try(t, func(w http.ResponseWriter, r *http.Request) {
		address := r.Header.Get("X-Forwarded-For")
		switch {
		case r.URL.Path == "/login.php":
			http.SetCookie(w, &http.Cookie{Name: "member", Value: "1"})
		case strings.HasPrefix(address, "101."): // a robot
		case address != "100.65.0.1":
			t.Errorf("got a person at %s, want all behind one address", address)
		case r.Header.Get("Cookie") != "":
			members.Add(1)
		default:
			others.Add(1)
		}
	}, "", s)
	if c := result.NAT; c.Sessions == 0 || c.Done != c.Sessions || result.Member.Sessions+result.First.Sessions > 0 {
		t.Errorf("got %+v, want everybody on the NAT, and served", *result)
	}
	check.That(t, members.Load() != 0 && others.Load() != 0, "got %d pages of members and %d of others, want both", members.Load(), others.Load())
}
