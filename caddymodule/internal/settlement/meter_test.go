package settlement

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A naiveMeter charges every running request for every instant.
type naiveMeter struct {
	workers float64
	runs    []*Metered // as the meter under test has them
	charges []float64
}

func (n *naiveMeter) pass(d time.Duration) {
	running := 0
	for _, r := range n.runs {
		if r.running() {
			running++
		}
	}
	for i, r := range n.runs {
		if r.running() {
			n.charges[i] += d.Seconds() * min(1, n.workers/float64(running))
		}
	}
	time.Sleep(d)
}

func TestAMeterChargesAsANaiveOneDoes(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			var m Meter
			n := naiveMeter{workers: 1}
			var served float64 // worker seconds that there were to give
			for range 400 {
				d := time.Duration(random.ExpFloat64() * float64(time.Second))
				n.pass(d)
				served += d.Seconds() * n.workers
				if len(n.runs) == 0 || random.IntN(4) == 0 {
					workers := 1 + random.IntN(6) // as after a reload
					one := metered(&m, workers)
					n.runs = append(n.runs, &one)
					n.charges = append(n.charges, 0)
				}
				switch r := n.runs[random.IntN(len(n.runs))]; random.IntN(5) {
				case 0, 1:
					if !r.sent && !r.over {
						n.workers = float64(r.Rule.Workers)
					}
					r.begin()
				case 2:
					r.pause()
				case 3:
					if r.paused > 0 {
						r.resume()
					}
				default:
					r.end()
				}
			}
			sum := 0.0
			for i, r := range n.runs {
				r.end()
				got, _ := r.seconds()
				if math.Abs(got-n.charges[i]) > 1e-9*(1+n.charges[i]) {
					t.Errorf("seed %d, request %d: got %v, want %v", seed, i, got, n.charges[i])
				}
				sum += got
			}
			if sum > served*(1+1e-9) {
				t.Errorf("seed %d: got %v charged in all, want at most the workers' %v", seed, sum, served)
			}
			if m.Running() != 0 || m.share != 0 {
				t.Errorf("seed %d: got %d running and a share of %v, want none", seed, m.Running(), m.share)
			}
		})
	}
}

func TestRequestsShareTheWorkersOfAMeter(t *testing.T) {
	for _, test := range []struct {
		name     string
		workers  int
		requests int
		want     float64 // each, for ten seconds
	}{
		{"one request", 5, 1, 10},
		{"as many as workers", 5, 5, 10},
		{"twice as many", 5, 10, 5},
		{"one worker for all", 1, 8, 1.25},
	} {
		synctest.Test(t, func(t *testing.T) {
			var m Meter
			runs := make([]Metered, test.requests)
			for i := range runs {
				runs[i] = metered(&m, test.workers)
				runs[i].begin()
			}
			<-time.After(10 * time.Second)
			for i := range runs {
				runs[i].end()
				if got, sent := runs[i].seconds(); math.Abs(got-test.want) > 1e-9 || !sent {
					t.Errorf("%s: got %v, sent %v, want %v", test.name, got, sent, test.want)
				}
			}
		})
	}
}

// TestAMeterStandsConcurrency is for the race detector; the sum is checked as well.
func TestAMeterStandsConcurrency(t *testing.T) {
	var m Meter
	const workers = 3
	began := time.Now()
	var all sync.WaitGroup
	charges := make([]float64, 64)
	for i := range charges {
		all.Go(func() {
			for range 50 {
				r := metered(&m, workers)
				var body sync.WaitGroup
				body.Go(r.begin) // as a proxy that sends it while the answer comes
				for range 5 {
					r.pause()
					r.resume()
				}
				body.Wait()
				r.end()
				share, _ := r.seconds()
				charges[i] += share
			}
		})
	}
	all.Wait()
	sum, most := 0.0, workers*time.Since(began).Seconds()*(1+1e-9)
	for _, charge := range charges {
		sum += charge
	}
	if sum > most || m.Running() != 0 {
		t.Errorf("got %v charged and %d running, want at most %v and none", sum, m.Running(), most)
	}
}

func BenchmarkAMeter(b *testing.B) {
	var m Meter
	for i := range 1000 { // others
		r := metered(&m, i)
		r.begin()
	}
	b.ReportAllocs()
	for b.Loop() {
		r := metered(&m, 5)
		r.begin()
		r.pause()
		r.resume()
		r.end()
	}
}

// metered returns a rule for so many workers, and the meter.
func metered(m *Meter, workers int) Metered {
	return Metered{Rule: &Rule{Workers: workers}, Meter: m}
}
