package pgstore

import (
	"sync"
	"time"
)

// A pulse knows for how long this process did not run, on a machine that does
// other things as well: what is late by that is late by no fault of the store's.
type pulse struct {
	mu   sync.Mutex
	beat time.Time
	gaps []gap
}

type gap struct {
	end  time.Time
	time time.Duration
}

var heart pulse

func init() { heart.run() } // before any test counts goroutines

// lost returns the longest time since began in which nothing ran here.
func (p *pulse) lost(began time.Time) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.gaps {
		if g.end.After(began) {
			longest = max(longest, g.time)
		}
	}
	return max(longest, time.Since(p.beat)) // of which the pulse may not know yet
}

// run keeps the pulse until the tests end.
func (p *pulse) run() {
	const often, worthNoting = 5 * time.Millisecond, 50 * time.Millisecond
	p.mu.Lock()
	p.beat = time.Now()
	p.mu.Unlock()
	go func() {
		for range time.Tick(often) {
			p.mu.Lock()
			now := time.Now()
			if lost := now.Sub(p.beat); lost > worthNoting {
				p.gaps = append(p.gaps, gap{now, lost})
			}
			p.beat = now
			p.mu.Unlock()
		}
	}()
}
