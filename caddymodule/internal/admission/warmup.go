package admission

import (
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// A warmUp is how slots grow while the upstream's caches are cold. The zone's lock
// guards it.
type warmUp struct {
	lasts time.Duration // zero: slots are always as many as the config says
	began time.Time     // zero: never
	idle  time.Time     // since when the zone has no request; zero: it has had none
	timer clock.Timer   // at which there will be more slots for those who wait; or nil
	most  int           // slots of a key, when it was asked last
}

// SetWarmUp says for how long slots grow after the zone has had no request for as
// long. Zero means not at all.
func (z *Zone) SetWarmUp(lasts time.Duration) {
	z.mu.Lock()
	if z.warm.lasts == 0 && z.used {
		z.warm.idle = z.Now() // it may have had requests until now
	}
	z.warm.lasts = lasts
	z.mu.Unlock()
	z.wakeAll()
}

// coldStart begins a warm-up if the upstream is cold: the zone has had no request for
// long. It is called before the zone has the next one, and before its slots are counted.
func (z *Zone) coldStart() {
	w := &z.warm
	if w.lasts == 0 || len(z.keys) > 0 {
		return
	}
	if now := z.Now(); w.idle.IsZero() || now.Sub(w.idle) >= w.lasts {
		w.began = now
	}
}

// slots returns how many of n slots there are now, and notes n for grow.
func (z *Zone) slots(n int) int {
	w := &z.warm
	if w.lasts == 0 {
		return n
	}
	w.most = n
	passed := z.Now().Sub(w.began)
	if w.began.IsZero() || passed >= w.lasts {
		return n
	}
	third := (n + 2) / 3
	return third + int(float64(n-third)*float64(passed)/float64(w.lasts))
}

// grow arranges for those who wait to be looked at when there are more slots. The
// caller holds the zone's lock.
func (z *Zone) grow() {
	w := &z.warm
	if w.lasts == 0 || w.timer != nil {
		return
	}
	slots, third := z.slots(w.most), (w.most+2)/3
	if slots >= w.most {
		return
	}
	next := w.began.Add(time.Duration(float64(slots+1-third)/float64(w.most-third)*float64(w.lasts)) + time.Microsecond)
	w.timer = clock.AfterFunc(z.Clock, next.Sub(z.Now()), z.grown)
}

// grown lets those go on for whom there are slots now.
func (z *Zone) grown() {
	z.mu.Lock()
	z.warm.timer = nil
	if z.waiting > 0 {
		z.grow()
	}
	z.mu.Unlock()
	z.wakeAll()
}
