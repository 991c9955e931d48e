package telemetry

import (
	"fmt"
	"math"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
)

// A loadLog says once a minute how full a zone with share is, while requests wait or
// are refused.
type loadLog struct {
	mu      sync.Mutex
	timer   *time.Timer    // nil if there was no load lately
	zone    *Zone          // of the config that noted last
	most    admission.Load // when most requests waited
	waiting int            // then
	noted   bool           // since the last line
	refused int
	without int // of those had no pass, not even an early one, and were no members
}

func (l *loadLog) note(t *Zone, o *decision.Outcome, refused bool) {
	load := t.figures.Slots.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := 0
	for _, n := range load.Waiting {
		waiting += n
	}
	if !l.noted || waiting > l.waiting {
		l.most, l.waiting = load, waiting
	}
	l.noted, l.zone = true, t
	if refused {
		l.refused++
		if !o.Turn.Standing.HoldsPass() && o.Turn.Rank != fairqueue.Member {
			l.without++
		}
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(summaryEvery, l.tick)
	}
}

// tick logs the line of the last minute. If there was no load, it stops the timer.
func (l *loadLog) tick() {
	l.mu.Lock()
	t := l.zone
	if !l.noted {
		l.timer, l.zone = nil, nil
		l.mu.Unlock()
		return
	}
	message := fmt.Sprintf("%s full: %d/%d busy, %d wait, mean %.1f s", t.rule.Name, l.most.Running, l.most.Slots, l.waiting, l.most.Mean.Seconds())
	if l.refused > 0 {
		message += fmt.Sprintf(", %d %% of refusals had no pass", int(math.Round(100*float64(l.without)/float64(l.refused))))
	}
	fields := []zap.Field{zap.Int("refused", l.refused)}
	l.most, l.waiting, l.noted, l.refused, l.without = admission.Load{}, 0, false, 0, 0
	l.timer.Reset(summaryEvery)
	l.mu.Unlock()
	t.Logger.Info(message, fields...)
}

// WarnPassesFull logs, once a minute, that passes are forgotten before their time.
func (t *Zone) WarnPassesFull() {
	now, last := time.Now().Unix(), t.figures.passesFull.Load()
	if now-last >= int64(summaryEvery.Seconds()) && t.figures.passesFull.CompareAndSwap(last, now) {
		t.Logger.Warn("the table of passes that were moved, or whose members have logged out, is full: those that would end first are forgotten, so that robots may present old copies again")
	}
}
