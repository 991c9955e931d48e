package caddymodule

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/axiomhq/hyperloglog"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

const (
	// reportEvery is how often a zone that refuses may say so.
	reportEvery = time.Minute

	// Of so many blocks in that time each is worth a line.
	blockLines = 10
)

// refusals says in the log that a zone refuses, or would in shadow: when it
// begins, and then at most once a minute how often and how many keys it were.
// However many requests are refused, that is bounded in lines and memory.
type refusals struct {
	logger *zap.Logger
	begin  string
	goesOn string
	blocks string
	begun  prometheus.Counter // blocks, in all
	seed   maphash.Seed

	mu      sync.Mutex
	timer   *time.Timer // while the zone refuses; nil when it is calm
	since   time.Time
	count   int
	keys    *hyperloglog.Sketch
	blocked int // since then
}

func (l *refusals) init(logger *zap.Logger, z *Zone, d decision) {
	l.logger = logger.With(zap.String("zone", z.Name))
	l.begin, l.goesOn, l.blocks = "zone begins to refuse requests", "zone refused requests", "zone blocks a key"
	if d == shadowRefused {
		l.begin, l.goesOn, l.blocks = "zone would begin to refuse requests", "zone would have refused requests", "zone would block a key"
	}
	if z.mayCount(d, blocking) {
		l.begun = blocksBegun.WithLabelValues(z.Name, d.String())
	}
	l.seed = maphash.MakeSeed()
	l.keys = hyperloglog.New()
}

// note counts a refusal.
func (l *refusals) note(o *outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	l.keys.InsertHash(maphash.String(l.seed, o.key))
	if l.timer == nil {
		l.logger.Info(l.begin)
		l.since = time.Now()
		l.timer = time.AfterFunc(reportEvery, l.tick)
	}
	if o.began {
		l.begun.Inc()
		if l.blocked++; l.blocked <= blockLines {
			l.logger.Info(l.blocks, zap.String("key", o.key), zap.Duration("for", o.block))
		}
	}
}

// tick says what was counted in the last minute; if that is nothing, the zone
// is calm.
func (l *refusals) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		return
	}
	if l.count == 0 {
		l.timer = nil
		return
	}
	l.write()
	l.timer.Reset(reportEvery)
}

// report says at once what was counted and not said yet.
func (l *refusals) report() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.count > 0 {
		l.write()
	}
}

func (l *refusals) write() {
	now := time.Now()
	fields := []zap.Field{
		zap.Int("requests", l.count),
		zap.Uint64("distinct_keys", l.keys.Estimate()),
		zap.Duration("within", now.Sub(l.since).Round(time.Second)),
	}
	if l.blocked > 0 {
		fields = append(fields, zap.Int("blocks", l.blocked))
	}
	l.logger.Info(l.goesOn, fields...)
	l.since, l.count, l.blocked, l.keys = now, 0, 0, hyperloglog.New()
}
