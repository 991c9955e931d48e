package storetest

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// at is an event at so many microseconds, asked and answered right then.
func at(us int, cost, level float64, o outcome) event {
	d := time.Duration(us) * time.Microsecond
	return event{call: d - 100, back: d + 100, cost: cost, Decision: leakybucket.Decision{
		Fits: o == poured || o == held, Poured: o == poured, Level: level, At: epoch + leakybucket.Instant(us),
	}}
}

// asked is an event whose caller asked and was answered at other times, in
// microseconds, than the store said.
func asked(call, back int, e event) event {
	e.call, e.back = time.Duration(call)*time.Microsecond, time.Duration(back)*time.Microsecond
	return e
}

func TestHistory(t *testing.T) {
	l := limit(10, 1000) // 0.001 leaks in a microsecond
	for _, test := range []struct {
		name   string
		events []event
		want   string // in the complaint; empty: there is none
	}{
		{"nothing", nil, ""},
		{"one burst", []event{at(0, 10, 0, poured)}, ""},
		{"refused and held back", []event{
			at(0, 6, 0, poured), at(0, 6, 6, refused), at(1000, 6, 5, refused), at(1000, 5, 5, held), at(1000, 5, 5, poured),
		}, ""},
		{"what has leaked is poured again", []event{at(0, 10, 0, poured), at(1000, 1, 9, poured), at(2000, 1, 9, poured)}, ""},
		{"any order at one instant", []event{
			at(5, 5, 6, refused), at(5, 2, 4, poured), at(5, 11, 0, refused), at(5, 4, 0, poured), at(5, 7, 4, refused),
		}, ""},
		{"rounded up to the next microsecond", []event{at(0, 10, 0, poured), at(999, 1, 9.001, poured)}, ""},

		{"a little too much at once", []event{at(0, 10, 0, poured), at(0, 0.01, 10, poured)}, "store's clock: got 10.01 more"},
		{"a little too soon", []event{at(0, 10, 0, poured), at(980, 1, 9.02, poured)}, "store's clock: got 10.02 more"},
		{"too much in the middle", []event{
			at(0, 1, 0, poured), at(50_000, 9, 0, poured), at(50_010, 1.1, 8.99, poured), at(90_000, 1, 0, poured),
		}, "store's clock: got 10.09"},
		{"poured without fitting", []event{at(0, 9, 0, poured), at(0, 2, 9, poured)}, "want fits false"},
		{"refused without reason", []event{at(0, 2, 0, refused)}, "want fits true"},
		{"level of one who came later", []event{at(100, 5, 0, poured), at(99, 1, 5, poured)}, "want level 0"},
		{"refused by one who came later", []event{at(100, 5, 0, poured), at(99, 9, 5, refused)}, "want one of the levels [0]"},
		{"level lost", []event{at(0, 5, 0, poured), at(100, 1, 0, poured)}, "want level 4.9"},
		{"answered before, decided after", []event{
			asked(0, 10, at(100, 1, 0, poured)), asked(20, 30, at(99, 20, 0, refused)),
		}, "1µs before"},
		{"side by side, decided either way", []event{
			asked(0, 25, at(100, 1, 0, poured)), asked(20, 30, at(99, 20, 0, refused)),
		}, ""},
		{"the store's clock is too fast", []event{
			asked(0, 1, at(0, 10, 0, poured)), asked(500, 600, at(1000, 1, 9, poured)),
		}, "callers' clock: got 10.4 more"},
		{"the store's clock may be as fast as the answers allow", []event{
			asked(0, 1, at(0, 10, 0, poured)), asked(500, 1000, at(1000, 1, 9, poured)),
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := history{limit: l, events: test.events}.check()
			if test.want == "" && err != nil {
				t.Errorf("history that is allowed: got %v, want no complaint", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("history that is not allowed: got %v, want a complaint with %q", err, test.want)
			}
		})
	}
}

// The fast checks of all windows must find what looking at each one finds.
func TestWindowsAgreeWithLookingAtEachOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 200 {
		h := history{limit: limit(5, 500)}
		for range 1 + rng.IntN(60) {
			us := rng.IntN(30_000)
			e := asked(us-rng.IntN(500), us+rng.IntN(500), at(us, rng.Float64(), 0, poured))
			h.events = append(h.events, e)
		}
		byStore, byCallers := math.Inf(-1), math.Inf(-1)
		for _, first := range h.events {
			for _, last := range h.events {
				store, callers := 0.0, 0.0
				for _, e := range h.events {
					if first.At <= e.At && e.At <= last.At {
						store += e.cost
					}
					if first.call <= e.call && e.back <= last.back {
						callers += e.cost
					}
				}
				if first.At <= last.At {
					byStore = max(byStore, store-h.limit.Leak*last.At.Sub(first.At).Seconds())
				}
				if first.call <= last.back {
					byCallers = max(byCallers, callers-h.limit.Leak*(last.back-first.call).Seconds())
				}
			}
		}
		if got, want := h.checkWindows() != nil, byStore > h.bound(); got != want {
			t.Fatalf("window of the store's clock with %v: got a complaint %v, want %v", byStore, got, want)
		}
		if got, want := h.checkCallers() != nil, byCallers > h.bound(); got != want {
			t.Fatalf("window of the callers' clock with %v: got a complaint %v, want %v", byCallers, got, want)
		}
		if byStore > h.bound() {
			found++
		}
	}
	if found < 20 || found > 180 {
		t.Errorf("histories that hold too much: got %d of 200, want some and not all", found)
	}
}
