package bench

import (
	"bufio"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"golang.org/x/sys/unix"
)

var (
	guard       = flag.Bool("guard", false, "compare memstore with x/time/rate, and requests with those of no zone, and fail if ground is lost")
	guardUpdate = flag.Bool("guard.update", false, "write the ratios that -guard measures to "+ratiosFile)
)

const (
	// ratiosFile has the committed ratios: the processor time of memstore in that of
	// golang.org/x/time/rate in a mutexed map, and that of requests through zones in that of
	// requests through none.
	ratiosFile = "ratios.txt"

	// mostLoss is how much of a committed ratio may be lost, mostRequestLoss how much of that of
	// a request, of which the zones are the smaller part, and mostKeyLoss how much of that of one
	// key, which other guests of a processor disturb most: see README.md.
	mostLoss, mostRequestLoss, mostKeyLoss = 0.25, 0.1, 0.5

	// guardAttempts is how often a ratio is measured before it counts as lost.
	guardAttempts = 5

	// guardTime is how long all of it may take. A machine that needs longer is too busy.
	guardTime = time.Minute
)

// TestGuard fails if memstore has become slower by more than a quarter, with one key by more
// than a half, or a request through zones by more than a tenth, compared with the committed
// ratios. Both take turns in short parts on one thread, and its processor time counts: other
// work on the machine makes it wait, but hardly makes it use more of that. The best tenth of each limiter's parts counts. A ratio that is too high is
// measured again, so that a bad minute is no failure. If the machine is so busy that this
// takes too long, the rest is skipped.
func TestGuard(t *testing.T) {
	if !*guard && !*guardUpdate {
		t.Skip("SKIPPED: measures; run ./run.sh --guard")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the garbage of one is no work for the other
	committed := readRatios(t)
	measured := ""
	deadline := time.Now().Add(guardTime)
	for _, w := range workloads {
		if time.Now().After(deadline) && !*guardUpdate {
			t.Skipf("SKIPPED: %s and what follows: the machine is too busy to measure it within %v", w.name, guardTime)
		}
		runtime.GC()
		attempt := w.open()
		limit, ratio, n := committed[w.name]*(1+w.loss), math.Inf(1), 0
		for n < guardAttempts && (n == 0 || ratio > limit) {
			if n > 0 && time.Now().After(deadline) && !*guardUpdate {
				t.Skipf("SKIPPED: %s: got %.3f after %d of %d attempts, and the machine is too busy for more within %v", w.name, ratio, n, guardAttempts, guardTime)
			}
			ratio = attempt()
			n++
		}
		t.Logf("%-24s %.3f, %.3f committed, %d attempts", w.name, ratio, committed[w.name], n)
		measured += fmt.Sprintf("%s %.3f\n", w.name, ratio)
		if ratio > limit && !*guardUpdate {
			t.Errorf("%s: got %.3f, want at most %.3f, which is the committed %.3f and %.0f %%",
				w.name, ratio, limit, committed[w.name], w.loss*100)
		}
	}
	if *guardUpdate {
		check.OK(t, os.WriteFile(ratiosFile, []byte(measured), 0o644))
	}
}

// A workload is measured for one and for the other, such as memstore and x/time/rate. open
// prepares both, and returns a function that continues to measure them and returns their
// ratio so far.
type workload struct {
	name string
	loss float64 // how much of the committed ratio may be lost
	open func() (attempt func() float64)
}

var workloads = []workload{
	{"one-key-allowed", mostKeyLoss, func() func() float64 { return takes(both(bottomless), one()) }},
	{"one-key-refused", mostKeyLoss, func() func() float64 { return takes(both(closed), one()) }},
	{"1e6-keys-uniform", mostLoss, func() func() float64 { return takes(filled(), uniform()) }},
	{"1e6-keys-zipf", mostLoss, func() func() float64 { return takes(filled(), zipf()) }},
	{"first-touch", mostLoss, firstTouches},
	{"request-admitted", mostRequestLoss, requests(oneZone)},
	{"request-refused", mostRequestLoss, requests(oneThatRefuses)},
	{"request-3-zones", mostRequestLoss, requests(threeZones)},
}

// both opens memstore and x/time/rate with a limit, and asks each once.
func both(l limit) (take [2]take) {
	take[0], take[1] = openMemstore(l).taker(), openXTime(l).taker()
	for _, take := range take {
		take(one().at(0))
	}
	return take
}

// filled opens both with a million buckets.
var filled = sync.OnceValue(func() [2]take {
	take := both(roomy)
	for _, take := range take {
		fill(take)
	}
	return take
})

// takes measures takes of keys in an order.
func takes(take [2]take, order *keys) func() float64 {
	const (
		rounds = 1000
		part   = 300
	)
	var next [2]int
	var took [2][]time.Duration
	return func() float64 {
		for range rounds {
			for i := range take {
				began := threadTime()
				for range part {
					take[i](order.at(next[i]))
					if next[i]++; next[i] == order.len() {
						next[i] = 0
					}
				}
				took[i] = append(took[i], threadTime()-began)
			}
		}
		return good(took[0]) / good(took[1])
	}
}

// good returns the first tenth of what parts took, which is what one takes if little
// interferes. The least of all would be that of a clock that was just set back.
func good(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)/10])
}

// firstTouches measures takes of new keys, in new stores, including their growth. Parts
// are compared with those at the same point of the growth.
func firstTouches() func() float64 {
	const (
		rounds = 11
		parts  = 200
		part   = 500
	)
	all := everyoneOnce()
	open := [2]func(limit) store{openMemstore, openXTime}
	var took [2][parts][]time.Duration
	return func() float64 {
		for range rounds {
			for i := range open {
				take := open[i](lasting).taker()
				for n := range parts {
					began := threadTime()
					for key := n * part; key < (n+1)*part; key++ {
						take(all.at(key))
					}
					took[i][n] = append(took[i][n], threadTime()-began)
				}
			}
			runtime.GC()
		}
		var sum [2]float64
		for i := range took {
			for n := range took[i] {
				sum[i] += good(took[i][n])
			}
		}
		return sum[0] / sum[1]
	}
}

// threadTime returns how long this thread has run.
func threadTime() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var now unix.Timespec
	must(unix.ClockGettime(id, &now))
	return time.Duration(now.Nano())
}

func readRatios(t *testing.T) map[string]float64 {
	t.Helper()
	file, err := os.Open(ratiosFile)
	if err != nil {
		if *guardUpdate {
			return nil
		}
		t.Fatal(err)
	}
	defer file.Close()
	ratios := make(map[string]float64)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if ratios[name], err = strconv.ParseFloat(text, 64); err != nil {
			t.Fatal(err)
		}
	}
	return ratios
}
