package bench

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// TestFigures prints the tables of decisions in README.md and of requests in docs/performance.md. It
// measures what BenchmarkTake does, but on machines that do other things as well. All limiters
// take turns, and the best part of each limiter's best turn counts. First touches
// cost more as a store grows, so of those the best million counts.
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

// TestCosts prints what zones and their options add to a request through Caddy's server, in
// nanoseconds of processor time, the collector's included, and without sockets.
func TestCosts(t *testing.T) {
	if os.Getenv("TEST_LONG") != "1" {
		t.Skip("SKIPPED: measures; set TEST_LONG=1")
	}
	zone := func(n int, options string) string {
		return fmt.Sprintf("zone z%d {\nkey client_ip\nlimit %d 1000/s\n%s\n}\n", n, 100_000_000+n, options)
	}
	zones := func(n int) (all string) {
		for i := range n {
			all += zone(i, "")
		}
		return all
	}
	cases := []struct{ name, zones string }{
		{"no zone", ""},
		{"one zone", zones(1)}, {"two zones", zones(2)}, {"three zones", zones(3)}, {"five zones", zones(5)},
		{"ten zones", zones(10)}, {"twenty zones", zones(20)},
		{"one zone, shadow", zone(0, "shadow")},
		{"one zone, and one in shadow", zones(1) + zone(1, "shadow")},
		{"one zone, settle seconds", zone(0, "settle seconds")},
		{"one zone, settle status", zone(0, "settle status 401 1")},
		{"one zone, block", zone(0, "block 10m")},
		{"one zone, delay", zone(0, "delay 50000000")},
		{"in_flight alone", "in_flight workers 100"},
		{"in_flight with share", "in_flight workers 100 {\nshare\n}"},
		{"one zone that refuses", "zone shut {\nkey client_ip\nlimit 1 1/d\n}\n"},
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	servers, took := make([]*caddyhttp.Server, len(cases)), make([][]float64, len(cases))
	for i, c := range cases {
		site := "respond ok"
		if strings.HasPrefix(c.zones, "in_flight") {
			site = c.zones + "\nrespond ok"
		} else if c.zones != "" {
			site = "throttle {\n" + c.zones + "}\nrespond ok"
		}
		servers[i] = serverOf(site)
	}
	const rounds, part = 100, 300
	for range rounds {
		for i, server := range servers {
			began := processTime()
			for range part {
				server.ServeHTTP(discard{make(http.Header)}, newRequest())
			}
			took[i] = append(took[i], float64(processTime()-began)/part)
		}
	}
	for i, c := range cases {
		slices.Sort(took[i])
		t.Logf("| %s | %.0f | +%.0f |", c.name, took[i][rounds/4], took[i][rounds/4]-took[0][rounds/4])
	}
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

// report prints a row: for each limiter the nanoseconds in its best turn, and
// their ratio to memstore's.
func report(t *testing.T, name string, next []func() float64) {
	t.Helper()
	best := slices.Repeat([]float64{math.Inf(1)}, len(next))
	for range 10 {
		for i := range next {
			best[i] = min(best[i], next[i]())
		}
	}
	row := "| " + name
	for i, ns := range best {
		row += fmt.Sprintf(" | %s %.0f (%.2f)", limiters[i].name, ns, ns/best[0])
	}
	t.Log(row + " |")
}
