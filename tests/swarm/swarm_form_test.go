package swarm

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
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

// scenario returns the traffic of people alone, as in the simulation. A shorter form has
// the same people, who think for a shorter time.
func (f swarmForm) scenario(seed uint64) swarm.Scenario {
	return swarm.Scenario{
		Workers: swarmWorkers, Seed: seed, People: 1.5, Members: 0.25,
		Page: 250 * time.Millisecond, Think: f.lasts / 50, RobotPage: 800 * time.Millisecond,
		RobotsFrom: f.lasts / 10, From: f.lasts * 3 / 20, To: f.lasts * 49 / 60, End: f.lasts,
	}
}

// swarmsAtOnce lets as many trials run as leave the machine a third of its time. Each has
// its own workers, its own server in front of them, and its own visitors.
var (
	swarmsAtOnce = make(chan struct{}, 4*runtime.NumCPU())
	swarmsNext   sync.Mutex // who holds it takes its places, so that no two wait for each other
)

// A runner runs one trial.
type runner func(*testing.T, swarm.Scenario) *swarm.Result

// A tried site has the name of its rows in the table.
type tried struct {
	site string
	run  runner
}

// try runs the trials of a row, or of rows that are compared, and returns their sums.
// Compared sites get the same traffic at the same time, so that they meet the same
// machine. It skips the seeds that an earlier run has kept.
func (f swarmForm) try(t *testing.T, what onslaught, sites ...tried) (rows []*swarm.Row) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: a trial under a swarm; tests/run.sh all runs it")
	}
	for seed := range uint64(f.seeds) {
		f.trySeed(t, what, seed+1, sites)
	}
	for _, one := range sites {
		row := swarmBook.sum(what.name, one.site)
		t.Logf("\n%s", swarm.Table([]swarm.Row{*row}))
		rows = append(rows, row)
	}
	return rows
}

func (f swarmForm) trySeed(t *testing.T, what onslaught, seed uint64, sites []tried) {
	t.Helper()
	trials := make([]*swarm.Trial, len(sites))
	missing := false
	for i, one := range sites {
		trials[i] = &swarm.Trial{Traffic: what.name, Site: one.site, Seed: seed, Lasted: f.lasts}
		missing = !swarmBook.has(t, trials[i]) || missing
	}
	if !missing {
		return
	}
	s := f.scenario(seed)
	what.change(&s)
	swarmsNext.Lock()
	for range sites {
		swarmsAtOnce <- struct{}{}
	}
	swarmsNext.Unlock()
	began := time.Now().UTC().Truncate(time.Second)
	var all sync.WaitGroup
	for i, one := range sites {
		trials[i].Began = began
		all.Go(func() {
			defer func() { <-swarmsAtOnce }()
			t.Run(fmt.Sprintf("%s, seed %d", one.site, seed), func(t *testing.T) { trials[i].Result = one.run(t, s) })
		})
	}
	all.Wait()
	for _, trial := range trials {
		if trial.Result == nil {
			t.FailNow() // it has said why
		}
		swarmBook.keep(t, trial)
	}
}

// demandsNothing skips the rest of a test if the machine was the limit of a row.
func demandsNothing(t *testing.T, rows ...*swarm.Row) {
	t.Helper()
	for _, row := range rows {
		if row.Disturbed() {
			t.Skipf("SKIPPED: the machine was too busy: pages took %s %% longer than they were asked to", swarm.Percent(row.Stretch()))
		}
	}
}

// run sends the traffic to a site.
func run(t *testing.T, site swarm.Site, s swarm.Scenario) *swarm.Result {
	t.Helper()
	result := check.Must(swarm.Run(t.Context(), site, s))(t)
	return result
}

// swarmBook has all trials that count: those of this run, and those that earlier runs have
// left in the folder that SWARM_RESULTS names.
var swarmBook book

type book struct {
	sync.Mutex
	trials []*swarm.Trial
}

// read looks into the folder again, because another run may have written there. The
// caller holds the lock.
func (b *book) read(t *testing.T) {
	t.Helper()
	dir := os.Getenv("SWARM_RESULTS")
	if dir == "" {
		return
	}
	trials := check.Must(swarm.Kept(filepath.Join(dir, "under-a-swarm.jsonl")))(t)
	b.trials = trials
}

// has reports whether a trial was run before, and not disturbed.
func (b *book) has(t *testing.T, wanted *swarm.Trial) bool {
	t.Helper()
	b.Lock()
	defer b.Unlock()
	b.read(t)
	for _, trial := range b.trials {
		if trial.Traffic == wanted.Traffic && trial.Site == wanted.Site && trial.Seed == wanted.Seed && trial.Lasted == wanted.Lasted && !trial.Result.Disturbed() {
			return true
		}
	}
	return false
}

func (b *book) sum(traffic, site string) *swarm.Row {
	b.Lock()
	defer b.Unlock()
	return swarm.Sum(b.trials, traffic, site)
}

// keep adds a trial, and writes all anew: the trials, and the rows as CSV and as Markdown.
func (b *book) keep(t *testing.T, trial *swarm.Trial) {
	t.Helper()
	b.Lock()
	defer b.Unlock()
	dir := os.Getenv("SWARM_RESULTS")
	if dir == "" {
		b.trials = append(b.trials, trial)
		return
	}
	check.OK(t, os.MkdirAll(dir, 0o755))
	check.NoError(t, trial.Keep(filepath.Join(dir, "under-a-swarm.jsonl")))
	b.read(t)
	var rows []swarm.Row
	for _, name := range swarmTable() {
		if row := swarm.Sum(b.trials, name.traffic, name.site); row != nil {
			rows = append(rows, *row)
		}
	}
	for name, write := range map[string]func(*bytes.Buffer) error{
		"under-a-swarm.csv": func(b *bytes.Buffer) error { return swarm.WriteCSV(b, rows) },
		"under-a-swarm.md":  func(b *bytes.Buffer) error { _, err := b.WriteString(swarmPage(rows)); return err },
	} {
		var text bytes.Buffer
		check.NoError(t, cmp.Or(write(&text), os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o644)))
	}
}

// A rowName finds a row.
type rowName struct{ traffic, site string }

// swarmTable returns all rows in their order.
func swarmTable() (names []rowName) {
	for _, times := range []float64{2, 10} {
		for _, h := range baselines() {
			names = append(names, rowName{freshSwarm(times).name, h.name})
		}
		names = append(names, rowName{freshSwarm(times).name, turnsName})
		for _, h := range baselines() {
			names = append(names, rowName{freshSwarm(times).name, h.name + reloading})
		}
	}
	for _, trial := range swarmTrials() {
		if trial.name != freshSwarm(2).name && trial.name != freshSwarm(10).name {
			names = append(names, rowName{trial.name, turnsName})
		}
	}
	return names
}

// swarmPage returns the tables for bench/README.md.
func swarmPage(rows []swarm.Row) string {
	find := func(traffic, site string) *swarm.Row {
		for i := range rows {
			if rows[i].Traffic == traffic && rows[i].Site == site {
				return &rows[i]
			}
		}
		return nil
	}
	var text strings.Builder
	text.WriteString("| traffic | demanded, % | got, % | minutes |\n|---|---|---|---|\n")
	for _, trial := range swarmTrials() {
		row := find(trial.name, turnsName)
		if row == nil {
			continue
		}
		var want, got []string
		for _, d := range trial.of(row) {
			sign, mark := "at least", ""
			if d.most {
				sign = "at most"
			}
			if !d.met() {
				mark = " (missed)"
			}
			want = append(want, fmt.Sprintf("%s %s %.0f", d.what, sign, 100*d.want))
			got = append(got, swarm.Percent(d.got)+mark)
		}
		if len(want) == 0 {
			want, got = []string{"new visitors: the limit"}, []string{swarm.Percent(row.First.Share())}
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %.0f%s |\n", trial.name, strings.Join(want, ", "), strings.Join(got, ", "), row.Lasted.Minutes(), busyMark(row))
	}
	text.WriteString("\n| in front of PHP | traffic | members | new visitors | and with a page that reloads | wasted work | workers used |\n|---|---|---|---|---|---|---|\n")
	for _, times := range []float64{2, 10} {
		for _, h := range append(baselines(), turns()) {
			row := find(freshSwarm(times).name, h.name)
			if row == nil {
				continue
			}
			again := "-"
			if reloaded := find(freshSwarm(times).name, h.name+reloading); reloaded != nil {
				again = swarm.Percent(reloaded.First.Share()) + busyMark(reloaded)
			}
			fmt.Fprintf(&text, "| %s | x%g | %s | %s | %s | %s | %s |\n", h.name, times, swarm.Percent(row.Member.Share()),
				swarm.Percent(row.First.Share())+busyMark(row), again, swarm.Percent(row.Waste()), swarm.Percent(row.Utilised()))
		}
	}
	return text.String()
}

func busyMark(row *swarm.Row) string {
	if row.Disturbed() {
		return " (machine too busy)"
	}
	return ""
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
