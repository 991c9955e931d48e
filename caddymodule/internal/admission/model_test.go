package admission

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// An arrival is a request of a random trace.
type arrival struct {
	at      time.Duration // since the trace began
	key     string
	delay   time.Duration
	service time.Duration
	beside  time.Duration // how long enforced zones take to admit it
	leave   time.Duration // since its arrival; 0: never
}

// limits are those of a zone.
type limits struct {
	inFlight, maxWaiting int
	maxWait              time.Duration
}

func (a *arrival) entry(zone *Zone, l limits) Entry {
	return Entry{
		Zone: zone, Key: a.key, Delay: a.delay,
		InFlight: l.inFlight, MaxWait: l.maxWait, MaxWaiting: l.maxWaiting,
	}
}

// randomTrace is so dense that all results occur.
func randomTrace(random *rand.Rand) (trace []arrival, l limits) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) + 1 }
	l = limits{inFlight: random.IntN(4), maxWaiting: 1 + random.IntN(12)}
	if random.IntN(3) > 0 {
		l.maxWait = upTo(3 * time.Second)
	}
	delays := random.IntN(3) > 0 || l.inFlight == 0
	var at time.Duration
	for range 20 + random.IntN(100) {
		at += upTo(300 * time.Millisecond)
		a := arrival{at: at, key: fmt.Sprint(random.IntN(3)), service: upTo(time.Second)}
		if delays && random.IntN(4) > 0 {
			a.delay = upTo(2 * time.Second)
		}
		if random.IntN(6) == 0 {
			a.leave = upTo(2 * time.Second)
		}
		trace = append(trace, a)
	}
	return trace, l
}

// A model is the lifecycle of one zone written down as plainly as it can be: a
// list of events, and lists of waiting requests.
type model struct {
	limits
	trace   []arrival
	results []Result
	events  []event
	state   []stage
	since   []time.Duration // when the wait began
	served  map[string]int
	queued  map[string][]int
	waiting int
}

type event struct {
	at   time.Duration
	what int
	who  int
}

const (
	arrives = iota
	isDue
	passes // the enforced zones
	expires
	leaves
	ends
)

type stage int

const (
	absent stage = iota
	inDelay
	parked // before the enforced zones have admitted it
	inQueue
	inSlot
	gone
)

// run returns what becomes of the requests of a trace. Only a simulation has
// something beside it, and its requests leave only while that lasts.
func run(trace []arrival, l limits, simulated bool) []Result {
	n := len(trace)
	m := &model{
		limits: l, trace: slices.Clone(trace), results: make([]Result, n), state: make([]stage, n),
		since:  make([]time.Duration, n),
		served: map[string]int{}, queued: map[string][]int{},
	}
	for i, a := range trace {
		m.at(a.at, arrives, i)
		if simulated && a.beside > 0 {
			m.at(a.at+a.beside, passes, i)
		}
		if a.leave > 0 && (!simulated || a.leave < a.beside) {
			m.at(a.at+a.leave, leaves, i)
		}
	}
	for len(m.events) > 0 {
		e := m.events[0]
		m.events = m.events[1:]
		m.happens(e)
	}
	for i, a := range trace {
		r := &m.results[i]
		if simulated && l.inFlight == 0 && r.Why == Admitted && r.Waited > a.beside {
			r.Waited = a.delay // told before it is over
		}
	}
	return m.results
}

func (m *model) at(when time.Duration, what, who int) {
	m.events = append(m.events, event{when, what, who})
	slices.SortStableFunc(m.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
}

func (m *model) happens(e event) {
	i, a := e.who, &m.trace[e.who]
	switch e.what {
	case arrives:
		switch {
		case a.delay == 0:
			m.seek(i, e.at)
		case m.waiting >= m.maxWaiting:
			m.end(i, QueueFull)
		default:
			m.waiting++
			m.state[i], m.since[i] = inDelay, e.at
			m.at(e.at+a.delay, isDue, i)
		}
	case isDue:
		if m.state[i] == inDelay {
			m.stop(i, e.at)
			m.seek(i, e.at)
		}
	case passes:
		a.beside = 0
		if m.state[i] == parked {
			m.seek(i, e.at)
		}
	case expires:
		if m.state[i] == inQueue {
			m.leaveQueue(i, e.at)
			m.end(i, TimedOut)
		}
	case leaves:
		switch m.state[i] {
		case inDelay:
			m.stop(i, e.at)
		case inQueue:
			m.leaveQueue(i, e.at)
		case parked:
		default:
			return
		}
		m.end(i, Left)
	case ends:
		m.served[a.key]--
		if row := m.queued[a.key]; len(row) > 0 {
			m.leaveQueue(row[0], e.at)
			m.serve(row[0], e.at)
		}
	}
}

func (m *model) leaveQueue(i int, now time.Duration) {
	key := m.trace[i].key
	m.queued[key] = slices.DeleteFunc(slices.Clone(m.queued[key]), func(j int) bool { return i == j })
	m.stop(i, now)
}

// stop ends a wait.
func (m *model) stop(i int, now time.Duration) {
	m.waiting--
	m.results[i].Waited += now - m.since[i]
}

// seek lets a request seek a slot.
func (m *model) seek(i int, now time.Duration) {
	a := &m.trace[i]
	switch {
	case a.beside > 0:
		m.state[i] = parked
	case m.inFlight == 0:
		m.end(i, Admitted)
	case m.served[a.key] < m.inFlight && len(m.queued[a.key]) == 0:
		m.serve(i, now)
	case m.maxWait == 0:
		m.end(i, TooLong)
	case m.waiting >= m.maxWaiting:
		m.end(i, QueueFull)
	default:
		m.waiting++
		m.state[i], m.since[i] = inQueue, now
		m.queued[a.key] = append(m.queued[a.key], i)
		m.at(now+m.maxWait, expires, i)
	}
}

func (m *model) serve(i int, now time.Duration) {
	m.end(i, Admitted)
	m.served[m.trace[i].key]++
	m.at(now+m.trace[i].service, ends, i)
}

func (m *model) end(i int, why Why) { m.state[i], m.results[i].Why = gone, why }

// enforce sends a trace through an enforced zone.
func enforce(t *testing.T, trace []arrival, l limits) []Result {
	results := make([]Result, len(trace))
	synctest.Test(t, func(t *testing.T) {
		zone, gate, began := &Zone{Name: "z"}, new(Gate), time.Now()
		for i, a := range trace {
			time.Sleep(time.Until(began.Add(a.at)))
			ctx, cancel := context.WithCancel(context.Background())
			if a.leave > 0 {
				time.AfterFunc(a.leave, cancel)
			}
			go func() {
				var p *Grant
				p, results[i] = gate.Admit(ctx, time.Now(), []Entry{a.entry(zone, l)}, nil)
				if p != nil {
					time.Sleep(a.service)
					p.Release()
				}
				cancel()
			}()
			synctest.Wait()
		}
		pass(time.Hour)
		wantEmpty(t, zone)
	})
	return results
}

// simulate sends a trace past a shadow zone.
func simulate(t *testing.T, trace []arrival, l limits) []Result {
	results, told := make([]Result, len(trace)), make([]int, len(trace))
	synctest.Test(t, func(t *testing.T) {
		zone, began := &Zone{Name: "z"}, time.Now()
		for i, a := range trace {
			time.Sleep(time.Until(began.Add(a.at)))
			go func() {
				s := Simulate(time.Now(), []Entry{a.entry(zone, l)}, func(r Result) { results[i] = r; told[i]++ })
				if a.leave > 0 && a.leave < a.beside {
					time.Sleep(a.leave)
				} else {
					time.Sleep(a.beside)
					s.Begin()
					time.Sleep(a.service)
				}
				s.Release()
			}()
			synctest.Wait()
		}
		pass(time.Hour)
		wantEmpty(t, zone)
	})
	for i, n := range told {
		if n != 1 {
			t.Errorf("request %d: told %d results, want one", i, n)
		}
	}
	return results
}

// wantResults compares results but for the entry, of which there is one.
func wantResults(t *testing.T, seed uint64, what string, got, want []Result) {
	t.Helper()
	for i := range want {
		if got[i].Index = 0; got[i] != want[i] {
			t.Fatalf("seed %d, %s, request %d: got %v after %v, want %v after %v",
				seed, what, i, got[i].Why, got[i].Waited, want[i].Why, want[i].Waited)
		}
	}
}

func TestShadowRefusesAndDelaysWhatEnforcementDoes(t *testing.T) {
	seen := make(map[Why]int)
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		trace, l := randomTrace(random)
		want := run(trace, l, false)
		wantResults(t, seed, "enforced", enforce(t, trace, l), want)
		for _, r := range want {
			seen[r.Why]++
		}

		for i := range trace {
			trace[i].leave = 0
		}
		wantResults(t, seed, "shadow", simulate(t, trace, l), run(trace, l, true))
	}
	for _, why := range []Why{Admitted, QueueFull, TooLong, TimedOut, Left} {
		if seen[why] < 100 {
			t.Errorf("got %v only %d times, want more to test", why, seen[why])
		}
	}
}

// Requests are admitted some time after their shadow's decision, or not at all.
func TestShadowTakesItsSlotWhenEnforcementHasAdmitted(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		trace, l := randomTrace(random)
		for i := range trace {
			if random.IntN(3) > 0 {
				trace[i].beside = time.Duration(random.Int64N(int64(3 * time.Second)))
			}
		}
		wantResults(t, seed, "shadow", simulate(t, trace, l), run(trace, l, true))
	}
}

// An enforced zone delays; whether the slots behind it are enforced or in shadow
// makes no difference to who gets them.
func TestShadowSlotsBehindAnEnforcedDelayGoToTheSameRequests(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 3))
		trace, l := randomTrace(random)
		l.inFlight = max(1, l.inFlight)
		var want, got []Result
		for _, shadow := range []bool{false, true} {
			results := make([]Result, len(trace))
			synctest.Test(t, func(t *testing.T) {
				delays, slots, gate := &Zone{Name: "delays"}, &Zone{Name: "slots"}, new(Gate)
				for i, a := range trace {
					time.Sleep(a.delay / 7)
					go func() {
						since := time.Now()
						entries := []Entry{{Zone: delays, Key: a.key, Delay: a.delay, MaxWaiting: 1000}}
						slot := Entry{Zone: slots, Key: a.key, InFlight: l.inFlight, MaxWait: l.maxWait, MaxWaiting: l.maxWaiting}
						if shadow {
							s := Simulate(since, []Entry{slot}, func(r Result) { results[i] = r })
							defer s.Release()
							if p, _ := gate.Admit(context.Background(), since, entries, nil); p != nil {
								s.Begin()
								time.Sleep(a.service)
							}
							return
						}
						entries = append(entries, slot)
						p, r := gate.Admit(context.Background(), since, entries, nil)
						results[i] = Result{Why: r.Why, Waited: entries[1].Waited}
						if p != nil {
							time.Sleep(a.service)
							p.Release()
						}
					}()
					synctest.Wait()
				}
				pass(time.Hour)
				wantEmpty(t, delays, slots)
			})
			want, got = got, results
		}
		wantResults(t, seed, "shadow slots", got, want)
	}
}
