package sharedstore

import (
	"context"
	"slices"
	"sync"
	"time"
)

// An Observer logs and counts the outages and errors of a shared store. A
// goroutine of the [Backend] calls it, one call at a time and with no lock held,
// and no request waits for it, but for what counts: Errors and Unsettled are called by
// requests, and must not block. News is dropped if no observer is attached, or if
// a slow one lets too much of it pile up.
type Observer interface {
	// Down says that an outage begins: calls failed, the last with err.
	// Zones go by their policies until Up.
	Down(err error)

	// Up says that the outage is over, and how long it lasted.
	Up(after time.Duration)

	// Failed says for the log why calls fail and what that means. However many
	// calls fail, it is called once a minute, and for up to three more reasons that
	// differ from the one before. If an outage began without a known reason, it is
	// called once more when the reason is known.
	// The errors of a [Reporter] are limited in the same way, apart from these.
	Failed(what string, err error)

	// Errors counts calls that failed. Calls that were not made, because the
	// store is down, do not count.
	Errors(calls int)

	// Unsettled counts charges of a zone whose settlement is lost, so that the
	// bucket keeps the reservation.
	Unsettled(zone string, charges int)

	// Warned reports a warning of a [Checker], once.
	Warned(text string)
}

const (
	// failedEvery is how often an error of single calls is worth a log line.
	failedEvery = time.Minute

	// mostNews is how much news waits for a slow observer.
	mostNews = 100
)

// A teller passes news to the observer that was attached last.
type teller struct {
	news  chan func(Observer)
	start func() // once

	mu        sync.Mutex
	observers []Observer // oldest first

	called, strayed reasons // of calls, and of what no call waited for
}

// reasons are the ones that the observer was told since an outage began, or in a minute.
type reasons struct {
	began time.Time
	last  string
	more  int // that may be told yet
}

// mostReasons bounds the log lines while reasons change.
const mostReasons = 3

// begin notes the first reason.
func (r *reasons) begin(err error) { *r = reasons{time.Now(), err.Error(), mostReasons} }

// isNew reports whether a reason is worth telling: it is another one than the last, and
// not too many were told. A store that was slow once must not hide for a minute what is
// wrong with it now.
func (r *reasons) isNew(err error) bool {
	if r.more == 0 || r.last == err.Error() {
		return false
	}
	r.last = err.Error()
	r.more--
	return true
}

func (t *teller) attach(o Observer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observers = append(t.observers, o)
}

func (t *teller) detach(o Observer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observers = slices.DeleteFunc(t.observers, func(other Observer) bool { return other == o })
}

// tell passes one piece of news on.
func (t *teller) tell(news func(Observer)) {
	t.start()
	select {
	case t.news <- news:
	default:
	}
}

// down says that an outage begins.
func (t *teller) down(err error) {
	t.mu.Lock()
	t.called.begin(err)
	t.mu.Unlock()
	t.tell(func(o Observer) { o.Down(err) })
}

// explained passes on the error of a trial, if it says anew why the store is down.
func (t *teller) explained(err error) { t.log(&t.called, "why the store is down", err, false) }

// failed passes on the error of a call. That of a trial is only counted.
func (t *teller) failed(what string, err error, trial bool) {
	t.count(func(o Observer) { o.Errors(1) })
	if !trial {
		t.log(&t.called, what, err, true)
	}
}

// stray passes on an error that no call waited for.
func (t *teller) stray(err error) {
	t.log(&t.strayed, "looking after the store; requests go on", err, true)
}

// log passes on an error if it is worth a line: once a minute if so often, or a new one.
func (t *teller) log(told *reasons, what string, err error, often bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.observers) == 0 || len(t.news) == mostNews:
		return
	case often && time.Since(told.began) >= failedEvery:
		told.begin(err)
	case !told.isNew(err):
		return
	}
	t.tell(func(o Observer) { o.Failed(what, err) })
}

// lost counts a charge of a zone that stays as it was reserved.
func (t *teller) lost(zone string) {
	t.count(func(o Observer) { o.Unsettled(zone, 1) })
}

// count lets the observer count.
func (t *teller) count(what func(Observer)) {
	if o := t.last(); o != nil {
		what(o)
	}
}

// last returns the observer that was attached last, or nil.
func (t *teller) last() Observer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.observers); n > 0 {
		return t.observers[n-1]
	}
	return nil
}

// run passes on all news, those that wait at the end, too.
func (t *teller) run(ending context.Context) {
	for ending.Err() == nil || len(t.news) > 0 {
		select {
		case tell := <-t.news:
			t.count(tell)
		case <-ending.Done():
		}
	}
}
