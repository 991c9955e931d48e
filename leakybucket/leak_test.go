package leakybucket

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

var (
	tenASecond = Limit{Capacity: 10, Leak: 10}
	tenAnHour  = Limit{Capacity: 10, Leak: 10. / 3600}
)

// filledBy returns a bucket that ten takes of a limit have filled at 100 s.
func filledBy(l Limit) State {
	s := State{}
	for range 10 {
		s, _ = l.Take(s, 1, at(100))
	}
	return s
}

// A reload with another leak must count neither against a client nor for it:
// what drained before the change drained by the leak of that time.
func TestAChangedLeakDoesNotCountBackwards(t *testing.T) {
	for _, test := range []struct {
		about         string
		before, after Limit
		rest          float64 // seconds
		level         float64 // found afterwards
		fits          bool
	}{
		{"tightened after the bucket was empty", tenASecond, tenAnHour, 2, 0, true},
		{"tightened while it drained", tenASecond, tenAnHour, 0.5, 5, true},
		{"loosened", tenAnHour, tenASecond, 2, 10 - 2*10./3600, false},
		{"loosened a long time after", tenAnHour, tenASecond, 1800, 5, true},
	} {
		now := 100 + test.rest
		_, d := test.after.Take(filledBy(test.before), 1, at(now))
		if d.Fits != test.fits || !near(d.Level, test.level) {
			t.Errorf("%s: got fits %v at level %v, want %v at %v", test.about, d.Fits, d.Level, test.fits, test.level)
		}
	}
}

// From the next write on the new leak counts, whatever that write is.
func TestEveryWriteStoresTheLeak(t *testing.T) {
	const rest = 0.3 // 7 are left
	blocking := Charge{Limit: tenAnHour, Cost: 9, Block: ladder(time.Minute)}
	taken, _ := tenAnHour.Take(filledBy(tenASecond), 2, at(100+rest))
	filled, _, _ := tenAnHour.Fill(filledBy(tenASecond), 2, at(100+rest))
	blocked := filledBy(tenASecond)
	blocking.Take(&blocked, at(100+rest), new(Decision))
	poured := filledBy(tenASecond)
	last := Settlement{Charge: Charge{Limit: tenAnHour, Cost: 1}, Was: Decision{Poured: true, Level: 9, At: at(100)}, Cancel: true}
	for about, test := range map[string]struct {
		state State
		level float64
	}{
		"taken":            {taken, 9},
		"filled":           {filled, 9},
		"settled upwards":  {tenAnHour.Settle(poured, 2, 10, at(100), at(100+rest)), 9},
		"settled down":     {tenAnHour.Settle(poured, -2, 10, at(100+rest), at(100+rest)), 5},
		"cancelled":        {last.Apply(poured, at(100+rest)), 6},
		"a block began":    {blocked, 7},
		"up to date again": {last.Charge.Limit.Settle(taken, 0, 0, 0, at(200)), 9 - 99.7/360},
	} {
		if got := tenASecond.Level(test.state, at(100+rest)); about != "up to date again" && !near(got, test.level) {
			t.Errorf("%s: got level %v, want %v", about, got, test.level)
		}
		if test.state.Leak != tenAnHour.Leak || test.state.At != at(100+rest) {
			t.Errorf("%s: got %+v, want it written at %v s with the new leak", about, test.state, 100+rest)
		}
		want := max(0, test.state.Level-359.7/360)
		if got := tenASecond.Level(test.state, at(460)); !near(got, want) {
			t.Errorf("%s: got level %v six minutes after, want %v by the new leak", about, got, want)
		}
		if got, want := tenASecond.EmptyAt(test.state), tenAnHour.EmptyAt(test.state); got != want {
			t.Errorf("%s: got it forgotten at %d, want %d by the leak it was written with", about, got, want)
		}
	}
}

// However soon it comes: the answer's time to fit is by the leak of the charge.
func TestARefusalWritesAChangedLeakAtOnce(t *testing.T) {
	fast := Limit{Capacity: 10, Leak: 20. / 3600}
	for _, probe := range []bool{false, true} {
		s := filledBy(tenAnHour)
		limits := []Limit{fast, tenAnHour}
		for i := range 1000 { // every 10 ms for ten seconds, each node in turn
			c, d := Charge{Limit: limits[i%2], Cost: 5, Probe: probe}, Decision{}
			now := at(100.01) + Instant(i)*10_000
			write := c.Take(&s, now, &d)
			if d.Fits || !write || s.Leak != c.Limit.Leak || s.At != now || s.Level != d.Level {
				t.Fatalf("take %d: got fits %v, write %v, state %+v, want a refusal that writes the new leak", i, d.Fits, write, s)
			}
		}
	}
}

func TestTheTimeToFitIsTrueAfterTheLeakWasRaised(t *testing.T) {
	s := filledBy(tenAnHour)
	s, d := tenASecond.Take(s, 1, at(100.5))
	if d.Fits {
		t.Fatal("a full bucket admitted")
	}
	wait := tenASecond.TimeToFit(d.Level, 1)
	if _, d = tenASecond.Take(s, 1, at(100.5).Add(wait)); !d.Fits {
		t.Errorf("refused again at level %v after the %v that the refusal gave", d.Level, wait)
	}
}

// A refusal has nothing to bring up to date in a bucket that is empty, kept
// without a leak, or of the same leak.
func TestARefusalLeavesABucketAsItIsUnlessItsLeakHasChanged(t *testing.T) {
	for about, s := range map[string]State{
		"never written":     {},
		"drained":           {Level: 5, At: at(100), Leak: 1},
		"without a leak":    {Level: 5000, At: at(100)},
		"of the same leak":  {Level: 5000, At: at(100), Leak: 10},
		"blocked and empty": {At: at(100), Leak: 1, BlockedUntil: at(1001)},
	} {
		c, after, d := Charge{Limit: tenASecond, Cost: 11, Block: ladder(time.Hour)}, s, Decision{}
		if write := c.Take(&after, at(1000), &d); write || after != s || d.Fits {
			t.Errorf("%s: got %+v, write %v, after a refusal, want %+v unchanged", about, after, write, s)
		}
	}
}

// While the limit is unchanged the bound holds, whatever the bucket was written
// with before.
func TestAStateOfAnotherLeakKeepsTheBound(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		l := randomLimit(rng)
		s := State{Level: l.Capacity * rng.Float64() * 2, At: at(1e6), Leak: randomLimit(rng).Leak}
		now, sum := at(1e6), 0.0
		for range 200 {
			now += Instant(rng.ExpFloat64() * l.Capacity / l.Leak / 20 * 1e6)
			cost := l.Capacity * rng.Float64() / 5
			var d Decision
			if s, d = l.Take(s, cost, now); d.Poured {
				sum += cost
			}
			if most := l.Capacity*(1+1e-6) + l.Leak*(seconds(now-at(1e6))+1e-6); sum > most {
				t.Fatalf("%s: got %v poured in %v, want at most %v", describe(l), sum, now.Sub(at(1e6)), most)
			}
		}
	}
}
