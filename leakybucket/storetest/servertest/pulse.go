package servertest

import (
	"sync"
	"time"
)

// A Pulse knows for how long this process did not run, on a machine that does
// other things as well. A test of a deadline allows for as much.
type Pulse struct {
	mu   sync.Mutex
	beat time.Time
	late []lateness
}

type lateness struct {
	beat time.Time
	by   time.Duration
}

// StartPulse starts a pulse that beats until the process ends. Tests that count
// goroutines start it before.
func StartPulse() *Pulse {
	const often, worthNoting = 5 * time.Millisecond, time.Millisecond
	p := &Pulse{beat: time.Now()}
	go func() {
		for range time.Tick(often) {
			p.mu.Lock()
			now := time.Now()
			if late := now.Sub(p.beat) - often; late > worthNoting {
				p.late = append(p.late, lateness{now, late})
			}
			p.beat = now
			p.mu.Unlock()
		}
	}()
	return p
}

// Lost returns for how long nothing ran here since an instant, all in all.
func (p *Pulse) Lost(since time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	lost := time.Since(p.beat) // of which the pulse may not know yet
	for i := len(p.late) - 1; i >= 0 && p.late[i].beat.After(since); i-- {
		lost += p.late[i].by
	}
	return lost
}
