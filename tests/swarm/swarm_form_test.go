package swarm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/internal/swarm"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// A swarmForm says for how long each row is tried, and with how many seeds.
type swarmForm struct {
	lasts time.Duration
	seeds int
}

// longSwarm returns the form that SWARM_TRIALS asks for, such as 10mx3: ten minutes and
// three seeds. With TEST_LONG=1 alone it is one that ends in half an hour.
func longSwarm(t *testing.T) swarmForm {
	t.Helper()
	if !system.Long() {
		t.Skip("SKIPPED: the long trials, without TEST_LONG=1")
	}
	text := cmp.Or(os.Getenv("SWARM_TRIALS"), "3mx1")
	length, times, _ := strings.Cut(text, "x")
	lasts, err := time.ParseDuration(length)
	seeds, err2 := strconv.Atoi(times)
	check.Assume(t, errors.Join(err, err2) == nil && lasts >= time.Minute && seeds >= 1, "got SWARM_TRIALS=%s, want a duration of a minute or more, x, and a number of seeds: 10mx3", text)
	return swarmForm{lasts, seeds}
}

// scenario returns the traffic of people alone. A shorter form has the same people, who
// think for a shorter time.
func (f swarmForm) scenario(seed uint64) swarm.Scenario {
	return swarm.Scenario{
		Workers: swarmWorkers, Seed: seed, People: 1.5, Members: 0.25,
		Page: 250 * time.Millisecond, Think: f.lasts / 50, RobotPage: 800 * time.Millisecond,
		RobotsFrom: f.lasts / 10, From: f.lasts * 3 / 20, To: f.lasts * 49 / 60, End: f.lasts,
	}
}

// swarmsAtOnce lets as many trials run as leave the machine a third of its time. Each has
// its own workers, its own server in front of them, and its own visitors.
var swarmsAtOnce = make(chan struct{}, 4*runtime.NumCPU())

// try runs the trials of a row, and returns their sum.
func (f swarmForm) try(t *testing.T, what onslaught, site string, start func(*testing.T) swarm.Site) *swarm.Row {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: a trial under a swarm; tests/run.sh all runs it")
	}
	row := &swarm.Row{Traffic: what.name, Site: site, Result: new(swarm.Result)}
	for seed := range uint64(f.seeds) {
		t.Run(fmt.Sprint("seed ", seed+1), func(t *testing.T) {
			swarmsAtOnce <- struct{}{}
			defer func() { <-swarmsAtOnce }()
			s := f.scenario(seed + 1)
			what.change(&s)
			row.Add(check.Must(swarm.Run(t.Context(), start(t), s))(t))
			row.Trials++
			row.Lasted += f.lasts
		})
	}
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("\n%s", swarm.Table([]swarm.Row{*row}))
	if row.Disturbed() {
		t.Skipf("SKIPPED: the machine was too busy: pages took %s %% longer than they were asked to", swarm.Percent(row.Stretch()))
	}
	return row
}

func TestADemandOfATrialAllowsForChance(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		demanded
		met bool
	}{
		{demanded{got: 0.95, want: 0.95, sessions: 1000}, true},
		{demanded{got: 0.94, want: 0.95, sessions: 1000}, true},
		{demanded{got: 0.93, want: 0.95, sessions: 1000}, false},
		{demanded{got: 0.93, want: 0.95, sessions: 100}, true},
		{demanded{got: 0.89, want: 0.90}, false},
		{demanded{got: 0.02, want: 0.03, most: true}, true},
		{demanded{got: 0.04, want: 0.03, most: true}, false},
		{demanded{got: math.NaN(), want: 0.9, sessions: 100}, false},
		{demanded{got: math.NaN(), want: 0.03, most: true}, false},
	} {
		check.Equal(t, test.demanded.met(), test.met, "%+v", test.demanded)
	}
}
