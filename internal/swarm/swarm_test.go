package swarm

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// quick is a small trial.
var quick = Scenario{
	Workers: 5, Seed: 1, RobotsFrom: 100 * time.Millisecond, To: 2 * time.Second, End: 2 * time.Second,
	People: 2, Members: 0.3, Page: 20 * time.Millisecond, Think: 50 * time.Millisecond, Fetches: 2,
	Robots: 2, RobotPage: 40 * time.Millisecond,
}

func TestASiteThatServesEverybodyServesEverybody(t *testing.T) {
	t.Parallel()
	var logins, pages, fetches atomic.Int64
	var clients sync.Map
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clients.Store(r.Header.Get("X-Forwarded-For"), true)
		switch {
		case r.URL.Path == "/login.php":
			logins.Add(1)
			http.SetCookie(w, &http.Cookie{Name: "member", Value: r.URL.Query().Get("user")})
		case r.Header.Get("Sec-Fetch-Mode") == "cors":
			fetches.Add(1)
		default:
			pages.Add(1)
			if _, err := strconv.Atoi(r.URL.Query().Get("ms")); err != nil {
				t.Error(err)
			}
		}
	}))
	defer site.Close()
	result, err := Run(t.Context(), Site{URL: site.URL}, quick)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Count{"members": &result.Member, "first": &result.First} {
		if c.Sessions == 0 || c.Done != c.Sessions || c.Within30 != c.Wanted || c.Fetched != c.Fetches || c.Fetches != 2*c.Wanted {
			t.Errorf("%s: got %+v, want all served", name, *c)
		}
	}
	if result.Robot.Requests == 0 || result.Robot.Served != result.Robot.Requests || result.Utilisation <= 0 {
		t.Errorf("got %+v, want robots and a utilisation", *result)
	}
	if got, want := pages.Load(), int64(result.First.Wanted+result.Member.Wanted+result.Robot.Requests); got < want {
		t.Errorf("the site got %d pages to serve, want at least %d", got, want)
	}
	addresses := 0
	clients.Range(func(any, any) bool { addresses++; return true })
	if want := result.Robot.Requests; addresses < want || logins.Load() == 0 {
		t.Errorf("got %d addresses and %d log-ins, want a new address for each of %d robots", addresses, logins.Load(), want)
	}
}

func TestPeopleComeBackAsTheErrorPageSays(t *testing.T) {
	t.Parallel()
	refused := new(sync.Map)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/login.php" {
			if _, again := refused.LoadOrStore(r.Header.Get("X-Forwarded-For")+r.URL.RawQuery, true); !again {
				w.Header().Set("Refresh", "1; url=/page.php")
				http.SetCookie(w, &http.Cookie{Name: "pass", Value: "1"})
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if _, err := r.Cookie("pass"); err != nil {
				t.Error("a person has lost the cookie")
			}
		}
	}))
	defer site.Close()
	s := quick
	s.Robots, s.Fetches, s.Members, s.To, s.End = 0, 0, 0, time.Second, time.Second
	result, err := Run(t.Context(), Site{URL: site.URL}, s)
	if err != nil {
		t.Fatal(err)
	}
	if c := result.First; c.Refused == 0 || c.Share() < 0.6 {
		t.Errorf("got %+v, want most people served when they come back", c)
	}
}

func TestAPoolOfRobotsSharesAddressesAndPasses(t *testing.T) {
	t.Parallel()
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
		site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		}))
		s := quick
		s.Robots, s.Pool, s.Cookies = 4, 50, 1
		test.change(&s)
		result, err := Run(t.Context(), Site{URL: site.URL}, s)
		site.Close()
		if err != nil {
			t.Fatal(err)
		}
		if result.Cookie.Requests == 0 || result.Robot.Requests != 0 {
			t.Errorf("%s: got %+v, want robots with cookies only", test.name, *result)
		}
		if len(addresses) > test.addresses || len(passes) > test.passes || len(passes) == 0 {
			t.Errorf("%s: got %d addresses and %d passes, want at most %d and %d", test.name, len(addresses), len(passes), test.addresses, test.passes)
		}
	}
}

func TestResultsAreShownAsTablesAndPictures(t *testing.T) {
	rows := []Row{{"x10", "FIFO <today>", &Result{Member: Count{Wanted: 10, Within30: 9}, First: Count{Wanted: 100, Within30: 4}, Utilisation: 0.5}}}
	if got := Table(rows); !strings.Contains(got, "| x10 | FIFO <today> | 90 | 4 | 0 | - |") {
		t.Errorf("got %s", got)
	}
	var csv, svg strings.Builder
	if err := errors.Join(WriteCSV(&csv, rows), WriteSVG(&svg, "A & B", rows)); err != nil {
		t.Fatal(err)
	}
	if got := csv.String(); !strings.Contains(got, "x10,FIFO <today>,90,4,0,-,") {
		t.Errorf("got %s", got)
	}
	decoder := xml.NewDecoder(strings.NewReader(svg.String()))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v: %s", err, svg.String())
		}
	}
}
