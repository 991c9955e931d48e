package admission

import "sync"

// An Order keeps requests from holding each other up: one that holds a slot of
// zone A and waits for one of B, and another that holds one of B and waits for
// one of A. Within one handler slots are taken in the order of the zones' names,
// but a handler within another takes its own later, whatever their names are.
//
// The order knows who waits now, by zone. It is therefore no larger than the
// square of the number of zones, and empty when nobody waits. The zero value is
// ready for use, and safe for concurrent use.
type Order struct {
	mu    sync.Mutex
	waits map[wait]int // how many requests
}

// A wait is that of requests that hold a slot of one zone for one of another.
type wait struct{ held, wanted *Zone }

// wait notes that a request that holds slots of some zones waits for one of
// another. If one of them might never come free because of that it returns it,
// and notes nothing.
func (o *Order) wait(held []*Zone, wanted *Zone) (conflict *Zone) {
	if len(held) == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, zone := range held {
		if o.reaches(wanted, zone, nil) {
			return zone
		}
	}
	for _, zone := range held {
		if o.waits == nil {
			o.waits = make(map[wait]int)
		}
		o.waits[wait{zone, wanted}]++
	}
	return nil
}

// reaches reports whether some who hold a slot of from wait for one of to, or
// for one that is held by some who do, and so on.
func (o *Order) reaches(from, to *Zone, seen map[*Zone]bool) bool {
	if from == to {
		return true
	}
	for w := range o.waits {
		if w.held != from || seen[w.wanted] {
			continue
		}
		if seen == nil {
			seen = make(map[*Zone]bool)
		}
		seen[w.wanted] = true
		if o.reaches(w.wanted, to, seen) {
			return true
		}
	}
	return false
}

// done notes that the request waits no longer.
func (o *Order) done(held []*Zone, wanted *Zone) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, zone := range held {
		w := wait{zone, wanted}
		if o.waits[w]--; o.waits[w] == 0 {
			delete(o.waits, w)
		}
	}
}
