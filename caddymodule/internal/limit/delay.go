package limit

import (
	"cmp"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// Delay queues requests instead of passing a burst at once: each waits until what was
// charged before it has leaked.
type Delay struct {
	// How many units pass undelayed. Default: 0, so that requests reach the upstream evenly.
	Undelayed float64 `json:"undelayed,omitempty"`

	// The longest wait. A request that would have to wait longer is refused. Default: as
	// long as the limit allows.
	Wait caddy.Duration `json:"wait,omitempty"`

	// How many requests of the zone may wait at once on this node. More are refused. No client,
	// which is an IPv4 address or an IPv6 /48, may hold more of these places than are still free, so
	// that nobody fills the queue alone. Default: 1000. A waiting request uses memory.
	Queue int `json:"queue,omitempty"`
}

// check checks the queue of delayed requests. It comes after the costs and settle.
func (d *Delay) check(z *Zone) error {
	if d == nil {
		return nil
	}
	least := 0.0
	if costs := z.constants(); len(costs) > 0 {
		least = slices.Min(costs)
	}
	return cmp.Or(
		option.Within("delay wait", time.Duration(d.Wait), 0, option.Longest),
		option.Within("delay queue", d.Queue, 1, option.MostAtOnce),
		option.Refuse("delay", !(d.Undelayed >= 0), "invalid delay %v: want a number of units that pass undelayed, or nothing", d.Undelayed),
		option.Refuse("delay", z.Settle != nil && z.Settle.After, "delay and settle ... after exclude each other: a request that reserves nothing has no place in the queue"),
		option.Refuse("delay", d.Undelayed+least >= z.Limit.Capacity, "delay %v delays nothing: every request that fits a capacity of %v passes undelayed; want a larger capacity, since the queue is part of it", d.Undelayed, z.Limit.Capacity),
	)
}

// Places are those of the requests that wait for their delay in a zone. They outlive configs:
// each request brings how many there may be. No client gets one that holds as many as are still
// free. The zero value is ready for use.
type Places struct {
	mu      sync.Mutex
	taken   int
	clients map[netip.Prefix]int
}

// Taken returns how many requests wait.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// take takes a place of so many for a client, unless it gets none.
func (p *Places) take(client netip.Prefix, of int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[client] >= of-p.taken {
		return false
	}
	if p.clients == nil {
		p.clients = make(map[netip.Prefix]int)
	}
	p.clients[client]++
	p.taken++
	return true
}

func (p *Places) give(client netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.clients[client]--; p.clients[client] == 0 {
		delete(p.clients, client)
	}
}

// Wait lets a request that was admitted wait until its delay is over, in the zone with the
// longest one. It returns false if the client leaves meanwhile, or if the verdict tells now
// that the request is refused: it gets no place, or the process is about to end. Then
// [Verdict.GiveBack] is due.
func (v *Verdict) Wait(r *http.Request, exiting <-chan struct{}) bool {
	var o *Outcome // with the longest delay
	for one := range v.all {
		if one.decision == Delayed && (o == nil || one.Delay > o.Delay) {
			o = one
		}
	}
	if o == nil {
		return true
	}
	client := bucketkey.ClientPrefix(AddressOf(r), 32, 48)
	if !o.Zone.Places.take(client, o.Zone.Delay.Queue) {
		v.overrule(o)
		return false
	}
	defer o.Zone.Places.give(client)
	timer := time.NewTimer(o.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-record.Find(r.Context()).ClientOf(r).Done():
	case <-exiting:
		o.exiting = true
		v.overrule(o)
	}
	return false
}

// overrule turns an outcome that was delayed into a refusal. The others are skipped.
func (v *Verdict) overrule(o *Outcome) {
	for i := range v.Outcomes {
		if other := &v.Outcomes[i]; other.reason == None {
			other.decision = Skipped
		}
	}
	o.Refuse(QueueFull)
	v.refused, v.overflows = true, true
}
