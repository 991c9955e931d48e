package telemetry

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
)

const (
	// summaryEvery is how often a limit that refuses logs a summary.
	summaryEvery = time.Minute

	// blockLines is how many blocks in that time get a line each.
	blockLines = 10
)

// A RefusalLog logs that a limit refuses requests, or would in shadow. It writes a line when the
// limit begins to refuse. Then it writes at most one a minute, with the number of refused requests
// and of distinct keys. Lines and memory are bounded, however many requests are refused. Set the
// exported fields before its first use.
type RefusalLog struct {
	Logger  *zap.Logger
	Begins  string             // the first line
	Refused string             // the others
	More    func() []zap.Field // what those say beside the numbers; may be nil

	count atomic.Int64    // since the last summary
	keys  sketch.Distinct // since then

	mu      sync.Mutex
	timer   *time.Timer // nil if nothing was refused lately
	since   time.Time
	blocked int  // blocks since then
	flushed bool // the config has ended
}

// Note counts a refusal.
func (l *RefusalLog) Note(key string) {
	l.keys.Add(sketch.Hash(key))
	if l.count.Add(1) > 1 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		l.since = time.Now()
		l.timer = time.AfterFunc(summaryEvery, l.tick)
		if !l.flushed { // else the next config has begun
			l.Logger.Info(l.Begins)
		}
	}
}

// Blocked counts a block that began, and logs it if there were few lately.
func (l *RefusalLog) Blocked(message string, fields ...zap.Field) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocked++; l.blocked <= blockLines {
		l.Logger.Info(message, fields...)
	}
}

// tick logs the summary of the last minute. If nothing was refused, it ends the timer.
func (l *RefusalLog) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && l.summarize() {
		l.timer.Reset(summaryEvery)
	} else {
		l.timer = nil
	}
}

// Flush logs a summary of the refusals since the last one, as the config ends. Requests of it that still
// wait may be refused later: summaries tell of them.
func (l *RefusalLog) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flushed = true; l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.summarize()
}

// summarize logs the counts, if there are any, and resets them. It must be called with the
// lock held.
func (l *RefusalLog) summarize() (some bool) {
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
	if l.More != nil {
		fields = append(fields, l.More()...)
	}
	if l.blocked > 0 {
		fields = append(fields, zap.Int("blocks", l.blocked))
	}
	l.since, l.blocked = now, 0
	l.Logger.Info(l.Refused, fields...)
	return true
}
