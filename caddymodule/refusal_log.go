package caddymodule

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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

	// refusalParts is in how many parts refusals are counted. Requests choose one at
	// random, so under attack they rarely wait for each other.
	refusalParts = 8
)

// A refusalLog logs that a zone refuses requests, or would in shadow. It writes a line
// when the zone begins to refuse. Then it writes at most one a minute, with the number
// of refused requests and of distinct keys, and the keys refused most. Lines and memory
// are bounded, however many requests are refused. A goroutine writes the lines, so a log
// that hangs delays no request.
type refusalLog struct {
	logger *zap.Logger
	lines  refusalLines
	group  func() string      // what the figures of shadow mean; nil if they are of enforcement
	begun  prometheus.Counter // blocks, in all

	parts [refusalParts]refusalPart
	keys  distinctKeys // of all parts; replaced with all of them locked
	lasts atomic.Bool  // timer is not nil

	mu      sync.Mutex  // taken before those of the parts
	timer   *time.Timer // nil if nothing was refused lately
	since   time.Time
	blocked int // blocks since then
	waiting []refusalLine
	written chan struct{} // closed when no line waits; nil if none does
}

// A refusalPart counts some of the refusals since the last summary.
type refusalPart struct {
	mu    sync.Mutex
	count int
	most  topk.Counter
	_     [64]byte // parts share no cache line
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
	key := o.RefusedKey()
	part := &l.parts[rand.Uint32()%refusalParts]
	part.mu.Lock()
	part.count++
	part.most.Add(key)
	l.keys.add(key)
	part.mu.Unlock()
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
		l.begun = blocksBegun.WithLabelValues(o.Rule.Name, decision.ShadowRefused.String())
	}
	l.begun.Inc()
	if l.blocked++; l.blocked <= blockLines {
		l.write(l.lines.blocks, zap.String("key", o.Key), zap.Float64("for_seconds", o.Block.Seconds()))
	}
}

// counted reports whether a refusal was counted since the last summary.
func (l *refusalLog) counted() bool {
	for i := range l.parts {
		part := &l.parts[i]
		part.mu.Lock()
		n := part.count
		part.mu.Unlock()
		if n > 0 {
			return true
		}
	}
	return false
}

// tick logs the summary of the last minute. If nothing was refused, it stops the
// timer.
func (l *refusalLog) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		return
	}
	if !l.counted() {
		if l.lasts.Store(false); !l.counted() {
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
	if l.counted() {
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
	count, keys, most := l.collect()
	fields := []zap.Field{
		zap.Int("requests", count),
		zap.Uint64("distinct_keys", keys),
		zap.Float64("within_seconds", now.Sub(l.since).Round(time.Second).Seconds()),
	}
	if len(most) > 0 {
		fields = append(fields, zap.Objects("most_refused", named(most)))
	}
	if l.group != nil {
		fields = append(fields, zap.String("group", l.group()))
	}
	if l.blocked > 0 {
		fields = append(fields, zap.Int("blocks", l.blocked))
	}
	l.since, l.blocked = now, 0
	return fields
}

// collect returns what all parts have counted, and the keys refused most, and begins
// anew.
func (l *refusalLog) collect() (count int, keys uint64, most []topk.Key) {
	for i := range l.parts {
		l.parts[i].mu.Lock()
	}
	defer func() {
		for i := range l.parts {
			l.parts[i].mu.Unlock()
		}
	}()
	sums := make(map[string]int)
	for i := range l.parts {
		part := &l.parts[i]
		for _, k := range part.most.Top(math.MaxInt) {
			sums[k.Key] += k.AtLeast
		}
		count += part.count
		part.count, part.most = 0, topk.Counter{}
	}
	for key, n := range sums {
		most = append(most, topk.Key{Key: key, AtLeast: n})
	}
	slices.SortFunc(most, func(a, b topk.Key) int {
		return cmp.Or(b.AtLeast-a.AtLeast, cmp.Compare(a.Key, b.Key))
	})
	keys = l.keys.estimate()
	l.keys.counter.Store(nil)
	return count, keys, most[:min(namedKeys, len(most))]
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
