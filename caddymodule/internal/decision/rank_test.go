package decision_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
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
	r.Header.Set("Sec-Fetch-Mode", "navigate")
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

// standing returns the rank of a visit that reached the upstream.
func standing(v *servertest.Visit, t *testing.T) rule.Standing {
	t.Helper()
	if !v.Reached {
		t.Fatalf("got %d, want it to reach the upstream", v.Code)
	}
	return v.Verdict.Outcomes[0].Turn.Standing
}

// wantRank checks a visit's rank.
func wantRank(v *servertest.Visit, t *testing.T, want string) {
	t.Helper()
	if got := standing(v, t); got.Rank.String() != want {
		t.Errorf("got the rank %v because of %q, want %s", got.Rank, got.Why, want)
	}
}

// wantPasses checks how many events of passes a zone has counted.
func wantPasses(t *testing.T, zone string, want map[string]float64) {
	t.Helper()
	got := servertest.Counted(t, telemetry.Passes, zone)
	for event, n := range got {
		if n == 0 {
			delete(got, event)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got the passes %v, want %v", got, want)
	}
	telemetry.Passes.DeletePartialMatch(prometheus.Labels{"zone": zone}) // the test may run again
}

// busySite is a site with one slot, which somebody holds for so long.
func busySite(t *testing.T, zone, options string, takes time.Duration) *servertest.FuncSite {
	t.Helper()
	s := servertest.NewWaitSite(t, "throttle {\nzone "+zone+" {\nin_flight 1 {\nshare\n"+options+"\n}\n}\n}", takes)
	for range 2 {
		s.Visit("198.51.100.1", "/")
	}
	for i := range 8 { // newcomers fill what may wait
		s.Visit("198.51.100."+strconv.Itoa(2+i), "/")
	}
	return s
}

func TestOneWhoIsRefusedIsServedAsReturnedFromTheTimeOnThatItWasTold(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := busySite(t, "back", "", 20*time.Second)
		ann := newPerson(s, "203.0.113.1")
		refused := ann.opens("GET", "/")
		if refused.Code != http.StatusServiceUnavailable || refused.Header().Get("Refresh") != refused.Header().Get("Retry-After") {
			t.Fatalf("got %d with Refresh %q, want it refused, with a page that reloads when it is told to come", refused.Code, refused.Header().Get("Refresh"))
		}
		wait := ann.keeps(refused)
		if wait < 5*time.Second || wait > 10*time.Second {
			t.Fatalf("got Retry-After %v, want from 5 to 10 s", wait)
		}
		first := ann.cookies["__Host-throttle-back"]
		if first == "" {
			t.Fatal("got no pass")
		}
		servertest.Sleep(30 * time.Second) // the site is quiet again
		late := newPerson(s, "203.0.113.2", "__Host-throttle-back="+first)
		wantRank(late.opens("GET", "/"), t, "returned")
		servertest.Sleep(time.Minute)

		s = busySite(t, "soon", "wait 1s", 3*time.Second)
		bob := newPerson(s, "203.0.113.3")
		wait = bob.keeps(bob.opens("GET", "/"))
		servertest.Sleep(wait - time.Second)
		wantRank(bob.opens("GET", "/"), t, "first")
		servertest.Sleep(time.Minute)
		wantRank(bob.opens("GET", "/"), t, "returned")
		servertest.Sleep(time.Minute)
		wantPasses(t, "soon", map[string]float64{"issued": 1, "early": 1, "valid": 1})
	})
}

// One who comes back too early ranks like a newcomer, but has a pass.
func TestTheLineAMinuteKnowsPassesThatComeEarly(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := busySite(t, "hasty", "", time.Hour)
		core, logs := observer.New(zapcore.InfoLevel)
		s.App.Engine().Zones["hasty"].Counts.Logger = zap.New(core)
		ann := newPerson(s, "203.0.113.1")
		ann.keeps(ann.opens("GET", "/"))
		for range 5 {
			ann.opens("GET", "/")
		}
		servertest.Sleep(time.Minute)
		lines := logs.FilterMessageSnippet("hasty full: ").All()
		if len(lines) != 1 {
			t.Fatalf("got %d lines, want one of the first minute", len(lines))
		}
		refused := lines[0].ContextMap()["refused"].(int64)
		if want := fmt.Sprintf(", %.0f %% of refusals had no pass", 100*float64(refused-5)/float64(refused)); !strings.HasSuffix(lines[0].Message, want) {
			t.Errorf("got %q of %d refusals, want it to end in %q", lines[0].Message, refused, want)
		}
		servertest.Sleep(2 * time.Hour)
	})
}

// returning returns the cookies of n people who were refused, whose passes are valid.
func returning(s *servertest.FuncSite, zone string, n int) (cookies []string) {
	for i := range n {
		p := newPerson(s, fmt.Sprintf("203.0.113.%d", 100+i))
		p.keeps(p.opens("GET", "/"))
		name := "__Host-throttle-" + zone
		cookies = append(cookies, name+"="+p.cookies[name])
	}
	servertest.Sleep(time.Minute)
	return cookies
}

func TestCopiesOfAPassAndPassesOfOneAddressShareOneTurn(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		for i, robots := range map[int]func(s *servertest.FuncSite, cookies []string, n int) *person{
			1: func(s *servertest.FuncSite, cookies []string, n int) *person {
				return newPerson(s, "192.0.2."+strconv.Itoa(n), cookies[1])
			},
			2: func(s *servertest.FuncSite, cookies []string, n int) *person {
				return newPerson(s, "192.0.2.1", cookies[1+n])
			},
		} {
			zone := "turns" + strconv.Itoa(i)
			s := busySite(t, zone, "wait 8s", time.Second)
			cookies := returning(s, zone, 6)
			visits := []*servertest.Visit{s.Visit("198.51.100.1", "/")}
			for n := range 5 {
				visits = append(visits, robots(s, cookies, n).opens("GET", "/"))
			}
			visits = append(visits, newPerson(s, "203.0.113.1", cookies[0]).opens("GET", "/"))
			servertest.Sleep(time.Minute)
			if robot, other := visits[2].Waited, visits[6].Waited; !visits[6].Reached || other >= robot {
				t.Errorf("case %d: got one of %d waiting %v behind robots, whose second waited %v; want the robots to have one turn", i, len(cookies), other, robot)
			}
		}
	})
}

func TestFurtherRefusalsWaitLongerAndReloadThreeTimes(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := busySite(t, "long", "wait 5s", time.Hour)
		ann := newPerson(s, "203.0.113.1")
		var waits []time.Duration
		for try := range 7 {
			v := ann.opens("GET", "/")
			if !v.Ended { // it waits: its rank is better now
				servertest.Sleep(5 * time.Second)
			}
			if v.Code != http.StatusServiceUnavailable {
				t.Fatalf("try %d: got %d", try+1, v.Code)
			}
			if reloads := v.Header().Get("Refresh") != ""; reloads != (try < 3) {
				t.Errorf("try %d: got a page that reloads: %v", try+1, reloads)
			}
			wait := ann.keeps(v)
			waits = append(waits, wait)
			servertest.Sleep(wait - 5*time.Second) // the wait for a slot is part of it
		}
		for try, least := range []time.Duration{5, 5, 5, 10, 20, 40, 60} {
			if waits[try] < least*time.Second || waits[try] > min(60, max(10, 2*least))*time.Second {
				t.Errorf("try %d: got Retry-After %v, want at least %v s", try+1, waits[try], int(least))
			}
		}
		servertest.Sleep(2 * time.Hour)
	})
}

func TestOnlyPagesAndFormsBringAPass(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := busySite(t, "kinds", "", time.Minute)
		for _, test := range []struct {
			name, method string
			headers      []string
			plain, want  bool
		}{
			{"a page", "GET", nil, false, true},
			{"a form", "POST", nil, false, true},
			{"a page over plain HTTP", "GET", nil, true, false},
			{"an image", "GET", []string{"Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, false, false},
			{"fetch", "GET", []string{"Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}, false, false},
		} {
			p := newPerson(s, "203.0.113.1")
			p.plain = test.plain
			v := p.opens(test.method, "/", test.headers...)
			if got := len(v.Header()["Set-Cookie"]) == 1; v.Code != http.StatusServiceUnavailable || got != test.want {
				t.Errorf("%s: got %d and a pass: %v, want 503 and %v", test.name, v.Code, got, test.want)
			}
		}
		servertest.Sleep(2 * time.Minute)
	})
}

func TestAShadowAndAZoneWithoutPassesSendNone(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		for name, option := range map[string]string{"dark": "rank member issued sid\n}\nshadow {", "off": "pass off"} {
			s := busySite(t, name, option, time.Minute)
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				w.Header().Set("Cache-Control", "private")
				w.Header().Add("Set-Cookie", "sid=1; path=/")
				return nil
			}
			v := newPerson(s, "203.0.113.1").opens("GET", "/")
			for _, line := range v.Header()["Set-Cookie"] {
				if strings.HasPrefix(line, "__Host-throttle") {
					t.Errorf("%s: got %s", name, line)
				}
			}
			servertest.Sleep(2 * time.Minute)
			wantPasses(t, name, map[string]float64{})
		}
	})
}

func TestWhoIsServedGetsNoPass(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone crowd {\nin_flight 1 {\n\tshare\n}\n}\n}", 800*time.Millisecond)
		serve := s.Serve
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("Cache-Control", "private")
			return serve(w, r)
		}
		s.Visit("198.51.100.1", "/")
		waits := newPerson(s, "203.0.113.2").opens("GET", "/") // the mean is one second: one may wait
		servertest.Sleep(time.Minute)
		if got := waits.Header()["Set-Cookie"]; waits.Code != http.StatusOK || len(got) > 0 {
			t.Errorf("got %d and %q, want it served without a pass", waits.Code, got)
		}
	})
}

// wordpressSite answers log-ins like WordPress, and names the user in X-User to whoever
// has its session.
func wordpressSite(t *testing.T, zone, options string) *servertest.FuncSite {
	t.Helper()
	s := servertest.NewWaitSite(t, "throttle {\nzone "+zone+" {\nin_flight 5 {\nshare\n"+options+"\n}\n}\n}", 0)
	s.Serve = func(w http.ResponseWriter, r *http.Request) error {
		header := w.Header()
		header.Set("Cache-Control", "private")
		switch query := r.URL.Query(); {
		case query.Has("login"):
			header.Add("Set-Cookie", "wordpress_logged_in_0f="+query.Get("login")+"%7C1%7Ctoken"+query.Get("browser")+"; path=/; HttpOnly")
			header.Add("Set-Cookie", "app_sid=session-of-"+query.Get("login")+query.Get("browser")+"; path=/; HttpOnly")
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

func TestALogInMakesAMemberAndALogOutEndsThat(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		for i, option := range []string{"rank member issued wordpress_logged_in_*", "rank member told X-User app_sid"} {
			zone := "members" + strconv.Itoa(i)
			s := wordpressSite(t, zone, option)
			ann := newPerson(s, "203.0.113.1")
			login := ann.opens("POST", "/?login=ann")
			ann.keeps(login)
			if login.Header().Get("X-User") != "" && i == 1 {
				t.Error("got the user's ID in the response")
			}
			v := ann.opens("GET", "/")
			wantRank(v, t, "member")
			ann.keeps(v)
			if again := newPerson(s, "203.0.113.9"); true {
				again.keeps(again.opens("POST", "/?login=ann"))
				if other := standing(again.opens("GET", "/"), t); other.Member == "" || other.Member != standing(v, t).Member {
					t.Errorf("%s: got the keys %q and %q for one account, want one", option, other.Member, standing(v, t).Member)
				}
			}
			copied := newPerson(s, "203.0.113.2", "__Host-throttle-"+zone+"="+ann.cookies["__Host-throttle-"+zone])
			wantRank(copied.opens("GET", "/"), t, "returned")
			old := ann.cookies["__Host-throttle-"+zone]
			ann.keeps(ann.opens("GET", "/?logout"))
			if ann.cookies["__Host-throttle-"+zone] != "" {
				t.Errorf("%s: got the pass of a member kept after the log-out", option)
			}
			ann.cookies["__Host-throttle-"+zone] = old
			wantRank(ann.opens("GET", "/"), t, "first")
			again := newPerson(s, "203.0.113.9")
			again.keeps(again.opens("POST", "/?login=ann&browser=2"))
			wantRank(again.opens("GET", "/"), t, "member")
			wantPasses(t, zone, map[string]float64{"member": 3, "valid": 4, "unbound": 1, "expired": 1, "dropped": 1})
		}
	})
}

// Laravel and Rails write the session anew into each response, and name the user in
// most of them.
func TestAMemberStaysOneWhileTheSessionChangesWithEachResponse(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone laravel {\nin_flight 5 {\n\tshare\n\trank member told X-User *_session\n}\n}\n}", 0)
		n := 0
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			n++
			header := w.Header()
			header.Set("Cache-Control", "no-cache, private")
			header.Add("Set-Cookie", fmt.Sprintf("XSRF-TOKEN=%0200d; path=/; samesite=lax", n))
			header.Add("Set-Cookie", fmt.Sprintf("shop_session=%0100d; path=/; httponly; samesite=lax", n))
			if r.URL.Path == "/" {
				header.Set("X-User", "7")
			}
			return nil
		}
		ann := newPerson(s, "203.0.113.1")
		ann.keeps(ann.opens("GET", "/"))
		for range 5 {
			v := ann.opens("GET", "/")
			wantRank(v, t, "member")
			other := ann.opens("GET", "/") // a second tab, at the same time
			wantRank(other, t, "member")
			ann.keeps(v)
			ann.keeps(other)
			servertest.Sleep(time.Hour)
		}
		ann.keeps(ann.opens("GET", "/logout"))
		wantRank(ann.opens("GET", "/"), t, "returned")
		wantPasses(t, "laravel", map[string]float64{"member": 1, "renewed": 11, "valid": 11, "unbound": 1})
	})
}

func TestANetworkHasTwentyNewMembersAnHour(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := wordpressSite(t, "twenty", "rank member issued wordpress_logged_in_*")
		ranks := make(map[string]int)
		join := func(addr, name string) {
			p := newPerson(s, addr)
			p.keeps(p.opens("POST", "/?login="+name))
			ranks[standing(p.opens("GET", "/"), t).Rank.String()]++
		}
		for i := range 25 {
			join("203.0.113.1", "user"+strconv.Itoa(i))
		}
		if ranks["member"] != 20 || ranks["returned"] != 5 {
			t.Errorf("got %v from one network, want 20 members and 5 who only returned", ranks)
		}
		join("203.0.113.2", "other")
		if ranks["member"] != 21 {
			t.Errorf("got %v, want a member of another network", ranks)
		}
		servertest.Sleep(time.Hour)
		join("203.0.113.1", "later")
		if ranks["member"] != 22 {
			t.Errorf("got %v, want another member an hour later", ranks)
		}
	})
}

// A browser that has no pass yet may ask for a page's parts all at once, and a program may
// never keep one. The places of a network are for its other users, too.
func TestAnAccountTakesOnePlaceOfItsNetwork(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone places {\nin_flight 5 {\n\tshare\n\trank member told X-User session\n}\n}\n}", 0)
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("X-User", r.URL.Query().Get("user"))
			w.Header().Set("Cache-Control", "private")
			http.SetCookie(w, &http.Cookie{Name: "session", Value: r.URL.Query().Get("user"), HttpOnly: true})
			return nil
		}
		for range 30 {
			newPerson(s, "203.0.113.1").opens("GET", "/?user=program")
			servertest.Sleep(time.Minute)
		}
		for i := range 19 {
			p := newPerson(s, "203.0.113.1")
			p.keeps(p.opens("GET", fmt.Sprint("/?user=", i)))
			wantRank(p.opens("GET", fmt.Sprint("/?user=", i)), t, "member")
		}
		for _, addr := range []string{"203.0.113.1", "203.0.113.2"} {
			p := newPerson(s, addr)
			p.keeps(p.opens("GET", "/?user=program"))
			wantRank(p.opens("GET", "/?user=program"), t, "member")
		}
	})
}

func TestOnlyTheUpstreamTellsWhoAUserIsAndOnlyThrottleHearsIt(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		const directives = `throttle {
			zone told {
				in_flight 5 {
					share
					rank member told X-User sid
				}
			}
		}
		throttle {
			zone inner 1 1/h {
				match path /inner*
			}
		}`
		s := servertest.NewWaitSite(t, strings.Replace(directives, "zone inner 1 1/h {", "zone inner {\nlimit 1 1/h", 1), 0)
		sent := ""
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			header := w.Header()
			sent += strings.Join(r.Header["X-User"], " ")
			header.Set("X-User", "7")
			header.Set("Cache-Control", "private")
			switch r.URL.Path {
			case "/hints":
				w.WriteHeader(http.StatusEarlyHints)
				delete(header, "X-User")
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
			case "/trailer":
				delete(header, "X-User")
				header.Set("Trailer", "X-User")
				w.WriteHeader(http.StatusOK)
				header.Set("X-User", "7")
			case "/late-trailer":
				delete(header, "X-User")
				w.WriteHeader(http.StatusOK)
				header.Set(http.TrailerPrefix+"X-User", "7")
			case "/twice":
				header.Add("X-User", "8")
			case "/public":
				header.Set("Cache-Control", "public, max-age=60")
			}
			return nil
		}
		for _, test := range []struct {
			path string
			want bool
		}{
			{"/", true},
			{"/hints", false},
			{"/304", false},
			{"/500", true},
			{"/error", false},
			{"/panic", false},
			{"/upgrade", false},
			{"/trailer", false},
			{"/late-trailer", false},
			{"/twice", false},
			{"/public", false},
			{"/inner", true},
			{"/inner", false}, // another zone refuses it the second time
		} {
			path, want := test.path, test.want
			p := newPerson(s, "203.0.113.1", "sid=0123456789")
			v := p.opens("GET", path, "X-User", "1", "Upgrade", "websocket")
			for name, values := range v.Header() {
				if strings.Contains(name, "X-User") {
					t.Errorf("%s: got the header %s: %q", path, name, values)
				}
			}
			if got := p.keeps(v); p.cookies["__Host-throttle-told"] != "" != want {
				t.Errorf("%s: got a member's pass: %v, want %v (%v)", path, !want, want, got)
			}
			if head := p.opens("HEAD", path); head.Header().Get("X-User") != "" {
				t.Errorf("%s: got the header in the answer to HEAD", path)
			}
		}
		if sent != "" {
			t.Errorf("got the upstream %q from the client, want nothing", sent)
		}
		synctest.Wait()
	})
}

func TestMatchersGiveRanksToo(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := wordpressSite(t, "matched", "rank member {\nclient_ip 192.0.2.0/24\n}\nrank crawler {\nclient_ip 198.51.100.0/24\n}")
		wantRank(newPerson(s, "192.0.2.7").opens("GET", "/"), t, "member")
		wantRank(newPerson(s, "198.51.100.7").opens("GET", "/"), t, "crawler")
		wantRank(newPerson(s, "203.0.113.7").opens("GET", "/"), t, "first")
	})
}

func TestAShadowWithShareSaysWhatItCannotTell(t *testing.T) {
	s := servertest.Run(t, "http:// {\nthrottle {\nzone php {\nin_flight 5 {\n\tshare\n}\nshadow\n}\n}\n}")
	if lines := s.Logs.Lines(t, "how many clients would have returned is unknown"); len(lines) != 1 || lines[0]["level"] != "info" {
		t.Errorf("got %v, want a shadow to say what it cannot tell", lines)
	}
}

func TestATurnThatComesLaterThanPeopleWaitIsWarnedOf(t *testing.T) {
	for options, want := range map[string]int{
		"share":                 0,
		"share\nwait 8s":        0,
		"share\nwait 8001ms":    1,
		"share\nwait 30s":       1,
		"share\nwait 60s":       1,
		"wait 30s":              0, // nobody takes turns
		"share header X-Tenant": 0,
		"share\nqueue 10000":    0,
	} {
		s := servertest.Run(t, "http:// {\nthrottle {\nzone php {\nin_flight 5 {\n"+options+"\n}\n}\n}\n}")
		s.Warned(t, "set its wait to 8s or less", want)
		if strings.Contains(options, "share") {
			s.Warned(t, "requests may wait longer than most clients do", 0) // one warning is enough
		}
		s.Stop()
	}
}

func TestACookieThatEveryVisitorGetsIsWarnedOf(t *testing.T) {
	const warning = "more than a fifth of the clients that come without cookies become members"
	for _, test := range []struct {
		name      string
		visitors  int
		one       int // of so many visitors logs in
		returning bool
		want      int
	}{
		{"everybody", 60, 1, false, 1},
		{"one in four", 120, 4, false, 1},
		{"one in five", 200, 5, false, 0},
		{"one in ten", 200, 10, false, 0},
		{"all of too few to tell", 19, 1, false, 0},
		{"all who had cookies before", 60, 1, true, 0},
	} {
		s := servertest.NewLoginSite(t, t.TempDir(), "zone php {\nin_flight 5 {\n\tshare\n\trank member issued wordpress_logged_in_*\n}\n}")
		for i := range test.visitors {
			r := httptest.NewRequest("POST", "http://example.com/", strings.NewReader("pwd=right"))
			if i%test.one < test.one-1 {
				r = httptest.NewRequest("GET", "http://example.com/", nil)
			}
			if test.returning {
				r.Header.Set("Cookie", "theme=dark")
			}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.TLS = &tls.ConnectionState{HandshakeComplete: true}
			r.RemoteAddr = fmt.Sprintf("203.0.113.%d:1", i)
			s.Do(r)
		}
		t.Log(test.name)
		s.Warned(t, warning, test.want)
	}
	s := servertest.NewLoginSite(t, t.TempDir(), "zone php {\nin_flight 5 {\n\tshare\n\trank member issued wordpress_logged_in_*\n}\n}")
	r := httptest.NewRequest("POST", "http://example.com/", strings.NewReader("pwd=right"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if w := s.Do(r); len(w.Header()["Set-Cookie"]) != 2 {
		t.Errorf("got %q over plain HTTP, want the upstream's cookies alone", w.Header()["Set-Cookie"])
	}
	s.Warned(t, "a log-in succeeded over plain HTTP, where no passes are sent", 1)
}

func TestAPassIsInTheAccessLogAsAShortDigest(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := wordpressSite(t, "logged", "rank member issued wordpress_logged_in_*")
		ann := newPerson(s, "203.0.113.1")
		ann.keeps(ann.opens("POST", "/?login=ann"))
		v := ann.opens("GET", "/")
		fields := zapcore.NewMapObjectEncoder()
		if err := v.Verdict.MarshalLogObject(fields); err != nil {
			t.Fatal(err)
		}
		digest, _ := fields.Fields["pass"].(string)
		if len(digest) != 8 || strings.Contains(ann.cookies["__Host-throttle-logged"], digest) {
			t.Errorf("got the pass %q in the log, want a short digest", digest)
		}
	})
}
