package caddymodule

import (
	"time"

	"go.uber.org/zap/zapcore"
)

// placeholder answers {http.throttle.*}.
func (p *passage) placeholder(name string) (any, bool) {
	const prefix = "http.throttle."
	if len(name) <= len(prefix) || name[:len(prefix)] != prefix {
		return nil, false
	}
	o := p.decisive()
	switch name[len(prefix):] {
	case "zone":
		return o.zone.Name, true
	case "key":
		return o.key, true
	case "decision":
		return o.decision.String(), true
	case "reason":
		return o.reason.String(), true
	case "level":
		return o.levelNow(), true
	case "capacity":
		return o.limit.Capacity, true
	case "remaining":
		return o.limit.Remaining(o.levelNow()), true
	case "cost":
		return o.cost, true
	case "retry_after":
		return o.seconds(o.retryAfter()), true
	case "time_to_fit":
		return o.seconds(o.timeToFit()), true
	case "delay":
		return o.delay.Seconds(), true
	case "blocked":
		return p.blocked(""), true
	}
	return nil, false
}

// seconds is "" where there is nothing to wait for.
func (o *outcome) seconds(d time.Duration) any {
	if !o.waits() {
		return ""
	}
	return wholeSeconds(d)
}

// MarshalLogObject writes the access log's field: the deciding zone, and under
// zones all of them if there are several.
func (p *passage) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	if err := p.decisive().MarshalLogObject(enc); err != nil || len(p.outcomes) == 1 {
		return err
	}
	return enc.AddArray("zones", zapcore.ArrayMarshalerFunc(func(enc zapcore.ArrayEncoder) error {
		for i := range p.outcomes {
			if err := enc.AppendObject(&p.outcomes[i]); err != nil {
				return err
			}
		}
		return nil
	}))
}

// MarshalLogObject writes one zone's part of the access log's field.
func (o *outcome) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("zone", o.zone.Name)
	enc.AddString("decision", o.decision.String())
	if o.reason != none {
		enc.AddString("reason", o.reason.String())
	}
	if o.key != "" {
		enc.AddString("key", o.key)
	}
	if o.limit.Capacity > 0 {
		enc.AddFloat64("cost", o.cost)
		enc.AddFloat64("level", o.levelNow())
		enc.AddFloat64("capacity", o.limit.Capacity)
	}
	if o.delay > 0 {
		enc.AddFloat64("delay", o.delay.Seconds())
	}
	if o.block > 0 {
		enc.AddFloat64("blocked", o.block.Seconds())
	}
	if o.settled {
		enc.AddFloat64("settled", o.paid)
	}
	if o.waits() {
		enc.AddInt64("retry_after", wholeSeconds(o.retryAfter()))
	}
	return nil
}
