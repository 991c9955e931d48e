package caddymodule

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/internal/testseed"
)

// A witness writes down what a zone decides, request by request.
type witness struct {
	decision.Reporter
	mu   *sync.Mutex
	seen map[string]string // by zone and number of the request
}

// Decided implements decision.Reporter.
func (w witness) Decided(o *decision.Outcome, now time.Time) {
	d, why := o.Verdict()
	w.mu.Lock()
	defer w.mu.Unlock()
	name := o.Rule.Name + " " + o.Request.Header.Get("X-N")
	w.seen[name] += fmt.Sprintf("%v %v %v %v", strings.TrimPrefix(d.String(), "shadow_"), why, o.Delay, o.Began)
	w.Reporter.Decided(o, now)
}

// witnessed returns what the zones of a site decide, as enforced decisions, by zone and by
// the header X-N of the request.
func witnessed(app *App) map[string]string {
	w := witness{mu: new(sync.Mutex), seen: make(map[string]string)}
	for _, z := range app.zones {
		w.Reporter = z
		z.Rule.Reporter = w
	}
	return w.seen
}

// decidedBy lets the same clients, who do not react, visit zones, and returns what is
// decided about each of their requests.
func decidedBy(t *testing.T, seed uint64, block string) (seen map[string]string) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitSite(t, "throttle {\n"+block+"\n}", 0)
		seen = witnessed(s.app)
		rng := rand.New(rand.NewPCG(seed, 1))
		for n := range 150 {
			s.visit(fmt.Sprint("203.0.113.", 1+rng.IntN(3)), "/", "X-N", fmt.Sprint(n),
				"X-Cost", fmt.Sprint(rng.IntN(5)), "X-Team", fmt.Sprint(rng.IntN(2)))
			pass(time.Duration(rng.ExpFloat64() * float64(300*time.Millisecond)))
		}
		pass(time.Hour)
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

func TestZonesInShadowByOneWordAreJudgedTogether(t *testing.T) {
	zones := func(within string) string {
		return "zone small {\nlimit 2 1/d\n" + within + "\n}\nzone large {\nlimit 5 1/d\n" + within + "\n}"
	}
	for block, want := range map[string]float64{
		"shadow\n" + zones(""): 0,
		zones("shadow"):        5,
	} {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitSite(t, "throttle {\n"+block+"\n}", 0)
			for range 10 {
				if v := s.visit("203.0.113.1", "/"); v.Code != http.StatusOK {
					t.Errorf("got %v, want 200", v.Code)
				}
			}
			small, large := counted(t, requests, "small")["shadow_refused capacity"], counted(t, requests, "large")["shadow_refused capacity"]
			if small != 8 || large != want {
				t.Errorf("%s\ngot %v and %v, want 8 and %v", block, small, large, want)
			}
		})
	}
}

// A whole recipe in shadow decides about each request as the recipe does when it is enforced,
// and zones that are in shadow each by itself as each does alone.
func TestARecipeInShadowPredictsWhatEnforcingItDoes(t *testing.T) {
	seed := testseed.Of(t)
	recipes := 300
	if testing.Short() {
		recipes = 30
	}
	for n := range uint64(recipes) {
		rng := rand.New(rand.NewPCG(seed, n))
		var names []string
		var bodies []string
		for i := range 2 + rng.IntN(5) {
			names = append(names, fmt.Sprintf("z%d", i))
			body := fmt.Sprintf("limit %d %d/s\n", 3+rng.IntN(12), 1+rng.IntN(4))
			body += []string{"", "key host\n", "key header X-Team\n", "key client_ip header X-Team\n"}[rng.IntN(4)]
			body += []string{"", "", "cost {header.X-Cost}\n", "cost 1.5\n"}[rng.IntN(4)]
			body += []string{"", "", "block 2s 9s\n", "block\n"}[rng.IntN(4)]
			body += []string{"", "", "delay\n", "delay 1 wait 2s\n"}[rng.IntN(4)]
			bodies = append(bodies, body)
		}
		zones := func(within string) (text string) {
			for i, name := range names {
				text += "zone " + name + " {\n" + bodies[i] + within + "}\n"
			}
			return text
		}
		where := fmt.Sprintf("seed %d, recipe %d", seed, n)
		if lines := differing(decidedBy(t, n, "shadow\n"+zones("")), decidedBy(t, n, zones(""))); len(lines) > 0 {
			t.Fatalf("%s, in shadow:\n%s\n%s", where, strings.Join(lines, "\n"), zones(""))
		}
		alone := make(map[string]string)
		for i, name := range names {
			maps.Copy(alone, decidedBy(t, n, "zone "+name+" {\n"+bodies[i]+"}"))
		}
		if lines := differing(decidedBy(t, n, zones("shadow\n")), alone); len(lines) > 0 {
			t.Fatalf("%s, each zone in shadow by itself:\n%s\n%s", where, strings.Join(lines, "\n"), zones(""))
		}
	}
}

// A matcher that errs fails no request of a zone in shadow, by whatever word.
func TestAMatcherThatErrsFailsNoRequestInShadow(t *testing.T) {
	site := func(within string) string {
		return "zone odd {\nlimit 9 1/d\nmatch expression `int({header.X-N}) > 0`\n" + within + "\n}"
	}
	s := run(t, "http:// {\nthrottle {\n"+site("")+"\n}\nrespond ok\n}")
	c := s.from(someone)
	c.answers("/", http.StatusInternalServerError)
	s.changes("/throttle/shadow", `{"for": "30m"}`)
	c.answers("/", http.StatusOK)
	s.changes("/throttle/unshadow", `{}`)
	s.changes("/throttle/shadow", `{"zone": "odd", "for": "30m"}`)
	c.answers("/", http.StatusOK)
	s.changes("/throttle/unshadow", `{"zone": "odd"}`)
	c.answers("/", http.StatusInternalServerError)
	counts := counted(t, requests, "odd")
	if counts["refused error"] != 2 || counts["shadow_refused error"] != 2 {
		t.Errorf("got %v, want 2 refused and 2 shadow_refused for reason error", counts)
	}
}

// Slots and turns beside limits, in one group: of each zone the share of requests that it
// would refuse, and the share that it would let in, come within three points of what it does.
// The clients do not react, and the upstream has as many workers as there are slots.
func TestSlotsAndTurnsBesideAGroupComeWithinThreePoints(t *testing.T) {
	const requests, slots, work = 1500, 4, 400 * time.Millisecond
	limits := "zone pages {\nlimit 8 1/s\n}\nzone teams {\nkey header X-Team\nlimit 20 3/s\n}\n"
	for name, zones := range map[string]string{
		"slots":               limits + "zone php {\nkey host\nin_flight 4\n}",
		"slots to wait for":   limits + "zone php {\nkey host\nin_flight 4 wait 1s\n}",
		"slots of each, too":  limits + "zone php {\nkey host\nin_flight 4 wait 1s\n}\nzone each {\nin_flight 1 wait 500ms\n}",
		"slots behind delays": limits + "zone calm {\nkey host\nlimit 12 9/s\ndelay\n}\nzone php {\nkey host\nin_flight 4\n}",
		"turns":               limits + "zone php {\nkey host\nin_flight 4 wait 2s {\nshare\n}\n}",
	} {
		for _, load := range []float64{0.7, 1.5, 3} {
			shares := func(block string) map[string]float64 {
				got := make(map[string]float64)
				inSettleBubble(t, func(t *testing.T) {
					s := newWaitSite(t, "throttle {\n"+block+"\n}", work)
					if strings.Contains(zones, "share") { // which knows the upstream's own queue
						workers := make(chan struct{}, slots)
						s.serve = func(http.ResponseWriter, *http.Request) error {
							workers <- struct{}{}
							<-time.After(work)
							<-workers
							return nil
						}
					}
					seen := witnessed(s.app)
					rng := rand.New(rand.NewPCG(7, uint64(10*load)))
					for n := range requests {
						s.visit(fmt.Sprint("203.0.113.", 1+rng.IntN(20)), "/", "X-N", fmt.Sprint(n), "X-Team", fmt.Sprint(rng.IntN(3)))
						pass(time.Duration(rng.ExpFloat64() * float64(work) / slots / load))
					}
					pass(time.Hour)
					for of, what := range seen {
						zone, _, _ := strings.Cut(of, " ")
						verdict, _, _ := strings.Cut(what, " ")
						if verdict == "delayed" {
							verdict = "admitted"
						}
						got[zone+" "+verdict] += 100.0 / requests
					}
				})
				return got
			}
			enforced, shadow := shares(zones), shares("shadow\n"+zones)
			for _, what := range slices.Sorted(maps.Keys(enforced)) {
				if math.Abs(shadow[what]-enforced[what]) > 3 {
					t.Errorf("%s, load %v, %s: got %.1f %% in shadow, want about %.1f %%", name, load, what, shadow[what], enforced[what])
				}
			}
		}
	}
}
