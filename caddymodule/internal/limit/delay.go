package limit

import (
	"cmp"
	"net/http"
	"slices"
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
	if !o.Zone.Places.Take(client, 1, int64(o.Zone.Delay.Queue)+1) { // as many as are free before it takes this one
		v.overrule(o)
		return false
	}
	defer o.Zone.Places.Give(client, 1)
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
