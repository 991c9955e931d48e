package fairqueue

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/internal/testseed"
)

// percent returns a of b, and 100 if there was nothing to get.
func percent(a, b int) float64 {
	if b == 0 {
		return 100
	}
	return 100 * float64(a) / float64(b)
}

// shares are means over some runs of a scenario, in percent.
type shares struct {
	member, newcomer, nat, ajax float64 // pages that were served within 30 s
	completed                   float64 // sessions of newcomers
	used, wasted                float64 // of the workers' time
	inVain                      float64 // seconds that a refused request had waited
	unbounded                   bool
}

// A study keeps the means of scenarios that several tests look at.
type study map[scenario]*shares

var studied = make(study)

// of returns the means of a scenario. The short form always takes the same seeds,
// so it always says the same.
func (studied study) of(tb testing.TB, s scenario) *shares {
	if mean := studied[s]; mean != nil {
		return mean
	}
	first, n := uint64(1), 1
	if os.Getenv("TEST_LONG") == "1" {
		first, n = testseed.Of(tb), 40
		tb.Log("first seed:", first)
	}
	switch { // the more robots compete with people, the more seeds differ
	case s.nat > 0:
		n *= 10
	case s.identity > 0, s.ajax > 0:
		n *= 2
	}
	weight, mean := 1/float64(n), new(shares)
	for i := range n {
		sim := simulate(s, first+uint64(i))
		mean.member += weight * percent(sim.member.served, sim.member.wanted)
		mean.newcomer += weight * percent(sim.newcomer.served, sim.newcomer.wanted)
		mean.nat += weight * percent(sim.natPerson.served, sim.natPerson.wanted)
		mean.ajax += weight * percent(sim.newcomer.ajaxServed, sim.newcomer.ajax)
		mean.completed += weight * percent(sim.newcomer.completed, sim.newcomer.sessions)
		mean.used += weight * 100 * sim.busy / (workers * (lasts - 90))
		mean.wasted += weight * 100 * sim.wasted / (workers * lasts)
		mean.inVain += weight * sim.inVain / float64(max(1, sim.refusals))
		mean.unbounded = mean.unbounded || sim.unbounded
	}
	studied[s] = mean
	return mean
}

func (m *shares) newcomers() float64 { return m.newcomer }
func (m *shares) members() float64   { return m.member }

// The figures of the prototype are means of eight seeds. Those for people on one NAT
// and for people only are the published ones, of two. The prototype does not know that
// one key gets a tenth of the places only.
func TestASwarmLeavesPeopleIn(t *testing.T) {
	const none = -1. // the prototype has no figure
	var table strings.Builder
	fmt.Fprintf(&table, "\n%-48s %9s %6s %8s %6s\n", "pages served within 30 s, in percent", "prototype", "ours", "members", "used")
	for _, test := range []struct {
		name      string
		prototype float64
		least     float64
		scenario  scenario
		of        func(*shares) float64
		within    float64 // points of the prototype; 3 if zero
	}{
		{name: "x1, fresh addresses", prototype: none, least: 98, scenario: scenario{attack: 1}},
		{name: "x2, fresh addresses", prototype: 97, least: 95, scenario: scenario{attack: 2}},
		{name: "x10, fresh addresses", prototype: 97, least: 95, scenario: scenario{attack: 10}},
		{name: "x10, 10 % of 2,000 robots keep cookies", prototype: 94, least: 90, scenario: scenario{attack: 10, identity: 2000, cookies: .1}},
		{name: "x2, 50 % of them", prototype: 97, least: 94, scenario: scenario{attack: 2, identity: 2000, cookies: .5}},
		{name: "x10, all of 200", prototype: 72, least: 68, scenario: scenario{attack: 10, identity: 200, cookies: 1}},
		{name: "x10, all of 2,000", prototype: 9, scenario: scenario{attack: 10, identity: 2000, cookies: 1}},
		{name: "x10, 2,000 passes of one address", prototype: 97, least: 93, scenario: scenario{attack: 10, identity: 2000, cookies: 1, addresses: 1, farmed: true, known: true}},
		{name: "x10, 200 passes farmed for hours", prototype: 95, least: 93, scenario: scenario{attack: 10, identity: 2000, cookies: .1, farmed: true, known: true}},
		{name: "x10, one pass of 2,000 addresses", prototype: 98, least: 93, scenario: scenario{attack: 10, identity: 2000, cookies: 1, onePass: true, known: true}},
		{name: "x2, five exports by a member", prototype: 98, least: 93, scenario: scenario{attack: 2, exports: 5}},
		{name: "x2, a logged-in scraper, as in the prototype", prototype: 79, least: 70, scenario: scenario{attack: 2, scraper: 10, without: keyShare}},
		{name: "x2, a logged-in scraper", prototype: none, least: 93, scenario: scenario{attack: 2, scraper: 10}},
		{name: "x2, eight requests a page", prototype: 98, least: 93, scenario: scenario{attack: 2, ajax: 7}},
		{name: "x2, eight requests a page: those of AJAX", prototype: 94, least: 92, scenario: scenario{attack: 2, ajax: 7}, of: func(m *shares) float64 { return m.ajax }},
		{name: "x10, in_flight 2", prototype: 98, least: 93, scenario: scenario{attack: 10, inFlight: 2}},
		{name: "x10, in_flight 3", prototype: 97, least: 93, scenario: scenario{attack: 10, inFlight: 3}},
		{name: "x10, in_flight 10", prototype: 98, least: 93, scenario: scenario{attack: 10, inFlight: 10}},
		{name: "x10, in_flight 20", prototype: 97, least: 93, scenario: scenario{attack: 10, inFlight: 20}},
		{name: "x2, half keep cookies: people on one NAT", prototype: 86, least: 82, scenario: scenario{attack: 2, identity: 2000, cookies: .5, nat: .3}, of: func(m *shares) float64 { return m.nat }, within: 6},
		{name: "x2, people only: sessions completed", prototype: 52, least: 48, scenario: scenario{flash: 1.7}, of: func(m *shares) float64 { return m.completed }},
	} {
		m := studied.of(t, test.scenario)
		if test.of == nil {
			test.of = (*shares).newcomers
		}
		got, prototype := test.of(m), fmt.Sprint(test.prototype)
		if test.prototype == none {
			prototype = ""
		}
		fmt.Fprintf(&table, "%-48s %9s %6.1f %8.1f %6.1f\n", test.name, prototype, got, m.member, m.used)
		if got < test.least {
			t.Errorf("%s: got %.1f %%, want at least %v", test.name, got, test.least)
		}
		within := cmp.Or(test.within, 3)
		if test.prototype != none && math.Abs(got-test.prototype) > within {
			t.Errorf("%s: got %.1f %%, the prototype has %v", test.name, got, test.prototype)
		}
		if m.member < 99 {
			t.Errorf("%s: got %.1f %% for members, want at least 99", test.name, m.member)
		}
		if m.wasted > 3 && test.scenario.exports == 0 {
			t.Errorf("%s: got %.1f %% of the work wasted, want at most 3", test.name, m.wasted)
		}
		if m.unbounded {
			t.Errorf("%s: got more than two keys for each request that waits or holds a slot", test.name)
		}
		if fresh := (scenario{attack: test.scenario.attack}); test.scenario == fresh && m.used < 90 && fresh.attack > 1 {
			t.Errorf("%s: got %.1f %% of the workers used, want at least 90", test.name, m.used)
		}
	}
	t.Log(table.String())
}

// Without any one of its rules the law leaves somebody out.
func TestEachRuleOfTheLawIsNeeded(t *testing.T) {
	fresh := scenario{attack: 10}
	for _, test := range []struct {
		name        string
		without     rule
		scenario    scenario
		of          func(*shares) float64
		least, most float64 // with the rule, and without
	}{
		{"the rank of members", memberRank, fresh, (*shares).members, 99, 20},
		{"the rank of those who returned", returnedRank, fresh, (*shares).newcomers, 95, 20},
		{"turns by passes", passKey, scenario{attack: 10, identity: 2000, cookies: 1, onePass: true, known: true}, (*shares).newcomers, 93, 20},
		{"turns by addresses", addressKey, scenario{attack: 10, identity: 2000, cookies: 1, addresses: 1, farmed: true, known: true}, (*shares).newcomers, 93, 20},
		{"turns", turns, scenario{attack: 10, identity: 200, cookies: 1}, (*shares).newcomers, 68, 55},
		{"half the slots for a key", halfCap, scenario{attack: 2, exports: 5}, (*shares).members, 98, 65},
		{"a tenth of the places for a key", keyShare, scenario{attack: 2, scraper: 10}, (*shares).newcomers, 93, 87},
		{"displacement of the last", displacement, scenario{attack: 10, row: 10}, (*shares).members, 98, 90},
		{"early refusals: seconds waited in vain", prediction, fresh, func(m *shares) float64 { return -m.inVain }, -.1, -.5},
		{"short waits of newcomers: seconds waited in vain", fifth, fresh, func(m *shares) float64 { return -m.inVain }, -.1, -.5},
	} {
		with := test.of(studied.of(t, test.scenario))
		test.scenario.without = test.without
		without := test.of(studied.of(t, test.scenario))
		t.Logf("%-50s with %6.2f, without %6.2f", test.name, with, without)
		if with < test.least || without > test.most {
			t.Errorf("%s: got %.2f with the rule and %.2f without it, want at least %v and at most %v",
				test.name, with, without, test.least, test.most)
		}
	}
}
