package sharedstore

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// An Observer logs and counts the outages and errors of a shared store. Requests
// call Errors and Unsettled, which must not block. A goroutine of the [Backend] calls
// the other methods, one at a time and with no lock held, and no request waits for
// them. These calls are dropped if no observer is attached, or if too many wait for a
// slow one. An Observer must be comparable, such as a pointer.
type Observer interface {
	// Down says that an outage begins: calls failed, the last with err.
	// Zones go by their policies until Up.
	Down(err error)

	// Up says that the outage is over, and how long it lasted.
	Up(after time.Duration)

	// Failed says for the log why calls fail and what that means. However many
	// calls fail, it is called once a minute for each reason, and for a few reasons only.
	Failed(what string, err error)

	// Errors counts a call that failed. Calls that were not made, because the
	// store is down, do not count.
	Errors()

	// Unsettled counts a charge of a zone whose settlement is lost: the bucket keeps the
	// reservation, or none was charged, because the zone's policy is [Allow].
	Unsettled(zone string)

	// Warned reports a warning of the store's Check, once.
	Warned(text string)
}

// Log returns an observer that writes to a log, and counts nothing.
func Log(to *slog.Logger) Observer { return logger{to} }

type logger struct{ to *slog.Logger }

func (l logger) Down(err error) {
	l.to.Error("the store is down; until it is up again, this process decides by itself", "error", err)
}

func (l logger) Up(after time.Duration) { l.to.Info("the store is up again", "after", after) }

func (l logger) Failed(what string, err error) { l.to.Warn(what, "error", err) }

func (l logger) Errors() {}

func (l logger) Unsettled(string) {}

func (l logger) Warned(text string) { l.to.Warn(text) }

const (
	// failedEvery is how often a reason is worth a log line, and mostReasons how many are.
	failedEvery = time.Minute
	mostReasons = 4

	// mostNews is how much news waits for a slow observer.
	mostNews = 100
)

// A notifier passes news to the observer that was attached last.
type notifier struct {
	news chan func(Observer)

	mu        sync.Mutex
	observers []Observer           // oldest first; nil is one that is told nothing
	reasons   map[string]time.Time // why calls failed, and when that was told
}

func (t *notifier) attach(o Observer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observers = append(t.observers, o)
}

func (t *notifier) detach(o Observer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.observers, o); i >= 0 { // the same one may have been attached twice
		t.observers = slices.Delete(t.observers, i, i+1)
	}
}

// notify passes one piece of news on.
func (t *notifier) notify(news func(Observer)) {
	select {
	case t.news <- news:
	default:
	}
}

// run passes all news on until ctx ends.
func (t *notifier) run(ctx context.Context) {
	for {
		select {
		case news := <-t.news:
			t.count(news)
		case <-ctx.Done():
			return
		}
	}
}

// count lets the observer count, or hear.
func (t *notifier) count(what func(Observer)) {
	t.mu.Lock()
	var o Observer
	if n := len(t.observers); n > 0 {
		o = t.observers[n-1]
	}
	t.mu.Unlock()
	if o != nil {
		what(o)
	}
}

// failed passes on why a call failed, if that is worth a line.
func (t *notifier) failed(what string, err error) {
	if t.isNew(err) {
		t.notify(func(o Observer) { o.Failed(what, err) })
	}
}

// isNew reports whether a reason was not told within the last minute, and notes it.
func (t *notifier) isNew(err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for reason, told := range t.reasons {
		if now.Sub(told) >= failedEvery {
			delete(t.reasons, reason)
		}
	}
	if _, told := t.reasons[err.Error()]; told || len(t.reasons) == mostReasons {
		return false
	}
	t.reasons[err.Error()] = now
	return true
}
