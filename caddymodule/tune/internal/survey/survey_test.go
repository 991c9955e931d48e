package survey

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// ladder is what most tests try, in units of cost a second.
var ladder = []float64{
	10. / 3600, 20. / 3600, 30. / 3600, 1. / 60, 2. / 60, 3. / 60, 5. / 60, 10. / 60,
	15. / 60, 20. / 60, 30. / 60, 1, 2, 5, 10, 20,
}

// A hit is a charge of a trace.
type hit struct {
	key  string
	at   leakybucket.Instant
	cost float64
}

// survey returns a survey of the trace.
func survey(t testing.TB, trace []hit, leaks []float64) *Survey {
	t.Helper()
	s := New(leaks)
	for _, c := range trace {
		s.Add(c.key, c.at, c.cost, -1)
	}
	return s
}

// replayed is what one limit refuses of a trace, by taking every charge from buckets.
func replayed(trace []hit, limit leakybucket.Limit) (p Point, refused map[string]bool) {
	p.Limit, refused = limit, make(map[string]bool)
	states := make(map[string]leakybucket.State)
	for _, c := range trace {
		next, d := limit.Take(states[c.key], c.cost, c.at)
		states[c.key] = next
		if !d.Fits {
			p.RefusedRequests++
			p.RefusedLoad += c.cost
			refused[c.key] = true
		}
	}
	p.RefusedKeys, p.RefusedPeople = len(refused), len(refused)
	return p, refused
}

// bruteForce returns the least whole capacity that leaves the share of the keys
// untouched, by replaying the trace with 1, 2, 3 and so on.
func bruteForce(trace []hit, leak, spare float64, counts func(string) bool) float64 {
	keys := make(map[string]bool)
	for _, c := range trace {
		if counts(c.key) {
			keys[c.key] = true
		}
	}
	for capacity := 1.; ; capacity++ {
		_, refused := replayed(trace, leakybucket.Limit{Capacity: capacity, Leak: leak})
		hit := 0
		for key := range refused {
			if keys[key] {
				hit++
			}
		}
		if float64(len(keys)-hit) >= spare*float64(len(keys))-1e-6 {
			return capacity
		}
	}
}

// mixed returns a trace of people, who come in page views, and scrapers.
func mixed(seed uint64, people, scrapers int, cost func(*rand.Rand) float64) []hit {
	random := rand.New(rand.NewPCG(seed, 1))
	var trace []hit
	add := func(key string, seconds float64) {
		trace = append(trace, hit{key, leakybucket.Instant(1.7e15 + seconds*1e6), cost(random)})
	}
	for p := range people {
		at := random.Float64() * 3600
		for range 1 + random.IntN(6) {
			for range 1 + random.IntN(4) {
				add("person"+strconv.Itoa(p), at+random.Float64())
			}
			at += random.ExpFloat64() * 40
		}
	}
	for p := range scrapers {
		at, every := random.Float64()*1000, 0.2+random.Float64()*3
		for range 150 {
			add("scraper"+strconv.Itoa(p), at)
			at += every
		}
	}
	slices.SortStableFunc(trace, func(a, b hit) int { return int(a.at - b.at) })
	return trace
}

func one(*rand.Rand) float64 { return 1 }

// TestCurveFindsTheCapacityThatBruteForceFinds replays generated traces for every
// capacity: the curve must agree to the unit, and count the same refusals.
func TestCurveFindsTheCapacityThatBruteForceFinds(t *testing.T) {
	costs := map[string]func(*rand.Rand) float64{
		"one":       one,
		"fractions": func(r *rand.Rand) float64 { return r.Float64() * 3 },
		"some zero": func(r *rand.Rand) float64 { return float64(r.IntN(3)) },
		"tenths":    func(r *rand.Rand) float64 { return float64(1+r.IntN(20)) / 10 },
	}
	everybody := func(string) bool { return true }
	people := func(key string) bool { return key[0] == 'p' }
	for name, cost := range costs {
		for seed := range uint64(2) {
			trace := mixed(seed, 60, 4, cost)
			rand.Shuffle(len(trace), func(i, j int) { trace[i], trace[j] = trace[j], trace[i] })
			s := survey(t, trace, []float64{1. / 60, 0.2, 1, 5})
			slices.SortStableFunc(trace, func(a, b hit) int { return int(a.at - b.at) })
			for _, spare := range []float64{0, 0.5, 0.95, 0.999, 1} {
				for who, counts := range map[string]func(string) bool{"everybody": everybody, "people": people} {
					s.Weights = nil
					for id := range s.Keys {
						s.Weights = append(s.Weights, map[bool]float64{true: 1}[counts(s.Name(id))])
					}
					points := s.Curve(spare, 1)
					for i, got := range points {
						if want := bruteForce(trace, s.leaks[i], spare, counts); got.Capacity != want {
							t.Errorf("costs %s, seed %d, spare %v of %s, leak %v: got capacity %v, want %v", name, seed, spare, who, got.Leak, got.Capacity, want)
						}
						want, refused := replayed(trace, got.Limit)
						maps.DeleteFunc(refused, func(key string, _ bool) bool { return !counts(key) })
						want.RefusedPeople = len(refused)
						if math.Abs(got.RefusedLoad-want.RefusedLoad) > 1e-6 {
							t.Errorf("costs %s, %v: got refused load %v, want %v", name, got.Limit, got.RefusedLoad, want.RefusedLoad)
						}
						got.RefusedLoad, want.RefusedLoad = 0, 0
						if got != want {
							t.Errorf("costs %s, seed %d, spare %v of %s: got %+v, want %+v", name, seed, spare, who, got, want)
						}
					}
				}
			}
		}
	}
}

// TestPeakIsExactlyTheCapacityThatAKeyNeeds checks each key alone: with its peak it is
// never refused, and with a little less it is.
func TestPeakIsExactlyTheCapacityThatAKeyNeeds(t *testing.T) {
	trace := mixed(7, 50, 5, func(r *rand.Rand) float64 { return 0.1 + r.Float64() })
	s := survey(t, trace, ladder)
	for i, leak := range s.leaks {
		rung := s.Rung(i)
		for id := range s.Keys {
			var own []hit
			for _, c := range trace {
				if c.key == s.Name(id) {
					own = append(own, c)
				}
			}
			peak := rung.Peak(id)
			if p, _ := replayed(own, leakybucket.Limit{Capacity: peak, Leak: leak}); p.RefusedRequests != 0 {
				t.Errorf("key %s, leak %v: got %d refused with a capacity of its peak %v, want 0", s.Name(id), leak, p.RefusedRequests, peak)
			}
			if p, _ := replayed(own, leakybucket.Limit{Capacity: peak * (1 - 1e-6), Leak: leak}); p.RefusedRequests == 0 {
				t.Errorf("key %s, leak %v: got none refused below its peak %v, want some", s.Name(id), leak, peak)
			}
		}
	}
}

// TestRefusalsAreThoseThatTheCurveCounts finds each of them again, those of a key in order.
func TestRefusalsAreThoseThatTheCurveCounts(t *testing.T) {
	s := survey(t, mixed(3, 60, 4, one), ladder)
	points := s.Curve(0.9, 1)
	all := 0
	for i, p := range points {
		all += p.RefusedRequests
		last, n := make(map[int]leakybucket.Instant), 0
		rung := s.Rung(i)
		rung.Refusals(p.Capacity, func(id int, at leakybucket.Instant, cost float64) {
			if at < last[id] {
				t.Errorf("leak %v: got a refusal of key %d at %v after one at %v", p.Leak, id, at, last[id])
			}
			last[id], n = at, n+1
		})
		if len(last) != p.RefusedKeys || n != p.RefusedRequests {
			t.Errorf("leak %v: got %d refusals of %d keys, want %d of %d", p.Leak, n, len(last), p.RefusedRequests, p.RefusedKeys)
		}
	}
	if all == 0 {
		t.Error("got no refusals at all, want some")
	}
}

// TestViewsAreSurveysOfTheirCharges: of those before an instant, and of the seconds that
// requests took.
func TestViewsAreSurveysOfTheirCharges(t *testing.T) {
	trace := mixed(5, 30, 3, one)
	end := trace[len(trace)/2].at
	whole, first, timed := survey(t, trace, ladder), survey(t, trace[:len(trace)/2], ladder), New(ladder)
	var work []hit
	for i, c := range trace {
		took := time.Duration(i%7-1) * 300 * time.Millisecond
		timed.Add(c.key, c.at, 1, took)
		if took >= 0 {
			work = append(work, hit{c.key, c.at, took.Seconds()})
		}
	}
	for len(trace) > 0 && trace[len(trace)/2-1].at == end {
		t.Fatal("want a cut between two instants")
	}
	until := whole.Until(end)
	seconds := timed.Seconds(ladder)
	for name, c := range map[string]struct{ view, want *Survey }{"until": {until, first}, "seconds": {seconds, survey(t, work, ladder)}} {
		got := c.view.Curve(0.9, 1)
		want := c.want.Curve(0.9, 1)
		if !slices.Equal(got, want) || c.view.Keys != c.want.Keys || c.view.Requests != c.want.Requests || math.Abs(c.view.Load-c.want.Load) > 1e-6 {
			t.Errorf("%s: got %+v of %d keys, want %+v of %d", name, got, c.view.Keys, want, c.want.Keys)
		}
	}
}

// TestRequestsAtOnceAreCountedInTheOrderOfTime, whatever the order of the log.
func TestRequestsAtOnceAreCountedInTheOrderOfTime(t *testing.T) {
	s := New(ladder)
	for _, c := range []struct {
		key  string
		at   leakybucket.Instant
		took time.Duration
	}{
		{"a", 9e6, time.Second},
		{"a", 1e6, 5 * time.Second},
		{"b", 4e6, time.Second},
		{"a", 2e6, 2 * time.Second},
		{"a", 6e6, time.Second},
		{"c", 5e6, -1},
		{"b", 5e6, 0},
		{"b", 4.5e6, time.Second},
	} {
		s.Add(c.key, c.at, 1, c.took)
	}
	if most, all := s.AtOnce(); !slices.Equal(most, []int{2, 2, 0}) || all != 3 {
		t.Errorf("got %v of each key, %d of all, want 2, 2 and 0, and 3 of all", most, all)
	}
}

func TestAnEmptySurveyRecommendsTheLeastCapacity(t *testing.T) {
	points := survey(t, nil, ladder).Curve(0.999, 1)
	for _, p := range points {
		if p.Capacity != 1 || p.RefusedKeys != 0 {
			t.Errorf("got %+v, want capacity 1 and nobody refused", p)
		}
	}
}

// TestChargesComeBackInTheOrderOfTime records the later half first.
func TestChargesComeBackInTheOrderOfTime(t *testing.T) {
	const n, keys = 10_000, 100
	s := New([]float64{1})
	for i := range n {
		s.Add("key"+strconv.Itoa(i%keys), leakybucket.Instant((i+n/2)%n)*1000, 1.5, time.Duration(i-1))
	}
	took := time.Duration(0)
	for id := range keys {
		last := leakybucket.Instant(-1)
		for _, c := range s.charges(id) {
			if c.at <= last || c.cost != 1.5 || c.took < -1 {
				t.Fatalf("got %+v after one at %v", c, last)
			}
			last, took = c.at, took+c.took
		}
	}
	if want := time.Duration(n*(n-1)/2 - n); took != want {
		t.Errorf("got %v taken in all, want %v", took, want)
	}
	points := s.Curve(0, 1)
	// Each key charges 1.5 every 100 ms, so a capacity of 1 admits nothing.
	if want := (Point{Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, RefusedKeys: keys, RefusedPeople: keys, RefusedRequests: n, RefusedLoad: 1.5 * n}); points[0] != want {
		t.Errorf("got %+v, want %+v", points[0], want)
	}
}

// heap returns how many bytes are in use.
func heap() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// TestAChargeTakesFewBytes of memory, and a key not many more.
func TestAChargeTakesFewBytes(t *testing.T) {
	const keys, each = 20_000, 50
	s := New(ladder)
	empty := heap()
	for i := range keys {
		s.Add("198.51.100."+strconv.Itoa(i), leakybucket.Instant(1.7e15+1e4*i), 1, -1)
	}
	first := heap() - empty
	for i := range keys * each {
		s.Add("198.51.100."+strconv.Itoa(i%keys), leakybucket.Instant(1.7e15+1e4*(i+keys)), 1, time.Duration(i)*1000)
	}
	all := heap() - empty
	if got := (all - first) / (keys * each); got > 17 || first/keys > 200 {
		t.Errorf("got %d bytes for a charge and %d for a key, want about 15 and 150", got, first/keys)
	}
	runtime.KeepAlive(s)
}

// FuzzCurve makes traces of arbitrary bytes, and holds the curve to brute force.
func FuzzCurve(f *testing.F) {
	f.Add([]byte{0, 0, 4, 1, 10, 4, 0, 255, 8, 2, 1, 1}, uint8(50), uint8(3))
	f.Add([]byte{5, 0, 0, 5, 0, 0, 5, 1, 4}, uint8(100), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, spare, leak uint8) {
		if len(data) > 90 {
			return
		}
		var trace []hit
		at := leakybucket.Instant(1e15)
		for ; len(data) >= 3; data = data[3:] {
			at += leakybucket.Instant(data[1]) * leakybucket.Instant(data[1]) * 1e3
			trace = append(trace, hit{"key" + strconv.Itoa(int(data[0]%8)), at, float64(data[2]) / 4})
		}
		share, rate := float64(spare%101)/100, float64(1+leak)/16
		s := survey(t, trace, []float64{rate})
		points := s.Curve(share, 1)
		got := points[0]
		if want := bruteForce(trace, rate, share, func(string) bool { return true }); got.Capacity != want {
			t.Fatalf("got capacity %v, want %v", got.Capacity, want)
		}
		if want, _ := replayed(trace, got.Limit); got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	for _, keys := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprintf("198.51.%d.%d", i/256, i%256)
			}
			s := New(ladder)
			random := rand.New(rand.NewPCG(1, 2))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Add(names[random.IntN(keys)], leakybucket.Instant(i)*1000, 1, -1)
			}
		})
	}
}

func ExampleSurvey() {
	s := New([]float64{1}) // one unit a second
	for client, requests := range map[string]int{"203.0.113.7": 4, "203.0.113.8": 6, "203.0.113.9": 50} {
		for i := range requests {
			s.Add(client, leakybucket.Instant(i)*500_000, 1, -1)
		}
	}
	p := s.Curve(0.66, 1)[0] // leave two of the three clients untouched
	fmt.Printf("capacity %v refuses %d client and %d of %d requests\n", p.Capacity, p.RefusedKeys, p.RefusedRequests, s.Requests)
	// Output: capacity 4 refuses 1 client and 22 of 60 requests
}
