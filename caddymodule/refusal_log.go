package caddymodule

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/axiomhq/hyperloglog"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/topk"
)

const (
	// summaryEvery is how often a zone that refuses logs a summary.
	summaryEvery = time.Minute

	// blockLines is how many blocks in that time get a line each.
	blockLines = 10

	// namedKeys is how many of the most refused keys a summary names.
	namedKeys = 3

	// mostRefusalLines is how many lines wait for a log that hangs. More are dropped.
	mostRefusalLines = 100
)

// A refusalLog logs that a zone refuses requests, or would in shadow. It writes a line
// when the zone begins to refuse. Then it writes at most one a minute, with the number
// of refused requests and of distinct keys, and the keys refused most. Lines and memory
// are bounded, however many requests are refused. A goroutine writes the lines, so a log
// that hangs delays no request.
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
	most    topk.Counter
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

func newRefusalLog(z *runningZone, d decision.Decision) *refusalLog {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.Began {
		if l.begun == nil { // the zone is in shadow by a switch at run time
			l.begun = blocksBegun.WithLabelValues(o.Rule.Name, decision.ShadowRefused.String())
		}
		l.begun.Inc()
	}
	l.count++
	l.keys.InsertHash(maphash.String(l.seed, o.Key))
	l.most.Add(o.Key)
	if l.timer == nil {
		l.since = time.Now()
		l.timer = time.AfterFunc(summaryEvery, l.tick)
		l.write(l.lines.begins)
	}
	if o.Began {
		if l.blocked++; l.blocked <= blockLines {
			l.write(l.lines.blocks, zap.String("key", o.Key), zap.Float64("for_seconds", o.Block.Seconds()))
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

// flush queues a summary of the refusals since the last one. It returns a channel that
// is closed once everything is written, or nil if nothing is left to write.
func (l *refusalLog) flush() (written <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.count > 0 {
		l.write(l.lines.summary, l.summary()...)
	}
	return l.written
}

// flushLogs logs the refusals of all zones since their last summaries. It waits until
// they are written, at most a second.
func flushLogs(zones map[string]*runningZone) {
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
		zap.Float64("within_seconds", now.Sub(l.since).Round(time.Second).Seconds()),
	}
	if most := l.most.Top(namedKeys); len(most) > 0 {
		fields = append(fields, zap.Objects("most_refused", named(most)))
	}
	if l.blocked > 0 {
		fields = append(fields, zap.Int("blocks", l.blocked))
	}
	l.since, l.count, l.blocked, l.keys = now, 0, 0, hyperloglog.New()
	l.most = topk.Counter{}
	return fields
}

// A namedKey is a key in a summary. Requests is a lower bound, if many keys were
// refused.
type namedKey topk.Key

// MarshalLogObject implements zapcore.ObjectMarshaler.
func (k namedKey) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("key", k.Key)
	enc.AddInt("requests", k.AtLeast)
	return nil
}

func named(most []topk.Key) (keys []namedKey) {
	for _, k := range most {
		keys = append(keys, namedKey(k))
	}
	return keys
}
