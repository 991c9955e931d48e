package caddymodule

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/axiomhq/hyperloglog"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
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
// of refused requests and of distinct keys. Lines and memory are bounded, however many
// requests are refused. A goroutine writes the lines, so a log that hangs delays no
// request.
type refusalLog struct {
	logger *zap.Logger
	lines  refusalLines
	begun  prometheus.Counter // blocks, in all
	seed   maphash.Seed

	mu      sync.Mutex
	timer   *time.Timer // nil if nothing was refused lately
	since   time.Time
	count   int
	keys    *hyperloglog.Sketch
	blocked int // blocks since then
	waiting []refusalLine
	written chan struct{} // closed when no line waits; nil if none does
}

// refusalLines are the messages of the log. Enforcement and shadow have different
// ones.
type refusalLines struct{ begins, summary, blocks string }

// A refusalLine waits to be written.
type refusalLine struct {
	message string
	fields  []zap.Field
}

func newRefusalLog(z *zone, d decision.Decision) *refusalLog {
	l := &refusalLog{
		logger: z.logger,
		lines:  refusalLines{"zone begins to refuse requests", "zone refused requests", "zone blocks a key"},
		seed:   maphash.MakeSeed(),
		keys:   hyperloglog.New(),
	}
	if d == decision.ShadowRefused {
		l.lines = refusalLines{"zone would begin to refuse requests", "zone would have refused requests", "zone would block a key"}
	}
	if z.mayCount(d, decision.Blocked) {
		l.begun = blocksBegun.WithLabelValues(z.Name, d.String())
	}
	return l
}

// note counts a refusal.
func (l *refusalLog) note(o *decision.Outcome) {
	if o.Began {
		l.begun.Inc()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	l.keys.InsertHash(maphash.String(l.seed, o.Key))
	if l.timer == nil {
		l.since = time.Now()
		l.timer = time.AfterFunc(summaryEvery, l.tick)
		l.write(l.lines.begins)
	}
	if o.Began {
		if l.blocked++; l.blocked <= blockLines {
			l.write(l.lines.blocks, zap.String("key", o.Key), zap.Duration("for", o.Block))
		}
	}
}

// tick logs the summary of the last minute. If nothing was refused, it stops the
// timer.
func (l *refusalLog) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.timer == nil:
	case l.count == 0:
		l.timer = nil
	default:
		l.write(l.lines.summary, l.summary()...)
		l.timer.Reset(summaryEvery)
	}
}

// flush logs the refusals since the last summary at once. It waits until that is
// written, at most a second.
func (l *refusalLog) flush() {
	l.mu.Lock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.count > 0 {
		l.write(l.lines.summary, l.summary()...)
	}
	written := l.written
	l.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-time.After(time.Second):
	}
}

// write queues a line for writing. It must be called with the lock held.
func (l *refusalLog) write(message string, fields ...zap.Field) {
	if len(l.waiting) < mostRefusalLines {
		l.waiting = append(l.waiting, refusalLine{message, fields})
	}
	if l.written == nil {
		l.written = make(chan struct{})
		go l.writeAll()
	}
}

// writeAll writes the queued lines, and ends when there are none left.
func (l *refusalLog) writeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) > 0 {
		lines := l.waiting
		l.waiting = nil
		l.mu.Unlock()
		for _, line := range lines {
			l.logger.Info(line.message, line.fields...)
		}
		l.mu.Lock()
	}
	close(l.written)
	l.written = nil
}

// summary returns the counts and resets them. It must be called with the lock held.
func (l *refusalLog) summary() []zap.Field {
	now := time.Now()
	fields := []zap.Field{
		zap.Int("requests", l.count),
		zap.Uint64("distinct_keys", l.keys.Estimate()),
		zap.Duration("within", now.Sub(l.since).Round(time.Second)),
	}
	if l.blocked > 0 {
		fields = append(fields, zap.Int("blocks", l.blocked))
	}
	l.since, l.count, l.blocked, l.keys = now, 0, 0, hyperloglog.New()
	return fields
}
