package telemetry

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

const (
	// summaryEvery is how often a zone that refuses logs a summary.
	summaryEvery = time.Minute

	// blockLines is how many blocks in that time get a line each.
	blockLines = 10
)

// A refusalLog logs that a zone refuses requests, or would in shadow. It writes a line
// when the zone begins to refuse. Then it writes at most one a minute, with the number
// of refused requests and of distinct keys. Lines and memory are bounded, however many
// requests are refused.
type refusalLog struct {
	zone     *Zone
	decision decision.Decision
	begun    prometheus.Counter // blocks; nil if only a switch at run time lets the zone decide so

	count atomic.Int64    // since the last summary
	keys  sketch.Distinct // since then

	mu      sync.Mutex
	timer   *time.Timer // nil if nothing was refused lately
	since   time.Time
	blocked int // blocks since then
}

// note counts a refusal.
func (l *refusalLog) note(o *decision.Outcome) {
	l.keys.Add(o.Key)
	if l.count.Add(1) == 1 {
		l.begin()
	}
	if o.Began {
		l.noteBlock(o)
	}
}

// begin logs that the zone begins to refuse, and starts the timer, unless it runs.
func (l *refusalLog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		l.since = time.Now()
		l.timer = time.AfterFunc(summaryEvery, l.tick)
		l.write("zone begins to refuse requests", "zone would begin to refuse requests")
	}
}

// noteBlock counts and logs a block that began.
func (l *refusalLog) noteBlock(o *decision.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun == nil {
		l.begun = BlocksBegun.WithLabelValues(l.zone.rule.Name, l.decision.String())
	}
	l.begun.Inc()
	if l.blocked++; l.blocked <= blockLines {
		l.write("zone blocks a key", "zone would block a key", zap.String("key", o.Key), zap.Float64("for_seconds", o.Block.Seconds()))
	}
}

// tick logs the summary of the last minute. If nothing was refused, it ends the timer.
func (l *refusalLog) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && l.summarize() {
		l.timer.Reset(summaryEvery)
	} else {
		l.timer = nil
	}
}

// flush logs a summary of the refusals since the last one.
func (l *refusalLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.summarize()
}

// FlushLogs logs the refusals of zones since their last summaries. It waits until their
// lines are written, at most a second.
func FlushLogs(zones []*Zone, lines *Background[func()]) {
	for _, z := range zones {
		for _, log := range z.refusals {
			if log != nil {
				log.flush()
			}
		}
	}
	written := make(chan struct{})
	lines.add(func() { close(written) })
	select {
	case <-written:
	case <-time.After(time.Second):
	}
}

// write logs a message of enforcement, or one of shadow, in the background: a log that
// hangs delays no request.
func (l *refusalLog) write(enforced, shadow string, fields ...zap.Field) {
	message := enforced
	if l.decision == decision.ShadowRefused {
		message = shadow
	}
	if entry := l.zone.Logger.Check(zap.InfoLevel, message); entry != nil {
		l.zone.Lines.add(func() { entry.Write(fields...) })
	}
}

// summarize logs the counts, if there are any, and resets them. It must be called with the
// lock held.
func (l *refusalLog) summarize() (some bool) {
	requests, now := l.count.Swap(0), time.Now()
	if requests == 0 {
		return false
	}
	fields := []zap.Field{
		zap.Int64("requests", requests),
		zap.Uint64("distinct_keys", l.keys.Estimate()),
		zap.Float64("within_seconds", now.Sub(l.since).Round(time.Second).Seconds()),
	}
	l.keys.Reset()
	if l.blocked > 0 {
		fields = append(fields, zap.Int("blocks", l.blocked))
	}
	l.since, l.blocked = now, 0
	l.write("zone refused requests", "zone would have refused requests", fields...)
	return true
}
