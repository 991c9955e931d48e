package rule

import "time"

// Queue is how requests wait, for what was charged before them to leak or for a slot.
type Queue struct {
	Delay      *float64      // units that pass undelayed; nil means no delay
	MaxWait    time.Duration // zero means no bound for the bucket, and no wait for a slot
	MaxWaiting int
}

// LetsWait reports whether requests may wait in the zone.
func (q *Queue) LetsWait() bool { return q.Delay != nil || q.MaxWait > 0 }
