package limit_test

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

func TestShadowRefusesForNoReason(t *testing.T) {
	for _, test := range []struct {
		name, global, zone string
		want               int
	}{
		{"enforced", "", "", http.StatusTooManyRequests},
		{"a zone", "", "shadow", http.StatusOK},
		{"all zones", "{\nthrottle {\nshadow\n}\n}\n", "", http.StatusOK},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := servertest.Run(t, test.global+"http:// {"+strings.ReplaceAll(servertest.EveryReason, "SHADOW", test.zone)+"}")
			c := s.From(servertest.Someone).With("X-Cost", "2")
			c.Get("/capacity")
			for _, reason := range []string{"capacity", "denied", "oversize", "missing_key"} {
				w := c.Get("/" + reason)
				check.Equal(t, w.Code, test.want, "%s", reason)
				if got := w.Body.String(); w.Code == http.StatusOK && (got != reason || w.Header().Get("Retry-After") != "") {
					t.Errorf("got the reason %q and Retry-After %q, want %q and none", got, w.Header().Get("Retry-After"), reason)
				}
			}
		})
	}
}

func TestARequestThatAShadowZoneWouldBanIsChargedInOtherZones(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone tried {
				override 203.0.113.0/24 deny
				limit 5 1/h
				shadow
			}
			zone enforced {
				limit 3 1/h
			}
		}
		respond {http.throttle.reason}
	}`)
	c := s.From(servertest.Someone)
	check.Equal(t, c.Get("/").Body.String(), "denied", "reason")
	c.Passes(2, "/")
}

// A matcher fails on addresses that may be forged, in early data.
func TestAMatcherThatFailsRefusesNothingInShadow(t *testing.T) {
	const fails = `
		match {
			remote_ip 203.0.113.0/24
		}`
	for _, test := range []struct {
		name, global, zone string
		want               int
	}{
		{"enforced zone", "", fails, http.StatusTooEarly},
		{"shadow zone", "", fails + "\nshadow", http.StatusOK},
		{"all in shadow", "shadow", fails, http.StatusOK},
		{"exempt, enforced", "exempt {\nremote_ip 192.0.2.0/24\n}", "", http.StatusTooEarly},
		{"exempt, shadow zone", "exempt {\nremote_ip 192.0.2.0/24\n}", "shadow", http.StatusOK},
		{"exempt, all in shadow", "shadow\nexempt {\nremote_ip 192.0.2.0/24\n}", "", http.StatusOK},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := servertest.Run(t, "{\nthrottle {\n"+test.global+"\n}\n}\nhttp:// {\nthrottle {\nzone site {\n"+test.zone+"\nlimit 5 1/s\n}\n}\nrespond ok\n}")
			r := servertest.Request(servertest.Someone, servertest.Site0)
			r.TLS = &tls.ConnectionState{HandshakeComplete: false}
			check.Equal(t, s.Do(r).Code, test.want)
		})
	}
}

// A witness writes down what a zone decides, request by request.
type witness struct {
	limit.Reporter
	mu   *sync.Mutex
	seen map[string]string // by zone and number of the request
}

// Decided implements limit.Reporter.
func (w witness) Decided(o *limit.Outcome, r *http.Request, header http.Header) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := o.Zone.Name + " " + r.Header.Get("X-N")
	w.seen[name] += fmt.Sprintf("%v %v %v %v", strings.TrimPrefix(o.Decision().String(), "shadow_"), o.Reason(), o.Delay, o.Answer.Began)
	w.Reporter.Decided(o, r, header)
}

// witnessed returns what the zones of a site decide, as enforced decisions, by zone and by
// the header X-N of the request.
func witnessed(app *caddymodule.App) map[string]string {
	w := witness{mu: new(sync.Mutex), seen: make(map[string]string)}
	for _, z := range app.Engine().Zones {
		w.Reporter = z.Counts
		z.Reporter = w
	}
	return w.seen
}

// decidedBy lets the same clients, who do not react, visit zones, and returns what is
// decided about each of their requests. Some of these are logins. What each really cost, the
// upstream says by its status and a header.
func decidedBy(t *testing.T, seed uint64, block string) (seen map[string]string) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\n"+block+"\n}", 0)
		s.Serve = func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("X-Spent", r.Header.Get("X-Spent"))
			status, err := strconv.Atoi(r.Header.Get("X-Status"))
			w.WriteHeader(status)
			return err
		}
		seen = witnessed(s.Module())
		rng := rand.New(rand.NewPCG(seed, 1))
		for n := range 150 {
			r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
			if rng.IntN(4) > 0 {
				form := []string{"text=x", "pwd=x", "log=alice&pwd=x", "log=bob&pwd=x&log=eve"}[rng.IntN(4)]
				r = httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(form))
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			r.RemoteAddr = fmt.Sprintf("203.0.113.%d:1", 1+rng.IntN(3))
			for name, of := range map[string]int{"X-N": n, "X-Cost": rng.IntN(5), "X-Team": rng.IntN(2), "X-Spent": rng.IntN(8), "X-Status": []int{200, 302, 404}[rng.IntN(3)]} {
				r.Header.Set(name, strconv.Itoa(of))
			}
			s.Come(r)
			servertest.Sleep(time.Duration(rng.ExpFloat64() * float64(300*time.Millisecond)))
		}
		servertest.Sleep(time.Hour)
	})
	return seen
}

// differing returns the first requests of which got says something else than want.
func differing(got, want map[string]string) (lines []string) {
	for name := range want {
		if got[name] != want[name] {
			lines = append(lines, fmt.Sprintf("%s: got %q, want %q", name, got[name], want[name]))
		}
	}
	for name := range got {
		if _, both := want[name]; !both {
			lines = append(lines, fmt.Sprintf("%s: got %q, want nothing", name, got[name]))
		}
	}
	slices.Sort(lines)
	return lines[:min(5, len(lines))]
}

// A whole recipe in shadow decides about each request as the recipe does when it is enforced.
func TestARecipeInShadowPredictsWhatEnforcingItDoes(t *testing.T) {
	seed := testseed.Of(t)
	for n := range check.OrShort[uint64](100, 30) {
		rng := rand.New(rand.NewPCG(seed, n))
		var names []string
		var bodies []string
		waits := rng.IntN(2) == 0 // in shadow nobody does, so the upstream would answer sooner
		for i := range 2 + rng.IntN(5) {
			names = append(names, fmt.Sprintf("z%d", i))
			body := fmt.Sprintf("limit %d %d/s\n", 3+rng.IntN(12), 1+rng.IntN(4))
			body += []string{"", "", "field pwd\n"}[rng.IntN(3)]
			key := []string{"", "key host\n", "key header X-Team\n", "key client_ip header X-Team\n", "key field log\n"}[rng.IntN(5)]
			if body += key; key == "" {
				body += []string{"", "", "override 203.0.113.2 deny\n", "override 203.0.113.2 unlimited\n"}[rng.IntN(4)]
			}
			body += []string{"", "", "cost {header.X-Cost}\n", "cost 1.5\n"}[rng.IntN(4)]
			body += []string{"", "", "block 2s 9s\n", "block\n"}[rng.IntN(4)]
			if waits {
				body += []string{"", "", "delay\n", "delay 1 wait 2s\n"}[rng.IntN(4)]
			} else {
				body += []string{"", "", "settle status 404 2\n", "settle header X-Spent\n", "settle header X-Spent debt 3\n", "settle status 2xx 3 after\n", "refund status 302\n"}[rng.IntN(7)]
			}
			bodies = append(bodies, body)
		}
		zones := func(within string) (text string) {
			for i, name := range names {
				text += "zone " + name + " {\n" + bodies[i] + within + "}\n"
			}
			return text
		}
		where := fmt.Sprintf("seed %d, recipe %d", seed, n)
		lines := differing(decidedBy(t, n, "shadow\n"+zones("")), decidedBy(t, n, zones("")))
		check.Assume(t, len(lines) == 0, "%s, in shadow:\n%s\n%s", where, strings.Join(lines, "\n"), zones(""))
	}
}

// A client that enforce chooses is judged by both zones. Of the others, the zone counts as if
// it were enforced beside the one that is.
func TestEnforceJudgesEachClient(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitSite(t, "throttle {\nzone half {\nlimit 2 1/d\nenforce 50\n}\nzone all {\nlimit 3 1/d\n}\n}", 0)
		seen, chosen := witnessed(s.Module()), 0
		const clients = 40
		for n := range clients {
			client, passed := fmt.Sprint("203.0.113.", n), 0
			for i := range 6 {
				if v := s.Visit(client, "/", "X-N", fmt.Sprint(n, "/", i)); v.Code == http.StatusOK {
					passed++
				}
			}
			want, half, all := 3, "admitted admitted refused refused refused refused", "admitted admitted admitted refused refused refused"
			if !s.Engine().Zones["half"].InShadow(nil, client) {
				chosen++
				want, all = 2, "admitted admitted - - - -"
			}
			verdicts := func(zone string) string {
				var words []string
				for i := range 6 {
					word, _, _ := strings.Cut(seen[fmt.Sprint(zone, " ", n, "/", i)], " ")
					words = append(words, cmp.Or(word, "-"))
				}
				return strings.Join(words, " ")
			}
			if passed != want || verdicts("half") != half || verdicts("all") != all {
				t.Errorf("client %d: got %d passed, half %q, all %q, want %d, %q, %q", n, passed, verdicts("half"), verdicts("all"), want, half, all)
			}
		}
		check.That(t, chosen >= clients/4 && chosen <= clients*3/4, "got %d of %d clients enforced, want about half", chosen, clients)
	})
}

// A shadow beside the zones is a default, which a zone's enforce overrides. The global one is none.
func TestEnforceOverridesTheShadowBesideIt(t *testing.T) {
	for global, want := range map[string]map[int]int{"": {200: 1, 429: 1}, "{\nthrottle {\nshadow\n}\n}\n": {200: 2}} {
		s := servertest.Run(t, global+"http:// {\nthrottle {\nshadow\nzone z {\nlimit 1 1/d\nenforce 99\n}\n}\nrespond ok\n}")
		s.From("203.0.113.7").WantStatuses("/", want)
	}
}

// The switch at run time does what the word in the config does, for all zones or one.
func TestTheSwitchToShadow(t *testing.T) {
	for _, test := range []struct {
		of                 string
		small, large, code float64
	}{
		{`{"for": "30m"}`, 8, 0, 200},
		{`{"zone": "small", "for": "30m"}`, 8, 5, 429},
	} {
		s := servertest.Run(t, "http:// {\nthrottle {\nzone small {\nlimit 2 1/d\n}\nzone large {\nlimit 5 1/d\n}\n}\nrespond ok\n}")
		s.Changes("/throttle/shadow", test.of)
		code := 0
		for range 10 {
			code = s.From(servertest.Someone).Get("/").Code
		}
		small, large := servertest.RefusedOf(t, "small"), servertest.RefusedOf(t, "large")
		if small != test.small || large != test.large || code != int(test.code) {
			t.Errorf("%s: got %v and %v refused, the last with %d, want %v and %v, and %v", test.of, small, large, code, test.small, test.large, test.code)
		}
		s.Stop()
	}
}

// What the global options exempt counts nowhere. If their matcher fails, each request counts
// once, as enforcement would fail it once.
func TestAGlobalExemptionHoldsInShadow(t *testing.T) {
	for _, shadow := range []string{"", "shadow\n"} {
		s := servertest.Run(t, "{\nthrottle {\nexempt expression `int({header.X-N}) > 0`\n}\n}\nhttp:// {\nthrottle {\n"+shadow+
			"zone small {\nlimit 2 1/d\n}\nzone large {\nlimit 5 1/d\n}\n}\nrespond ok\n}")
		s.From(servertest.Someone).With("X-N", "1").WantStatuses("/", map[int]int{http.StatusOK: 4})
		failed := http.StatusInternalServerError
		if shadow != "" {
			failed = http.StatusOK
		}
		s.From(servertest.Someone).Answers("/", failed)
		s.From(servertest.Someone).With("X-N", "0").Statuses(3, "/")
		want := map[string]map[string]float64{"small": {"admitted": 2, "refused error": 1, "refused capacity": 1}, "large": {"admitted": 2}}
		for zone, want := range want {
			got := make(map[string]float64)
			for decision, n := range servertest.Counted(t, telemetry.Requests, zone) {
				if n > 0 {
					got[strings.TrimPrefix(decision, "shadow_")] = n
				}
			}
			check.That(t, maps.Equal(got, want), "%q, zone %s: got %v, want %v", shadow, zone, got, want)
		}
		s.Stop()
	}
}

// A matcher that fails in shadow is logged once a minute, with the zone and the matcher.
func TestAnErrorInShadowIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunZone(t, "odd", "limit 9 1/d\nmatch expression `int({header.X-N}) > 0`\nshadow", "respond ok")
		const line = "a matcher of the zone fails, so requests would if it were enforced"
		for second := range 150 { // errors at 0 to 149 s, lines at 0, 60 and 120 s
			s.From(servertest.Someone).Answers("/", http.StatusOK)
			check.Need(t, len(s.Logs.Lines(t, line)), 1+second/60, "after %d s: lines", second)
			time.Sleep(time.Second)
		}
		got := s.Logs.Lines(t, line)[0]
		check.That(t, got["zone"] == "odd" && strings.HasPrefix(got["error"].(string), "match: ") && got["level"] == "warn", "got %v, want a warning that names the zone odd and its match", got)
		check.Equal(t, servertest.RefusedOf(t, "odd"), 150, "counted")
	})
}
