package leakybucket

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{
		"2/s", "30/m", "1000/h", "5000/d", "1.5/sec", "10/minute", " 10 / h ", "1/d", "1/day", "0/s", "-1/s", "1e3/s", ".5/s", "5./s", "1/s/s",
		"ten", "/", "10", "NaN/s", "Inf/s", "0x1p4/s", "١/s", "\xff/s", "1\x00/s", "0.0000000009/s", strings.Repeat("9", 400) + "/s",
		"5/20s", "300/5m", "1/0.5h", "1/0.5hour", "1/0s", "1/s5", "1/5m30s", "1/.5s", "1/5 s", "1/" + strings.Repeat("9", 400) + "d",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rate, err := ParseRate(text)
		check.That(t, (err != nil) == (rate == 0), "%q: got %v a second and error %v, want one of both", text, rate, err)
		if err == nil && !(smallest <= rate && rate <= largest) {
			t.Errorf("%q: got %v a second, want it in range", text, rate)
		}
		if number, period, _ := strings.Cut(text, "/"); err == nil && strings.Trim(period, "smhd") == "" && period != "" {
			if twice, err := ParseRate(number + "/2" + period); err == nil && twice != rate/2 {
				t.Errorf("%q: got %v a second over twice the time, want %v", text, twice, rate/2)
			}
		}
		if err != nil && !strings.HasPrefix(err.Error(), "invalid rate ") {
			t.Errorf("%q: got error %q, want it to say what is invalid", text, err)
		}
	})
}

func FuzzParseLimit(f *testing.F) {
	for _, text := range []string{
		"10 1/s", "10, 1/s", "10,60/min", " 10\t1/s ", "10", "1/s 10", "10,,1/s", "10 1/s 5", "1000000 1/d", "0 1/s", "1 0/s",
		"0.000000001 0.000000001/s", "1000000000000 1000000000000/s", "NaN NaN/s", "\u00a010\u20281/s", "\xff 1/s", "",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limit, err := ParseLimit(text)
		if valid := limit.Validate() == nil; valid != (err == nil) {
			t.Errorf("%q: got %s and error %v, want a valid limit or an error", text, describe(limit), err)
		}
	})
}

func FuzzParseCost(f *testing.F) {
	for _, text := range []string{
		"0", "1", "2.5", "007", "1000000000000", "0.0000000001", ".5", "5.", "1.2.3", "-1", "+1", "1e3", "1e-400", "0x1p4", "1_000", "1,5",
		"NaN", "Inf", "", " 1", "1\x00", "١", "\xff", strings.Repeat("9", 400), "0." + strings.Repeat("0", 400) + "1",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		cost, plain := ParseCost(text)
		whole, fraction, point := strings.Cut(text, ".")
		isPlain := whole != "" && strings.Trim(whole+fraction, "0123456789") == "" && (!point || fraction != "")
		if plain != isPlain || !(cost >= 0) || !plain && cost != 0 {
			t.Errorf("%q: got %v, %v, want a number of 0 or more, %v", text, cost, plain, isPlain)
		}
		if cost := (Limit{Capacity: 10, Leak: 1}).ClampCost(cost); !(cost >= 0 && cost <= largest) {
			t.Errorf("%q: got a cost of %v, want it in range", text, cost)
		}
	})
}

// FuzzCharge tries states with blocks, of any bits, under ladders of two steps,
// of one or of none, with ceilings, and then cancels what was poured.
func FuzzCharge(f *testing.F) {
	bits := math.Float64bits
	f.Add(bits(10), bits(1), bits(0), bits(4), bits(10), bits(1), int64(0), int64(0), uint8(0), int64(0), int64(60e6), int64(600e6), bits(1))
	f.Add(bits(10), bits(1), bits(10), bits(0), bits(10), bits(1), int64(0), int64(60e6), uint8(0), int64(90e6), int64(60e6), int64(600e6), bits(0))
	f.Add(bits(10), bits(1), bits(10), bits(0), bits(20), bits(1), int64(0), int64(1e15), uint8(1), int64(0), int64(60e6), int64(600e6), bits(100))
	f.Add(bits(10), bits(1), bits(0), bits(-1), bits(1e300), bits(1), int64(0), int64(0), uint8(0), int64(1), int64(0), int64(0), bits(1e-9))
	f.Add(bits(1e-9), bits(1e-9), bits(1e12), bits(nan), bits(0), bits(0), int64(-1), int64(-1), uint8(255), int64(1), int64(1), int64(0), bits(nan))
	f.Add(bits(3), bits(1), bits(0), bits(0), bits(3), bits(nan), int64(-5), int64(math.MinInt64), uint8(9), int64(math.MaxInt64), int64(1), int64(2), bits(-1))
	f.Fuzz(func(t *testing.T, capacity, leak, debt, ceiling, level, cost uint64, then, until int64, step uint8, now, first, second int64, written uint64) {
		float := math.Float64frombits
		c := Charge{Limit: Limit{Capacity: float(capacity), Leak: float(leak)}, Debt: float(debt), Ceiling: float(ceiling), Cost: float(cost)}
		c.Block = ladder()
		for _, us := range []int64{first, second} {
			if us > 0 && us <= longestDrain.Microseconds() {
				c.Block.Steps = append(c.Block.Steps, time.Duration(us)*time.Microsecond)
			}
		}
		s := State{Level: float(level), At: Instant(then >> 2), Leak: float(written), BlockedUntil: Instant(until >> 2), Step: step}
		sound := s.Level >= 0 && !math.IsInf(s.Level, 1) && (s.Leak == 0 || smallest <= s.Leak && s.Leak <= largest)
		if c.Limit.Validate() != nil || c.Limit.ValidateDebt(c.Debt) != nil || c.Block.Validate() != nil || !sound {
			return
		}
		checkCharge(t, c, s, Instant(now>>2))
	})
}

func checkCharge(t *testing.T, c Charge, s State, now Instant) {
	after, d := s, Decision{}
	write := c.Take(&after, now, &d)
	complain := func(want string) {
		t.Helper()
		t.Errorf("%s under %v, ceiling %v, cost %v to %+v at %d: got %+v and %+v, want %s", describe(c.Limit), c.Block, c.Ceiling, c.Cost, s, now, d, after, want)
	}
	most := max(microseconds((c.Limit.Capacity+c.Debt)/c.Limit.Leak), c.Block.length(after.Step))
	if !write && after != s {
		complain("it said that there is something to write")
	}
	if d.Fits && (d.BlockedUntil != 0 || d.Began) || d.Began && (d.BlockedUntil != after.BlockedUntil || d.BlockedUntil < now) {
		complain("a charge that fits to meet no block, and a block that begins to be kept")
	}
	if d.BlockedUntil != 0 && d.BlockedUntil-now > most {
		complain("no block longer than its length")
	}
	if !d.Began && after.BlockedUntil != s.BlockedUntil && after.BlockedUntil != 0 {
		complain("no block changed but by an overflow or a clock set back")
	}
	if d.Fits && c.Ceiling > 0 && !c.Limit.WithCeiling(c.Ceiling).Fits(d.Level, c.Cost) {
		complain("nothing above the ceiling")
	}
	// A cancelled charge leaves no trace, unless the bucket is ahead of now.
	if d.Poured && after.At == now {
		left := now + most/3
		back := (&Settlement{Charge: c, Was: d, Cancel: true}).Apply(after, left)
		if got, want := c.Limit.Level(back, left), c.Limit.Level(State{Level: d.Level, At: now}, left); got != want {
			complain("it cancelled without a trace")
		}
	}
	// The block that runs is over at last, and then the charge fits as it would
	// without a block. A level far above the capacity is rounded too much.
	if c.Limit.Oversize(c.Cost) || !(c.Cost >= 0) || d.Fits || s.Level > 10*c.Limit.Capacity {
		return
	}
	drain := c.Limit.EmptyAt(State{Level: after.Level, Leak: after.Leak})
	if drain >= microseconds(inf) {
		return // by the leak it was written with, until it is written again
	}
	late := max(now, after.At, after.BlockedUntil) + drain + 1
	if c.Ceiling = 0; !fitsAt(c, after, late) {
		complain("it to fit when the bucket is empty and the block over")
	}
}

func fitsAt(c Charge, s State, now Instant) bool {
	var d Decision
	c.Take(&s, now, &d)
	return d.Fits
}
