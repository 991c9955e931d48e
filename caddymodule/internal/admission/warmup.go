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
	defer z.mu.Unlock()
	if z.warm.lasts == 0 && z.used {
		z.warm.idle = z.Now() // it may have had requests until now
	}
	z.warm.lasts = lasts
	z.advanceAll()
}

// advanceAll is advance for all keys.
func (z *Zone) advanceAll() {
	for _, k := range z.keys {
		z.advance(k)
	}
}

// coldStart begins a warm-up if the upstream is cold: the zone has had no request for
// long. It is called before the zone has the next one, and before its slots are counted.
func (z *Zone) coldStart() {
	w := &z.warm
	if w.lasts == 0 || z.busy() {
		return
	}
	if now := z.Now(); w.idle.IsZero() || now.Sub(w.idle) >= w.lasts {
		w.began = now
	}
}

// rest notes that the zone has no request, if so.
func (z *Zone) rest() {
	if z.warm.lasts > 0 && !z.busy() {
		z.warm.idle = z.Now()
	}
}

// busy reports whether the zone has a request.
func (z *Zone) busy() bool { return len(z.keys)+z.all.Waiting > 0 }

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
	if w.lasts > 0 && w.timer == nil && z.slots(w.most) < w.most {
		w.timer = clock.AfterFunc(z.Clock, w.lasts/100, z.grown)
	}
}

// grown lets those go on for whom there are slots now.
func (z *Zone) grown() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.warm.timer = nil
	if z.all.Waiting > 0 {
		z.grow()
	}
	z.advanceAll()
}
