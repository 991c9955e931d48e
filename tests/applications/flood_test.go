package applications

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// paces is how many times a flood is measured before it counts as too much: another
// process of the machine may have slowed one of them down.
const paces = 3

// visitPolitely asks for a page four times a second, from four addresses in turn, and
// returns how long each answer took. Answers with another status than 200 fail the
// test.
func visitPolitely(s *system.Trial, target string, length time.Duration) []time.Duration {
	s.T.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var visits sync.WaitGroup
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for i := range int(length / (250 * time.Millisecond)) {
		<-tick.C
		visits.Go(func() {
			began := time.Now()
			a, err := s.Do(system.Request{Address: fmt.Sprintf("192.0.2.%d", 1+i%4), Target: target})
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
			if err != nil || a.Status != 200 {
				s.T.Errorf("a polite visitor: got %d and %v, want 200", a.Status, err)
			}
		})
	}
	visits.Wait()
	return took
}

// percentile returns the duration that so many percent of all do not exceed.
func percentile(all []time.Duration, percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

// floodWith sends requests from one address, eight at once, until stop is closed. A
// refused one waits for a tenth of a second. It counts the answers by status.
func floodWith(s *system.Trial, stop <-chan struct{}, each func(i int) system.Request) map[int]int {
	s.T.Helper()
	statuses := make(map[int]int)
	var mu sync.Mutex
	var senders sync.WaitGroup
	for sender := range 8 {
		senders.Go(func() {
			for i := sender; ; i += 8 {
				select {
				case <-stop:
					return
				default:
				}
				a, err := s.Do(each(i))
				mu.Lock()
				if err != nil {
					s.T.Errorf("request %d of the flood: %v", i, err)
				}
				statuses[a.Status]++
				mu.Unlock()
				if err == nil && a.Status < 400 {
					continue
				}
				select {
				case <-stop:
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	senders.Wait()
	return statuses
}

// checkFloods lets one client send each flood, and demands that the slowest pages of
// polite visitors take at most twice as long meanwhile as without it. Quiet and floods
// take turns, so that whatever else the machine does slows down both.
func checkFloods(t *testing.T, start func(*testing.T, ...string) *system.Trial, page string, floods map[string]func(i int) system.Request) {
	t.Helper()
	const turns, quietFor, floodFor = 8, 3 * time.Second, 5 * time.Second
	for name, each := range floods {
		t.Run(name, func(t *testing.T) {
			for range paces {
				s := start(t)
				visitPolitely(s, page, 2*time.Second) // so that caches are warm
				var quiet, flooded []time.Duration
				statuses := make(map[int]int)
				for range turns {
					quiet = append(quiet, visitPolitely(s, page, quietFor)...)
					stop := make(chan struct{})
					var flood sync.WaitGroup
					flood.Go(func() {
						for status, n := range floodWith(s, stop, each) {
							statuses[status] += n
						}
					})
					flooded = append(flooded, visitPolitely(s, page, floodFor)...)
					close(stop)
					flood.Wait()
				}
				was, is := percentile(quiet, 95), percentile(flooded, 95)
				t.Logf("polite p50/p95: %v/%v quiet, %v/%v in a flood of %v by status",
					percentile(quiet, 50).Round(time.Millisecond), was.Round(time.Millisecond),
					percentile(flooded, 50).Round(time.Millisecond), is.Round(time.Millisecond), statuses)
				if statuses[200] == 0 || statuses[429] == 0 {
					t.Errorf("got %v by status, want some through and some refused", statuses)
				}
				if is <= 2*was {
					return
				}
			}
			t.Errorf("got a p95 of more than twice the quiet one, %d times, want at most that", paces)
		})
	}
}
