package inflight_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A person is a browser with cookies.
type person struct {
	site    *servertest.FuncSite
	addr    string
	cookies map[string]string
	plain   bool // it uses plain HTTP
}

func newPerson(s *servertest.FuncSite, addr string, cookies ...string) *person {
	p := &person{site: s, addr: addr, cookies: make(map[string]string)}
	for _, pair := range cookies {
		name, value, _ := strings.Cut(pair, "=")
		p.cookies[name] = value
	}
	return p
}

// opens asks for a page, as browsers do. Headers are in pairs.
func (p *person) opens(method, target string, headers ...string) *servertest.Visit {
	p.site.Helper()
	r := httptest.NewRequest(method, "http://example.com"+target, nil)
	r.RemoteAddr = p.addr + ":1"
	if !p.plain {
		r.TLS = &tls.ConnectionState{HandshakeComplete: true}
	}
	r.Header.Set("Accept", "text/html,*/*;q=0.8")
	var pairs []string
	for name, value := range p.cookies {
		pairs = append(pairs, name+"="+value)
	}
	if len(pairs) > 0 {
		r.Header.Set("Cookie", strings.Join(pairs, "; "))
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return p.site.Come(r)
}

// keeps keeps the cookies of a response, and returns how long to wait.
func (p *person) keeps(v *servertest.Visit) (retry time.Duration) {
	for set := range cookie.SetBy(v.Result().Header["Set-Cookie"], time.Now()) {
		if set.Kept {
			p.cookies[set.Name] = set.Value
		} else {
			delete(p.cookies, set.Name)
		}
	}
	seconds, _ := strconv.Atoi(v.Header().Get("Retry-After"))
	return time.Duration(seconds) * time.Second
}

const passOf = "__Host-throttle-pass-php"

// rankOf returns with which rank the person is served at once, and keeps its cookies if that is over.
func (p *person) rankOf(t *testing.T, target string) (rank string) {
	t.Helper()
	before := ranked(t)
	v := p.opens(http.MethodGet, target)
	servertest.Sleep(0)
	check.Assume(t, v.Reached, "got %d, want it to reach the upstream", v.Code)
	for name, n := range ranked(t) {
		if n != before[name] {
			rank = name
		}
	}
	if v.Ended {
		p.keeps(v)
	}
	return rank
}

func (p *person) wantRank(t *testing.T, want string) {
	t.Helper()
	check.Equal(t, p.rankOf(t, "/"), want, "the rank")
}

// ranked returns how many requests were served so far, by rank.
func ranked(t *testing.T) map[string]float64 {
	t.Helper()
	counts := make(map[string]float64)
	for name, n := range servertest.Counted(t, telemetry.Requests, "php") {
		if words := strings.Fields(name); words[0] != "refused" {
			counts[words[len(words)-1]] += n
		}
	}
	return counts
}

// wantPasses checks how many events of passes were counted.
func wantPasses(t *testing.T, want map[string]float64) {
	t.Helper()
	got := servertest.Counted(t, inflight.PassEvents, "php")
	check.That(t, maps.Equal(got, want), "got the passes %v, want %v", got, want)
}

// busySite is a site with one slot, which somebody holds for so long.
func busySite(t *testing.T, options string, takes time.Duration) *servertest.FuncSite {
	t.Helper()
	s := servertest.NewWaitSite(t, "in_flight php 1 {\nshare\n"+options+"\n}", takes)
	for i := range 10 { // newcomers fill what may wait
		s.Visit("198.51.100."+strconv.Itoa(1+i), "/")
	}
	return s
}

// inBubble runs a test in virtual time, over HTTPS.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { servertest.InBubble(t, f) })
}

// TestPassesOfRefused: who comes back when it was told ranks before newcomers, and who is refused
// again and again waits longer.
func TestPassesOfRefused(t *testing.T) {
	inBubble(t, "come back", func(t *testing.T) {
		s := busySite(t, "wait 1s", 3*time.Second)
		ann := newPerson(s, client(1))
		refused := ann.opens("GET", "/")
		if refused.Code != http.StatusServiceUnavailable || refused.Header().Get("Refresh") != refused.Header().Get("Retry-After") {
			t.Fatalf("got %d with Refresh %q, want it refused, with a page that reloads when it is told to come", refused.Code, refused.Header().Get("Refresh"))
		}
		wait := ann.keeps(refused)
		check.Assume(t, wait >= 5*time.Second && wait <= 10*time.Second && ann.cookies[passOf] != "", "got Retry-After %v and the cookies %v, want from 5 to 10 s and a pass", wait, ann.cookies)
		servertest.Sleep(wait - time.Second)
		ann.wantRank(t, "first") // it comes too early
		servertest.Sleep(time.Minute)
		ann.wantRank(t, "returned")
		servertest.Sleep(time.Minute)
		wantPasses(t, map[string]float64{"issued": 1, "early": 1, "valid": 1})
	})
	inBubble(t, "share a turn", func(t *testing.T) {
		s := busySite(t, "wait 8s", time.Second)
		var cookies []string
		for i := range 6 {
			p := newPerson(s, fmt.Sprintf("203.0.113.%d", 100+i))
			p.keeps(p.opens("GET", "/"))
			cookies = append(cookies, passOf+"="+p.cookies[passOf])
		}
		servertest.Sleep(time.Minute)
		s.Visit(client(1), "/")
		var robots []*servertest.Visit
		for n := range 5 { // copies of a pass
			robots = append(robots, newPerson(s, client(10+n), cookies[1]).opens("GET", "/"))
		}
		other := newPerson(s, client(20), cookies[0]).opens("GET", "/")
		servertest.Sleep(time.Minute)
		check.That(t, other.Reached && other.Waited < robots[1].Waited, "got one waiting %v behind copies of a pass, whose second waited %v", other.Waited, robots[1].Waited)
	})
	for _, test := range []struct {
		name, options        string
		plain, forgetsCookie bool
	}{{"with cookies", "", false, false}, {"without cookies", "", false, true}, {"without passes", "pass off\n", false, false}, {"over plain HTTP", "", true, false}} {
		inBubble(t, "back off "+test.name, func(t *testing.T) {
			s := busySite(t, test.options+"wait 5s", time.Hour)
			ann := newPerson(s, client(1))
			ann.plain = test.plain
			for try, least := range []time.Duration{5, 5, 5, 10, 20, 40, 60} {
				v := ann.opens("GET", "/")
				if !v.Ended { // it waits: its rank is better now
					servertest.Sleep(5 * time.Second)
				}
				reloads := v.Header().Get("Refresh") != ""
				check.That(t, v.Code == http.StatusServiceUnavailable && reloads == (try < 3), "try %d: got %d and a page that reloads: %v", try+1, v.Code, reloads)
				wait := ann.keeps(v)
				check.That(t, wait >= least*time.Second && wait <= min(60, max(10, 2*least))*time.Second, "try %d: got Retry-After %v, want at least %d s", try+1, wait, least)
				if test.forgetsCookie {
					clear(ann.cookies)
				}
				servertest.Sleep(wait)
			}
			for i, browser := range []string{"another", "", ""} { // behind the same address; the last one before the second is due
				other := newPerson(s, client(1))
				other.plain = test.plain
				v := other.opens("GET", "/", "User-Agent", browser)
				servertest.Sleep(5 * time.Second)
				check.Equal(t, v.Header().Get("Refresh") != "", i != 1 || test.name == "with cookies", "browser %d: a page that reloads", i)
			}
			servertest.Sleep(2 * time.Hour)
		})
	}
	inBubble(t, "back off beside a flood", func(t *testing.T) {
		s := busySite(t, "pass off\nwait 1s", time.Hour)
		for i := range 10_000 { // a page each, of which it never asks for one again
			newPerson(s, client(2)).opens("GET", "/"+strconv.Itoa(i))
		}
		ann := newPerson(s, client(1))
		for try := range 5 {
			v := ann.opens("GET", "/")
			servertest.Sleep(time.Second)
			check.Equal(t, v.Header().Get("Refresh") != "", try < 3, "try %d: a page that reloads", try+1)
			servertest.Sleep(ann.keeps(v))
		}
		servertest.Sleep(2 * time.Hour)
	})
	for _, test := range []struct {
		name, options, method string
		headers               []string
		plain, want           bool
	}{
		{"a page", "", "GET", nil, false, true},
		{"a form", "", "POST", nil, false, true},
		{"over plain HTTP", "", "GET", nil, true, false},
		{"an image", "", "GET", []string{"Accept", "image/avif,*/*;q=0.8"}, false, false},
		{"fetch", "", "GET", []string{"Accept", "*/*"}, false, false},
		{"without passes", "pass off", "GET", nil, false, false},
	} {
		inBubble(t, "for "+test.name, func(t *testing.T) {
			s := busySite(t, test.options, time.Minute)
			p := newPerson(s, client(1))
			p.plain = test.plain
			v := p.opens(test.method, "/", test.headers...)
			got := len(v.Header()["Set-Cookie"]) == 1
			check.That(t, v.Code == http.StatusServiceUnavailable && got == test.want, "got %d and a pass: %v, want 503 and %v", v.Code, got, test.want)
			servertest.Sleep(2 * time.Minute)
		})
	}
}

// loginSite answers logins like WordPress, and names the user in X-User.
func loginSite(t *testing.T, rank string) *servertest.FuncSite {
	t.Helper()
	s := servertest.NewWaitSite(t, "in_flight php 5 {\nshare\n"+rank+"\n}", 0)
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		header := w.Header()
		header.Set("Cache-Control", "private")
		switch query := r.URL.Query(); {
		case query.Has("login"):
			header.Add("Set-Cookie", "wordpress_logged_in_0f="+query.Get("login")+"%7C1%7Ctoken; path=/; HttpOnly")
			header.Add("Set-Cookie", "app_sid=session-of-"+query.Get("login")+"; path=/; HttpOnly")
			header.Set("X-User", query.Get("login"))
			w.WriteHeader(http.StatusFound)
		case query.Has("logout"):
			header.Add("Set-Cookie", "wordpress_logged_in_0f=%20; Max-Age=0; path=/")
			header.Add("Set-Cookie", "app_sid=%20; Max-Age=0; path=/")
		}
		return nil
	}
	return s
}

// TestMembers: a login makes a member, and a log-out ends that. The pass counts with its cookie
// only.
func TestMembers(t *testing.T) {
	for _, rank := range []string{"rank member issued wordpress_logged_in_*", "rank member told X-User app_sid"} {
		inBubble(t, rank, func(t *testing.T) {
			s := loginSite(t, rank)
			ann := newPerson(s, client(1))
			login := ann.opens("POST", "/?login=ann")
			ann.keeps(login)
			if told := login.Header().Get("X-User"); strings.Contains(rank, "told") && told != "" {
				t.Errorf("got the user %q in the response, want it kept from clients", told)
			}
			ann.wantRank(t, "member")
			newPerson(s, client(2), passOf+"="+ann.cookies[passOf]).wantRank(t, "returned")
			ann.rankOf(t, "/?logout")
			ann.wantRank(t, "returned")
			again := newPerson(s, client(1))
			again.keeps(again.opens("POST", "/?login=bob"))
			again.wantRank(t, "member")
			wantPasses(t, map[string]float64{"member": 2, "valid": 3, "unbound": 2})
		})
	}
	inBubble(t, "twenty of a network in an hour", func(t *testing.T) {
		s, got := loginSite(t, "rank member issued wordpress_logged_in_*"), make(map[string]int)
		join := func(addr, name string) {
			p := newPerson(s, addr)
			p.keeps(p.opens("POST", "/?login="+name))
			got[p.rankOf(t, "/")]++
		}
		for i := range 25 {
			join(client(1), "user"+strconv.Itoa(i))
			join(client(1), "user0") // who needs no other place
		}
		check.That(t, got["member"] == 45 && got["returned"] == 5, "got %v from one network, want twenty members and five who only returned", got)
		join(client(2), "other")
		servertest.Sleep(time.Hour)
		join(client(1), "later")
		check.That(t, got["member"] == 47, "got %v, want a member of another network, and one an hour later", got)
		for i := range 25 {
			join(fmt.Sprintf("[2001:db8:0:%d::1]", i), "v6-"+strconv.Itoa(i))
		}
		check.That(t, got["member"] == 67 && got["returned"] == 10, "got %v, want twenty members more from 25 prefixes of a /48", got)
	})
	inBubble(t, "by matchers", func(t *testing.T) {
		s := loginSite(t, "rank member {\nclient_ip 192.0.2.0/24\n}\nrank crawler {\nclient_ip 198.51.100.0/24\n}")
		newPerson(s, "192.0.2.7").wantRank(t, "member")
		newPerson(s, "198.51.100.7").wantRank(t, "crawler")
		newPerson(s, "203.0.113.7").wantRank(t, "first")
	})
	inBubble(t, "early", func(t *testing.T) { // ranks as one who returns
		s := loginSite(t, "wait 4s\nrank member issued wordpress_logged_in_*")
		ann, serve := newPerson(s, client(1)), s.Serve
		ann.keeps(ann.opens("POST", "/?login=ann"))
		s.Serve = func(w http.ResponseWriter, r *http.Request) error { <-time.After(5 * time.Second); return serve(w, r) }
		for i := range 30 {
			s.Visit("198.51.100."+strconv.Itoa(i), "/")
		}
		first := ann.opens("GET", "/")
		servertest.Sleep(4 * time.Second) // a member may wait
		wait := ann.keeps(first)
		check.Assume(t, first.Code == http.StatusServiceUnavailable && wait >= 5*time.Second && wait <= 10*time.Second, "got %d and Retry-After %v, want 5 to 10 s", first.Code, wait)
		servertest.Sleep(2 * time.Second)
		ann.wantRank(t, "returned")
		servertest.Sleep(time.Minute)
		ann.wantRank(t, "member")
		servertest.Sleep(time.Minute)
		wantIdle(t, s)
	})
}

// TestTold: only the upstream tells who a user is, and no client hears it.
func TestTold(t *testing.T) {
	onSite(t, "in_flight php 5 {\nshare\nrank member told X-User sid\n}", 0, func(t *testing.T, s *servertest.FuncSite) {
		sent := ""
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			header := w.Header()
			sent += strings.Join(r.Header["X-User"], " ")
			header.Set("X-User", "7")
			header.Set("Cache-Control", "private")
			switch r.URL.Path {
			case "/304":
				w.WriteHeader(http.StatusNotModified)
			case "/500":
				w.WriteHeader(http.StatusInternalServerError)
			case "/error":
				return caddyhttp.Error(http.StatusBadGateway, errors.New("gone"))
			case "/panic":
				panic(http.ErrAbortHandler)
			case "/upgrade":
				w.WriteHeader(http.StatusSwitchingProtocols)
			case "/twice":
				header.Add("X-User", "8")
			case "/public":
				header.Set("Cache-Control", "public, max-age=60")
			}
			return nil
		}
		for path, want := range map[string]bool{"/": true, "/500": true, "/304": false, "/error": false, "/panic": false, "/upgrade": false, "/twice": false, "/public": false} {
			p := newPerson(s, client(1), "sid=0123456789")
			v := p.opens("GET", path, "X-User", "1", "Upgrade", "websocket")
			check.Slices(t, v.Header()["X-User"], nil, "%s: the user in the response", path)
			p.keeps(v)
			check.That(t, p.cookies[passOf] != "" == want, "%s: got a member's pass: %v, want %v", path, !want, want)
		}
		check.Equal(t, sent, "", "what the upstream has from the client")
		servertest.Sleep(time.Minute)
	})
}

// On a host with 2,000 sites, histograms and rare reasons of each rank were most of the metrics.
func TestSeriesOfWhatIsRareBeginWithTheirFirstCount(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "in_flight php 1 {\nshare\n}", 0)
		wantSeries := func(when string, want map[string]int) {
			got := make(map[string]int)
			for _, sample := range s.Metric(t, "") {
				if sample.Labels["zone"] == "php" {
					got[strings.TrimPrefix(sample.Name, "caddy_throttle_")+" "+sample.Labels["reason"]]++
				}
			}
			for name, n := range want {
				check.Equal(t, got[name], n, "%s: series of %s", when, name)
			}
		}
		want := map[string]int{"requests_total ": 8, "requests_total queue_full": 4, "requests_total timeout": 4, "requests_total memory": 0, "requests_total too_large": 0, "slot_wait_seconds ": 0}
		wantSeries("at the start", want)
		s.Visit(servertest.Someone, "/")
		s.Visit("198.51.100.1:1", "/")
		want["slot_wait_seconds "] = 1
		wantSeries("after two visits", want)
	})
}
