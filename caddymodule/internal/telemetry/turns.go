package telemetry

import (
	"fmt"
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
)

var (
	TurnSeconds = newHistograms("slot_wait_seconds",
		"How long served requests waited for their turn, in zones with share, in seconds.", []float64{.01, .05, .1, .25, .5, 1, 2, 3, 5, 8}, "zone", "rank")

	SlotSeconds = newCounters("slot_seconds_total",
		"For how long requests held slots, in zones with share, in seconds.", "zone", "rank")
)

// AllRanks are those that clients of a zone with share may have, in the order of service.
var AllRanks = []fairqueue.Rank{fairqueue.Member, fairqueue.Returned, fairqueue.Crawler, fairqueue.First}

// A turnMeter counts what becomes of requests of one rank.
type turnMeter struct {
	decided counters
	waits   prometheus.Observer
}

func newTurnMeters(t *Zone) (meters [fairqueue.Ranks]*turnMeter) {
	if t.rule.Share == nil {
		return meters
	}
	for _, rank := range AllRanks {
		counter := SlotSeconds.WithLabelValues(t.rule.Name, rank.String())
		t.figures.slotSeconds[rank].Store(&counter)
		meters[rank] = &turnMeter{decided: countersOf(t, rank.String()), waits: TurnSeconds.WithLabelValues(t.rule.Name, rank.String())}
	}
	return meters
}

// turned counts an outcome of a zone with share.
func (t *Zone) turned(o *decision.Outcome, d decision.Decision, why rule.Reason) {
	rank := o.Turn.Rank
	meter := t.turns[rank]
	if counter := meter.decided[d][why]; counter != nil {
		counter.Inc()
	} else { // only a switch at run time can lead here
		Requests.WithLabelValues(t.rule.Name, d.String(), why.String(), rank.String()).Inc()
	}
	switch {
	case o.Shadow != 0:
	case d == decision.Admitted && !o.Left:
		meter.waits.Observe(0)
	case d == decision.Delayed:
		if !o.Left {
			meter.waits.Observe(o.Delay.Seconds())
		}
		t.figures.load.note(t, o, false)
	case d == decision.Refused && o.LostTurn():
		t.figures.load.note(t, o, true)
	}
}

// CountPass implements decision.Reporter.
func (t *Zone) CountPass(e clientpass.Event) { t.passes[e].Inc() }

// countPresented counts what the pass was worth that a request came with.
func (t *Zone) countPresented(o *decision.Outcome) {
	if o.Turn == nil || t.presented[clientpass.Valid] == nil {
		return
	}
	if state := o.Turn.Standing.Client.State(); state != clientpass.Absent {
		t.presented[state].Inc()
	}
}

// passCounters looks the zone's counters of passes up.
func (t *Zone) passCounters() {
	if t.rule.Pass() == nil {
		return
	}
	for state := clientpass.Invalid; state <= clientpass.Valid; state++ {
		t.presented[state] = Passes.WithLabelValues(t.rule.Name, state.String())
	}
	for e := clientpass.None + 1; e < clientpass.Events; e++ {
		t.passes[e] = Passes.WithLabelValues(t.rule.Name, e.String())
	}
}

// Released counts a slot that was given back.
func (l *Figures) Released(turn *admission.Turn, held time.Duration) {
	(*l.slotSeconds[turn.Rank].Load()).Add(held.Seconds())
	l.Busiest.Add(false, turn.Keys[0], netip.Addr{}, int(held/time.Millisecond), time.Now())
}

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
