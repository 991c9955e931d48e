package admission

import "time"

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
	k, longer, mean := v.key, z.progress(v), z.all.Mean.Duration()
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
