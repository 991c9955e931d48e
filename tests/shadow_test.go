package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const shadowZone = `
	zone %s {
		limit 6 1/d
		cost 2 {
			method POST
		}
		%s
	}
`

// TestShadowDecidesAsEnforcementWouldButNeverRefuses sends one trace to three
// sites that differ in nothing but shadow.
func TestShadowDecidesAsEnforcementWouldButNeverRefuses(t *testing.T) {
	t.Parallel()
	for _, start := range []func(*testing.T) site{phpSite, rackSite} {
		s := start(t)
		t.Run(s.name, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, protocol string) { testShadow(t, s, protocol) })
		})
	}
}

func testShadow(t *testing.T, s site, protocol string) {
	enforced, shadow, everything := freePort(t), freePort(t), freePort(t)
	siteOf := func(port int, zone string) string {
		return fmt.Sprintf("http://:%d {\n throttle %s\n header >Decision {http.throttle.decision}\n %s\n}\n", port, zone, s.directives)
	}
	// The leak is almost 0, so that decisions do not depend on how fast the trace
	// is sent.
	one := startCaddy(t, config{
		throttle: fmt.Sprintf(shadowZone, "enforced", "") + fmt.Sprintf(shadowZone, "watched", "shadow"),
		sites:    siteOf(enforced, "enforced") + siteOf(shadow, "watched"),
	})
	other := startCaddy(t, config{
		throttle: fmt.Sprintf(shadowZone, "global", "") + "shadow",
		sites:    siteOf(everything, "global"),
	})

	visitors := []*visitor{newVisitor(t, protocol), newVisitor(t, protocol), newVisitor(t, protocol)}
	replay := func(port int) (decisions []string, refused int) {
		for n := range 45 {
			method := "GET"
			if n%4 == 1 {
				method = "POST"
			}
			a := visitors[n%len(visitors)].send(t, method, fmt.Sprintf("http://127.0.0.1:%d/", port))
			if a.status == 429 {
				refused++
				decisions = append(decisions, "refused")
				continue
			}
			if a.status != 200 {
				t.Fatalf("got status %d, want 200 or 429", a.status)
			}
			decisions = append(decisions, strings.TrimPrefix(a.header.Get("Decision"), "shadow_"))
		}
		return decisions, refused
	}

	want, wantRefused := replay(enforced)
	if wantRefused == 0 || wantRefused == 45 {
		t.Fatalf("got %d refused of 45, want a trace with both", wantRefused)
	}
	for name, port := range map[string]int{"zone": shadow, "global": everything} {
		got, refused := replay(port)
		if refused != 0 {
			t.Errorf("got %d refused by shadow (%s), want 0", refused, name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got decisions in shadow (%s)\n%v, want\n%v", name, got, want)
		}
	}

	for _, count := range []struct {
		caddy          *caddy
		zone, decision string
		want           int
	}{
		{one, "enforced", "refused", wantRefused},
		{one, "enforced", "admitted", 45 - wantRefused},
		{one, "enforced", "shadow_refused", 0},
		{one, "watched", "shadow_refused", wantRefused},
		{one, "watched", "admitted", 45 - wantRefused},
		{one, "watched", "refused", 0},
		{other, "global", "shadow_refused", wantRefused},
		{other, "global", "admitted", 45 - wantRefused},
		{other, "global", "refused", 0},
	} {
		if got := count.caddy.decisions(t, count.zone, count.decision); got != count.want {
			t.Errorf("got %d %s in zone %s by the metric, want %d", got, count.decision, count.zone, count.want)
		}
	}
}

// TestEnforcingStartsWithEmptyBuckets: clients do not pay for their requests in
// shadow.
func TestEnforcingStartsWithEmptyBuckets(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	zone := func(shadow string) config {
		return config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone tuned {
			limit 5 1/d
			%s
		}
	}
	respond ok
}`, port, shadow)}
	}
	c := startCaddy(t, zone("shadow"))
	v := newVisitor(t, "h1")
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	if got := v.countAdmitted(t, 20, url); got != 20 {
		t.Errorf("got %d of 20 admitted in shadow, want all", got)
	}
	c.reload(zone(""))
	if got := v.countAdmitted(t, 20, url); got != 5 {
		t.Errorf("got %d of 20 admitted once enforced, want the capacity of 5", got)
	}
}
