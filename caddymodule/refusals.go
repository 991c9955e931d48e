package caddymodule

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/axiomhq/hyperloglog"
	"go.uber.org/zap"
)

// reportEvery is how often a zone that refuses may say so.
const reportEvery = time.Minute

// refusals says in the log that a zone refuses, or would in shadow: when it
// begins, and then at most once a minute how often and how many keys it were.
// However many requests are refused, that is bounded in lines and memory.
type refusals struct {
	logger *zap.Logger
	begin  string
	goesOn string
	seed   maphash.Seed

	mu    sync.Mutex
	timer *time.Timer // while the zone refuses; nil when it is calm
	since time.Time
	count int
	keys  *hyperloglog.Sketch
}

func (l *refusals) init(logger *zap.Logger, zone string, d decision) {
	l.logger = logger.With(zap.String("zone", zone))
	l.begin, l.goesOn = "zone begins to refuse requests", "zone refused requests"
	if d == shadowRefused {
		l.begin, l.goesOn = "zone would begin to refuse requests", "zone would have refused requests"
	}
	l.seed = maphash.MakeSeed()
	l.keys = hyperloglog.New()
}

// note counts a refusal of a key.
func (l *refusals) note(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	l.keys.InsertHash(maphash.String(l.seed, key))
	if l.timer == nil {
		l.logger.Info(l.begin)
		l.since = time.Now()
		l.timer = time.AfterFunc(reportEvery, l.tick)
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
	l.logger.Info(l.goesOn,
		zap.Int("requests", l.count),
		zap.Uint64("distinct_keys", l.keys.Estimate()),
		zap.Duration("within", now.Sub(l.since).Round(time.Second)))
	l.since, l.count, l.keys = now, 0, hyperloglog.New()
}
