package bench

import (
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
)

var rounds = flag.Int("rounds", 10, "how many turns each limiter has in TestFigures")

// TestFigures prints the table of decisions in README.md. All limiters take turns, and the best
// part of each limiter's best turn counts, so that other work on the machine hardly does. First
// touches cost more as a store grows, so of those the best million counts.
func TestFigures(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("SKIPPED: measures for minutes; set TEST_LONG=1")
	}
	for _, c := range []struct {
		name  string
		limit limit
		fill  func(take)
		order *keys
		want  bool
		takes int
	}{
		{"one key, allowed", bottomless, func(take) {}, one(), true, 200_000},
		{"one key, refused", closed, func(take take) { take(one().at(0)) }, one(), false, 200_000},
		{"1,000,000 keys, uniform", roomy, fill, uniform(), true, 300_000},
		{"1,000,000 keys, Zipf 1.1", roomy, fill, zipf(), true, 300_000},
	} {
		next := [2][]func() float64{}
		for _, l := range limiters {
			s := l.open(c.limit)
			defer s.close()
			c.fill(s.taker())
			for i := range next {
				next[i] = append(next[i], turns(t, s, c.order, c.want, c.takes, i+1))
			}
		}
		report(t, c.name+", one processor", next[0])
		report(t, c.name+", two", next[1])
	}
	next := make([]func() float64, len(limiters))
	for i, l := range limiters {
		next[i] = func() float64 { return firstTouch(l) }
	}
	report(t, "first touch", next)
}

// firstTouch returns how many nanoseconds one of a million new keys takes.
func firstTouch(l limiter) float64 {
	s := l.open(lasting)
	defer s.close()
	take, all := s.taker(), everyoneOnce()
	runtime.GC() // what the last one left behind
	began := time.Now()
	for i := range all.len() {
		take(all.at(i))
	}
	return float64(time.Since(began)) / float64(all.len())
}

// report prints a row: for each limiter the nanoseconds in its best turn, and for ours their
// ratio to those of the best other one.
func report(t *testing.T, name string, next []func() float64) {
	t.Helper()
	best := slices.Repeat([]float64{math.Inf(1)}, len(next))
	for range *rounds {
		for i := range next {
			best[i] = min(best[i], next[i]())
		}
	}
	row := "| " + name
	for i, ns := range best {
		row += fmt.Sprintf(" | %s %.0f", limiters[i].name, ns)
		if i < ownLimiters {
			row += fmt.Sprintf(" (%.2f)", ns/slices.Min(best[ownLimiters:]))
		}
	}
	t.Log(row + " |")
}
