package telemetry

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

const (
	// summaryEvery is how often a zone that refuses logs a summary.
	summaryEvery = time.Minute

	// blockLines is how many blocks in that time get a line each.
	blockLines = 10

	// mostRefusalLines is how many lines wait for a log that hangs. More are dropped.
	mostRefusalLines = 100
)

// A refusalLog logs that a zone refuses requests, or would in shadow. It writes a line
// when the zone begins to refuse. Then it writes at most one a minute, with the number
// of refused requests and of distinct keys. Lines and memory are bounded, however many requests are refused. A goroutine writes the lines, so a log
// that hangs delays no request.
type refusalLog struct {
	logger *zap.Logger
	lines  refusalLines
	group  func() string      // what the figures of shadow mean; nil if they are of enforcement
	begun  prometheus.Counter // blocks, in all

	count atomic.Int64    // since the last summary
	keys  sketch.Distinct // since then
	lasts atomic.Bool     // timer is not nil

	mu      sync.Mutex
	timer   *time.Timer // nil if nothing was refused lately
	since   time.Time
	blocked int // blocks since then

	writes Background[refusalLine]
}

// refusalLines are the messages of the log. Enforcement and shadow have different
// ones.
type refusalLines struct{ begins, summary, blocks string }

// A refusalLine waits to be written.
type refusalLine struct {
	message string
	fields  []zap.Field
}

func newRefusalLog(t *Zone, d decision.Decision) *refusalLog {
	l := &refusalLog{
		logger: t.Logger,
		lines:  refusalLines{"zone begins to refuse requests", "zone refused requests", "zone blocks a key"},
	}
	l.writes.Most = mostRefusalLines
	l.writes.Pass = func(line refusalLine) { l.logger.Info(line.message, line.fields...) }
	if d == decision.ShadowRefused {
		l.lines = refusalLines{"zone would begin to refuse requests", "zone would have refused requests", "zone would block a key"}
	}
	if t.reasons[d].Has(rule.Blocked) {
		l.begun = BlocksBegun.WithLabelValues(t.rule.Name, d.String())
	}
	return l
}

// note counts a refusal.
func (l *refusalLog) note(o *decision.Outcome) {
	l.keys.Add(o.RefusedKey())
	l.count.Add(1)
	// It is counted before, so tick, which looks in the other order, misses nothing.
	if !l.lasts.Load() {
		l.begin()
	}
	if o.Began {
		l.noteBlock(o)
	}
}

// begin logs that the zone begins to refuse, and starts the timer.
func (l *refusalLog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		l.since = time.Now()
		l.timer = time.AfterFunc(summaryEvery, l.tick)
		l.lasts.Store(true)
		l.write(l.lines.begins)
	}
}

// noteBlock counts and logs a block that began.
func (l *refusalLog) noteBlock(o *decision.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun == nil { // the zone is in shadow by a switch at run time
		l.begun = BlocksBegun.WithLabelValues(o.Zone.Name, decision.ShadowRefused.String())
	}
	l.begun.Inc()
	if l.blocked++; l.blocked <= blockLines {
		l.write(l.lines.blocks, zap.String("key", o.Key), zap.Float64("for_seconds", o.Block.Seconds()))
	}
}

// tick logs the summary of the last minute. If nothing was refused, it stops the
// timer.
func (l *refusalLog) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		return
	}
	if l.count.Load() == 0 {
		if l.lasts.Store(false); l.count.Load() == 0 {
			l.timer = nil
			return
		}
		l.lasts.Store(true) // a request was just refused
	}
	l.write(l.lines.summary, l.summary()...)
	l.timer.Reset(summaryEvery)
}

// flush queues a summary of the refusals since the last one. It returns a channel that
// is closed once everything is written, or nil if nothing is left to write.
func (l *refusalLog) flush() (written <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
		l.lasts.Store(false)
	}
	if l.count.Load() > 0 {
		l.write(l.lines.summary, l.summary()...)
	}
	return l.writes.rest()
}

// FlushLogs logs the refusals of all zones since their last summaries. It waits until
// they are written, at most a second.
func FlushLogs(zones []*Zone) {
	var logs []<-chan struct{}
	for _, z := range zones {
		for _, log := range z.refusals {
			if log != nil {
				logs = append(logs, log.flush())
			}
		}
	}
	enough := time.After(time.Second)
	for _, written := range logs {
		if written == nil {
			continue
		}
		select {
		case <-written:
		case <-enough:
			return
		}
	}
}

// write queues a line for writing.
func (l *refusalLog) write(message string, fields ...zap.Field) {
	l.writes.add(refusalLine{message, fields})
}

// summary returns the counts and resets them. It must be called with the lock held.
func (l *refusalLog) summary() []zap.Field {
	now := time.Now()
	fields := []zap.Field{
		zap.Int64("requests", l.count.Swap(0)),
		zap.Uint64("distinct_keys", l.keys.Estimate()),
		zap.Float64("within_seconds", now.Sub(l.since).Round(time.Second).Seconds()),
	}
	l.keys.Reset()
	if l.group != nil {
		fields = append(fields, zap.String("group", l.group()))
	}
	if l.blocked > 0 {
		fields = append(fields, zap.Int("blocks", l.blocked))
	}
	l.since, l.blocked = now, 0
	return fields
}
