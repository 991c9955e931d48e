package caddymodule

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/internal/testseed"
)

// shadowedCounts lets the same clients, who do not react, visit zones, and returns what each of
// them has decided.
func shadowedCounts(t *testing.T, seed uint64, names []string, block string) map[string]map[string]float64 {
	counts := make(map[string]map[string]float64)
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitSite(t, "throttle {\n"+block+"\n}", 0)
		rng := rand.New(rand.NewPCG(seed, 1))
		for range 150 {
			s.visit(fmt.Sprint("203.0.113.", 1+rng.IntN(3)), "/", "X-Cost", fmt.Sprint(rng.IntN(5)), "X-Team", fmt.Sprint(rng.IntN(2)))
			pass(time.Duration(rng.ExpFloat64() * float64(300*time.Millisecond)))
		}
		pass(time.Hour)
		for _, name := range names {
			counts[name] = counted(t, requests, name)
		}
	})
	return counts
}

// asEnforced returns counts of shadow as enforcement would have them.
func asEnforced(counts map[string]float64) map[string]float64 {
	enforced := make(map[string]float64)
	for decision, n := range counts {
		enforced[strings.TrimPrefix(decision, "shadow_")] += n
	}
	return enforced
}

func nonzero(counts map[string]float64) map[string]float64 {
	maps.DeleteFunc(counts, func(_ string, n float64) bool { return n == 0 })
	return counts
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

// A whole recipe in shadow decides as the recipe does when it is enforced, and one zone of it
// as that does alone.
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
		enforced := shadowedCounts(t, n, names, zones(""))
		shadow := shadowedCounts(t, n, names, "shadow\n"+zones(""))
		for _, name := range names {
			if got, want := nonzero(asEnforced(shadow[name])), nonzero(enforced[name]); !maps.Equal(got, want) {
				t.Errorf("seed %d, recipe %d, zone %s: got %v in shadow, want %v\n%s", seed, n, name, got, want, zones(""))
			}
		}
		single := n % uint64(len(names))
		alone := "zone " + names[single] + " {\n" + bodies[single]
		was := shadowedCounts(t, n, names[single:single+1], alone+"}")[names[single]]
		own := shadowedCounts(t, n, names, zones("shadow\n"))[names[single]]
		if got, want := nonzero(asEnforced(own)), nonzero(was); !maps.Equal(got, want) {
			t.Errorf("seed %d, recipe %d, zone %s alone: got %v in shadow, want %v\n%s", seed, n, names[single], got, want, zones(""))
		}
		if t.Failed() {
			return
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
