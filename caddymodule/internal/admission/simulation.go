package admission

import (
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// A Simulation is what would become of a request if a group of shadow zones were
// enforced beside those that are. It runs beside the request and never holds it up: the
// request waits for its delay in the zone with the longest, takes its slots when both
// its delay and the real admission are over, and holds them for as long as the real
// request is served; see virtualSlot for requests that take turns. A simulated wait may
// outlast the request.
//
// Whatever waits is a timer: there are at most as many as MaxWaiting allows, one for
// each slot that is held longer than the request lasts, and one for each request on
// which the upstream works after its client has left, at most mostUnseen of a key.
type Simulation struct {
	request
	tell func(Result)

	// The lock of the request guards these.
	delayed  *step         // whose delay it waits for; or nil
	delay    clock.Timer   // that ends it
	waits    time.Time     // since when it waits for a delay or a slot
	next     int           // the first of steps whose slot it has not got
	over     bool          // its admission
	told     bool          // the result
	open     bool          // the real admission is over
	began    time.Time     // when it was
	admitted time.Time     // when the simulated one was
	ended    bool          // the real request is over
	served   time.Duration // how long that took from then on
	fate     Fate
}

// A Fate is how the upstream's work on a request has ended.
type Fate uint8

const (
	// Answered means that the upstream has answered the request.
	Answered Fate = iota
	// ClientLeft means that the client has left before that. The upstream works on.
	ClientLeft
	// Failed means that the upstream has failed to answer, or never saw the request.
	Failed
)

// Saw says how the upstream's work has ended. It is called before Release.
func (s *Simulation) Saw(f Fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fate = max(s.fate, f)
}

// Simulate begins a simulation in the zones of entries, of which there is at least one.
// A delay counts from since. It calls done with the result exactly once: within Simulate,
// Begin or Release if the result is known then, otherwise later from another goroutine.
// Before Begin, done is called with a refusal only. In zones without slots Begin tells
// the delay before it is over. The function done must not block. Simulate keeps no
// reference to entries.
func Simulate(since time.Time, entries []Entry, done func(Result)) *Simulation {
	s := &Simulation{tell: done}
	s.setSteps(entries)
	s.mu.Lock()
	defer s.unlock()
	switch longest := s.longest(); {
	case longest.Delay <= 0:
	case longest.Zone.enter(&longest.Entry, ""):
		s.delayed, s.waits = longest, since
		s.delay = clock.AfterFunc(s.clock, since.Add(longest.Delay).Sub(s.now()), s.due)
	default:
		s.result.Index = longest.index
		s.finish(QueueFull)
	}
	return s
}

// Watch returns a simulation of a request that another zone of the group would refuse. In
// a zone where requests take turns, it tells that the upstream works on the request all
// the same.
func Watch(e Entry) *Simulation {
	s := &Simulation{over: true, told: true}
	s.setSteps([]Entry{e})
	return s
}

// Waited returns how long the request has waited in the zone of the entry with this
// index. It is known when the simulation has told its result.
func (s *Simulation) Waited(index int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.steps {
		if s.steps[i].index == index {
			return s.steps[i].Waited
		}
	}
	return 0
}

// Begin says that the enforced zones have admitted the request, and that it is
// served from now on.
func (s *Simulation) Begin() {
	s.mu.Lock()
	if s.open {
		s.mu.Unlock()
		return
	}
	s.open, s.began = true, s.now()
	slots := false
	for i := range s.steps {
		at := &s.steps[i]
		slots = slots || at.InFlight > 0
		if at.Turn != nil {
			at.virtual = new(virtualSlot)
			at.Zone.begin(&at.Entry, at.virtual)
		}
	}
	// While the delay lasts, nothing but the lack of a slot can refuse it.
	early := s.delayed
	if early == nil {
		s.takeSlots()
	} else if s.told = !slots; slots {
		early = nil
	}
	s.unlock()
	if early != nil {
		s.tell(Result{Why: Admitted, Waited: early.Delay})
	}
}

// due goes on after the delay.
func (s *Simulation) due() {
	s.mu.Lock()
	defer s.unlock()
	if s.delayed == nil {
		return // it has been released
	}
	s.undelay()
	if s.open {
		s.takeSlots()
	}
}

// undelay ends the wait for the delay. The caller holds the lock.
func (s *Simulation) undelay() {
	s.delayed.Zone.leave("")
	s.waited(s.delayed, s.waits)
	s.delayed = nil
}

// takeSlots takes the slots that are left, as far as they are free, and waits for the first
// that is not. The caller holds the lock.
func (s *Simulation) takeSlots() {
	for ; s.next < len(s.steps) && !s.over; s.next++ {
		why, c := s.take(s.next, s)
		if c != nil {
			s.waits = s.now()
			return
		}
		if why != Admitted {
			s.finish(why)
		}
	}
	if !s.over {
		s.finish(Admitted)
	}
}

// awake goes on after the wait for a slot.
func (s *Simulation) awake() {
	s.mu.Lock()
	defer s.unlock()
	at := &s.steps[s.next]
	s.waited(at, s.waits)
	if why := at.slot.why; why != Admitted {
		s.finish(why)
		return
	}
	s.next++
	s.takeSlots()
}

// unlock unlocks the simulation, and then tells the result, once it is known.
func (s *Simulation) unlock() {
	tell, result := s.over && !s.told, s.result
	s.told = s.told || tell
	s.mu.Unlock()
	if tell {
		s.tell(result)
	}
}

// Release says that the request is over, or that it has become a tunnel, which
// holds no slot. Release without Begin says that the request was refused or its
// client left, and ends the simulation. It may be called any number of times and
// by any goroutine.
func (s *Simulation) Release() {
	s.mu.Lock()
	defer s.unlock()
	if !s.open {
		if s.delayed != nil {
			s.delay.Stop()
			s.undelay()
		}
		if !s.over {
			s.finish(Left)
		}
		return
	}
	if s.ended {
		return
	}
	s.ended, s.served = true, s.now().Sub(s.began)
	for i := range s.steps {
		if s.steps[i].virtual != nil {
			s.endWork(i)
		}
	}
	if s.over {
		s.releaseAfter(s.admitted.Sub(s.began))
	}
}

// finish notes the result, and when the slots were taken, and arranges for their release if
// the request is over already. The caller holds the lock.
func (s *Simulation) finish(why Why) {
	s.over, s.unserved, s.result.Why, s.admitted = true, why != Admitted, why, s.now()
	if s.unserved {
		s.giveBack(func(*step) bool { return true })
		return
	}
	for i := range s.steps {
		if at := &s.steps[i]; at.virtual != nil && at.slot != nil {
			s.hold(i)
		}
	}
	if s.ended {
		s.releaseAfter(s.served)
	}
}

// releaseAfter gives back, after so long, the slots for which requests take no turns.
// Virtual slots are held for as long as they keep a worker busy.
func (s *Simulation) releaseAfter(d time.Duration) {
	plain := func(at *step) bool { return at.virtual == nil }
	switch {
	case !slices.ContainsFunc(s.steps, func(at step) bool { return at.slot != nil && plain(&at) }):
	case d <= 0:
		s.giveBack(plain)
	default:
		clock.AfterFunc(s.clock, d, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.giveBack(plain)
		})
	}
}

// A pace is how fast the upstream works on each of the requests of a key in shadow.
// Enforced slots would be as many as it has workers; in shadow it gets all requests,
// and the time that one takes is mostly that of the others.
type pace struct {
	running int
	unseen  int // of those: their clients have left
	at      time.Time
	done    time.Duration // of a worker, for each request that has been there all the time
	work    time.Duration // of all workers for what is seen, since a request has ended
}

// advance lets the time pass until now.
func (p *pace) advance(now time.Time, slots int) {
	passed := now.Sub(p.at)
	p.at = now
	if p.running > slots {
		passed = time.Duration(float64(passed) * float64(slots) / float64(p.running))
	}
	if p.running > 0 {
		p.done += passed
		p.work += passed * time.Duration(p.running-p.unseen)
	}
}

// recent are for how long requests have lately kept a worker busy.
type recent struct {
	kept  [64]time.Duration
	n     int // of those; at most all
	last  int // where the last one is
	drawn int // where the last one was drawn

	// Of all that were seen to end, with a weight that fades, in seconds: for how long
	// they kept a worker busy, and for how long workers were busy. As long as the
	// upstream's queue grows, the first is less: a part of the work has gone to those who
	// still wait.
	ended, work float64
}

// fades is the weight of a new request in the sums.
const fades = 1. / 256

// add notes that a request has ended, and what all workers have done since another did.
func (s *recent) add(kept, work time.Duration) {
	s.ended = s.ended*(1-fades) + kept.Seconds()
	s.work = s.work*(1-fades) + work.Seconds()
	s.last = (s.last + 1) % len(s.kept)
	s.kept[s.last] = kept
	s.n = min(s.n+1, len(s.kept))
}

// draw returns one after the other that is longer than that, twice that if there is
// none, and zero if nothing is known.
func (s *recent) draw(longer time.Duration) time.Duration {
	for range s.kept {
		s.drawn = (s.drawn + 1) % len(s.kept)
		if kept := s.kept[s.drawn]; kept > longer {
			return kept
		}
	}
	if s.n > 0 {
		return 2 * longer
	}
	return 0
}

// whole returns for how long workers are busy with a request that is seen to keep one
// busy for so long.
func (s *recent) whole(kept time.Duration) time.Duration {
	if s.ended == 0 {
		return kept
	}
	return time.Duration(float64(kept) * s.work / s.ended)
}

// A virtualSlot is that of a simulated request that takes turns. It is held for as
// long as the request keeps a worker busy, without the time that it waits for one
// behind others which enforcement would have kept out. How long that is, is known when
// the request has ended. While the upstream has more requests than workers, that may be
// long after the virtual slot should have been given to the next one. Then the request
// is taken for one as long as others were lately. So is one whose client has left.
type virtualSlot struct {
	key     *keyState     // while the upstream works on the request
	from    time.Duration // of the pace
	lasts   time.Duration // all its work, if that is unseen: its client has left
	ended   bool
	used    time.Duration // once it has ended
	guessed bool          // for how long the slot is held
}

// mostUnseen is for how many clients that have left the upstream works at most. More do
// not fit into its own queue: 511 is what php-fpm asks for, and 1,024 what Puma does.
const mostUnseen = 1024

// begin notes that the upstream works on a request from now on.
func (z *Zone) begin(e *Entry, v *virtualSlot) {
	z.mu.Lock()
	defer z.mu.Unlock()
	k := z.state(e.Key)
	k.limits = e.limits()
	k.pace.advance(z.Now(), k.limits.InFlight)
	k.pace.running++
	v.key, v.from = k, k.pace.done
}

// progress returns for how long a request has kept a worker busy by now.
func (z *Zone) progress(v *virtualSlot) time.Duration {
	v.key.pace.advance(z.Now(), v.key.limits.InFlight)
	return v.key.pace.done - v.from
}

// look returns when to look again whether the upstream is done with a request that is over,
// or zero if it is. It works on for one whose client has left: for as long as on others
// lately. If it has failed, or nobody has seen it, how long it took says nothing.
func (z *Zone) look(v *virtualSlot, fate Fate) (rest time.Duration) {
	z.mu.Lock()
	defer z.mu.Unlock()
	k, longer, mean := v.key, z.progress(v), z.mean.Duration()
	p, slots := &k.pace, k.limits.InFlight
	if fate == ClientLeft && v.lasts == 0 && p.unseen < mostUnseen {
		if v.lasts = z.recent.draw(longer); v.lasts == 0 {
			v.lasts = max(mean, longer, 1)
		}
		p.unseen++
		p.work = max(0, p.work-longer)
	}
	if rest = v.lasts - longer; rest > 0 {
		if p.running > slots {
			rest = time.Duration(float64(rest) * float64(p.running) / float64(slots))
		}
		if rest > mean {
			rest = max(mean, rest/2) // the pace may change
		}
		return max(time.Millisecond, rest)
	}
	v.ended, v.used, v.key = true, longer, nil
	p.running--
	switch {
	case v.lasts > 0:
		p.unseen--
	case fate == Failed:
		v.used = mean
	default:
		z.recent.add(longer, p.work)
		p.work = 0
	}
	z.forget(k)
	return 0
}

// guess returns for how long a request that has not ended is to hold its virtual slot,
// or zero for until it ends.
func (z *Zone) guess(v *virtualSlot) time.Duration {
	z.mu.Lock()
	defer z.mu.Unlock()
	longer := z.progress(v)
	switch {
	case v.key.pace.running <= v.key.limits.InFlight:
		return 0
	case v.lasts > 0:
		return z.recent.whole(v.lasts)
	default:
		return z.recent.whole(z.recent.draw(longer))
	}
}

// hold arranges for the release of the virtual slot of a step. The caller holds the lock,
// and the request its slot.
func (s *Simulation) hold(i int) {
	at := &s.steps[i]
	v := at.virtual
	length := v.used
	switch {
	case v.guessed:
		return
	case !v.ended:
		if length = at.Zone.guess(v); length == 0 {
			return
		}
		v.guessed = true
	}
	at.Turn.length = max(length, 1)
	clock.AfterFunc(s.clock, s.admitted.Add(length).Sub(s.now()), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.giveBack(func(of *step) bool { return of == at })
	})
}

// endWork looks whether the upstream is done with a step of the request, which is over,
// and again until it is. The caller holds the lock.
func (s *Simulation) endWork(i int) {
	at := &s.steps[i]
	first := at.virtual.lasts == 0
	rest := at.Zone.look(at.virtual, s.fate)
	if (first || rest == 0) && at.slot != nil && s.over { // else finished holds it
		s.hold(i)
	}
	if rest > 0 {
		clock.AfterFunc(s.clock, rest, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.endWork(i)
		})
	}
}
