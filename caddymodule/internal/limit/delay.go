package limit

import (
	"context"
	"sync/atomic"
	"time"
)

// Places are those of the requests that wait for their delay in a zone. They outlive configs:
// each request brings how many there may be. The zero value is ready for use.
type Places struct{ taken atomic.Int64 }

// Taken returns how many requests wait.
func (p *Places) Taken() int { return int(p.taken.Load()) }

// take takes a place, if fewer than most are taken.
func (p *Places) take(most int) bool {
	if p.taken.Add(1) <= int64(most) {
		return true
	}
	p.leave()
	return false
}

func (p *Places) leave() { p.taken.Add(-1) }

// Wait lets a request that was admitted wait until its delay is over, in the zone with the
// longest one. It returns false if the client leaves meanwhile, or if the verdict tells now
// that the request is refused: the places are taken, or the process is about to end. Then
// [Verdict.GiveBack] is due.
func (v *Verdict) Wait(client context.Context, exiting <-chan struct{}) bool {
	o := v.delayed()
	if o == nil {
		return true
	}
	if !o.Zone.Places.take(o.Zone.MaxWaiting) {
		v.overrule(o)
		return false
	}
	defer o.Zone.Places.leave()
	timer := time.NewTimer(o.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-client.Done():
	case <-exiting:
		o.exiting = true
		v.overrule(o)
	}
	return false
}

// delayed returns the enforced outcome with the longest delay, or nil if there is none.
func (v *Verdict) delayed() (longest *Outcome) {
	for i := range v.Outcomes {
		if o := &v.Outcomes[i]; o.decision == Delayed && (longest == nil || o.Delay > longest.Delay) {
			longest = o
		}
	}
	return longest
}

// overrule turns an outcome that was delayed into a refusal. The others are withdrawn.
func (v *Verdict) overrule(o *Outcome) {
	for i := range v.Outcomes {
		if other := &v.Outcomes[i]; other.reason == None {
			other.decision = Withdrawn
		}
	}
	o.Refuse(QueueFull)
}
