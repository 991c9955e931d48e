package gate

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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
	used, wasted                float64 // of the workers' time
	inVain                      float64 // seconds that a refused request had waited
	inUpstream                  float64 // requests at most
	unbounded                   bool
}

// long says that all scenarios are run. With the race detector, that takes minutes.
var long = os.Getenv("TEST_LONG") == "1"

// heavy reports whether a scenario takes too long for the race detector: many
// robots with passes.
func (s *scenario) heavy() bool { return raceDetector && s.attack > 2 && s.identity > 0 }

// meanOf returns the means of a scenario. Its seeds are 1, 2 and so on, so it always says the
// same. The ordinary form takes two where robots are few, and one where they are many.
func meanOf(t *testing.T, s scenario) *shares {
	n := 1
	if long || s.attack <= 2 {
		n = 2
	}
	switch { // here seeds differ most
	case s.nat > 0:
		n = 4
	case s.identity == 200:
		n *= 2
	}
	runs := make([]*site, n)
	var all sync.WaitGroup
	for i := range runs {
		all.Go(func() { runs[i] = runSite(t, s, uint64(i)+1) })
	}
	all.Wait()
	weight, mean := 1/float64(n), new(shares)
	for _, run := range runs {
		mean.member += weight * percent(run.member.served, run.member.wanted)
		mean.newcomer += weight * percent(run.newcomer.served, run.newcomer.wanted)
		mean.nat += weight * percent(run.natPerson.served, run.natPerson.wanted)
		mean.ajax += weight * percent(run.newcomer.ajaxServed, run.newcomer.ajax)
		mean.used += weight * 100 * run.busy.Seconds() / (workers * (lasts - 90))
		mean.wasted += weight * 100 * run.wasted.Seconds() / (workers * lasts)
		mean.inVain += weight * run.inVain.Seconds() / float64(max(1, run.refusals))
		mean.inUpstream += weight * float64(run.mostInUpstream)
		mean.unbounded = mean.unbounded || run.unbounded
	}
	return mean
}

func (m *shares) newcomers() float64 { return m.newcomer }
func (m *shares) members() float64   { return m.member }

var (
	minted  = scenario{attack: 10, identity: 2000, cookies: 1, addresses: 1, farmed: true, known: true}
	onePass = scenario{attack: 10, identity: 2000, cookies: 1, onePass: true, known: true}
	heeding = scenario{attack: 10, identity: 200, cookies: 1, heeding: true}

	keepingFirst = scenario{attack: 10, identity: 200, cookies: 1, keepFirst: true}
)

func TestASwarmLeavesPeopleIn(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "\n%-48s %6s %8s %6s\n", "pages served within 30 s, in percent", "people", "members", "used")
	for i, test := range []struct {
		name     string
		onlyLong bool // it takes long
		least    float64
		scenario scenario
		of       func(*shares) float64
	}{
		{name: "x1, fresh addresses", least: 98, scenario: scenario{attack: 1}},
		{name: "x2, fresh addresses", least: 95, scenario: scenario{attack: 2}},
		{name: "x10, fresh addresses", least: 95, scenario: scenario{attack: 10}},
		{name: "x10, 10 % of 2,000 robots keep cookies", least: 90, scenario: scenario{attack: 10, identity: 2000, cookies: .1}},
		{name: "x2, 50 % of them", least: 94, scenario: scenario{attack: 2, identity: 2000, cookies: .5}},
		{name: "x10, all of 200", onlyLong: true, least: 90, scenario: scenario{attack: 10, identity: 200, cookies: 1}},
		{name: "x10, all of 200, who keep their first pass", least: 90, scenario: keepingFirst},
		{name: "x10, all of 200, who come when they were told to", onlyLong: true, least: 90, scenario: heeding},
		{name: "x10, all of 2,000", onlyLong: true, scenario: scenario{attack: 10, identity: 2000, cookies: 1}},
		{name: "x10, 2,000 passes of one address", least: 93, scenario: minted},
		{name: "x10, 200 passes farmed for hours", onlyLong: true, least: 93, scenario: scenario{attack: 10, identity: 2000, cookies: .1, farmed: true, known: true}},
		{name: "x10, one pass of 2,000 addresses", onlyLong: true, least: 93, scenario: onePass},
		{name: "x10, robots that hang up after 0.3 s", least: 95, scenario: scenario{attack: 10, hasty: .3}},
		{name: "x2, five exports by a member", least: 93, scenario: scenario{attack: 2, exports: 5}},
		{name: "x2, five exports by a member at any time", least: 90, scenario: scenario{attack: 2, exports: 5, steadily: true}},
		{name: "x2, a logged-in scraper", least: 93, scenario: scenario{attack: 2, scraper: 10}},
		{name: "x2, eight requests a page", least: 93, scenario: scenario{attack: 2, ajax: 7}},
		{name: "x2, eight requests a page: those of AJAX", least: 92, scenario: scenario{attack: 2, ajax: 7}, of: func(m *shares) float64 { return m.ajax }},
		{name: "x10, a full queue: members", least: 98, scenario: scenario{attack: 10, row: 10}, of: (*shares).members},
		{name: "sixty robots who ask for little more than the workers can do", least: 95, scenario: scenario{closed: 60}},
		{name: "x10, in_flight 2", least: 93, scenario: scenario{attack: 10, inFlight: 2}},
		{name: "x10, in_flight 3", onlyLong: true, least: 93, scenario: scenario{attack: 10, inFlight: 3}},
		{name: "x10, in_flight 10", onlyLong: true, least: 93, scenario: scenario{attack: 10, inFlight: 10}},
		{name: "x10, in_flight 20", onlyLong: true, least: 93, scenario: scenario{attack: 10, inFlight: 20}},
		{name: "x2, half keep cookies: people on one NAT", least: 82, scenario: scenario{attack: 2, identity: 2000, cookies: .5, nat: .3}, of: func(m *shares) float64 { return m.nat }},
	} {
		if (test.onlyLong || test.scenario.heavy()) && !long || testing.Short() && i%3 > 0 {
			continue
		}
		if test.of == nil {
			test.of = (*shares).newcomers
		}
		m := meanOf(t, test.scenario)
		got := test.of(m)
		fmt.Fprintf(&table, "%-48s %6.1f %8.1f %6.1f\n", test.name, got, m.member, m.used)
		check.That(t, got >= test.least, "%s: got %.1f %%, want at least %v", test.name, got, test.least)
		check.That(t, m.member >= 99, "%s: got %.1f %% for members, want at least 99", test.name, m.member)
		if m.wasted > 3 && test.scenario.exports == 0 && test.scenario.hasty == 0 {
			t.Errorf("%s: got %.1f %% of the work wasted, want at most 3", test.name, m.wasted)
		}
		check.That(t, !m.unbounded, "%s: got more than two keys for each request that waits or holds a slot", test.name)
		slots := cmp.Or(test.scenario.inFlight, workers)
		check.That(t, m.inUpstream <= float64(slots), "%s: got %v requests in the upstream, want no more than %d slots", test.name, m.inUpstream, slots)
		if fresh := (scenario{attack: test.scenario.attack}); test.scenario == fresh && m.used < 90 && fresh.attack > 1 {
			t.Errorf("%s: got %.1f %% of the workers used, want at least 90", test.name, m.used)
		}
		if m.inVain > .6 && test.scenario == (scenario{attack: 10}) { // most are refused on arrival
			t.Errorf("%s: got refused requests waiting %.2f s in vain, want at most 0.6", test.name, m.inVain)
		}
	}
	t.Log(table.String())
}
