package virtual

import (
	"slices"
	"testing"
	"time"
)

func TestProcessesSleepInVirtualTime(t *testing.T) {
	w := New()
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w.Advance(begin)
	var got []string
	note := func(what string) { got = append(got, what+w.Now().Sub(begin).String()) }
	w.Go(func() { note("a "); w.Sleep(3 * time.Hour); note("a "); w.Sleep(time.Hour); note("a ") })
	w.Go(func() { note("b "); w.Sleep(2 * time.Hour); note("b ") })
	w.Advance(begin.Add(3 * time.Hour))
	note("main ")
	w.Finish()
	note("main ")
	if want := []string{"a 0s", "b 0s", "b 2h0m0s", "a 3h0m0s", "main 3h0m0s", "a 4h0m0s", "main 4h0m0s"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAProcessWaitsUntilWhatItWaitsForIsClosed(t *testing.T) {
	w := New()
	var got []string
	done := make(chan struct{})
	w.Go(func() { w.Wait(done); got = append(got, "waited") })
	w.AfterFunc(time.Second, func() { got = append(got, "closing"); w.Close(done) })
	w.Go(func() { w.Sleep(time.Minute); w.Wait(done); got = append(got, "late") })
	w.Finish()
	if want := []string{"closing", "waited", "late"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAStoppedTimerIsNotCalled(t *testing.T) {
	w := New()
	called := 0
	stopped := w.AfterFunc(time.Second, func() { called += 100 })
	kept := w.AfterFunc(time.Second, func() { called++ })
	if !stopped.Stop() || stopped.Stop() {
		t.Error("a timer can be stopped once")
	}
	w.Finish()
	if kept.Stop() || called != 1 {
		t.Errorf("got %d calls, want the one of the timer that was not stopped", called)
	}
}

func TestWhatIsDueAtOnceHappensInOrder(t *testing.T) {
	w := New()
	var got []int
	for i := range 5 {
		w.AfterFunc(0, func() { got = append(got, i) })
	}
	if len(got) > 0 {
		t.Errorf("got %v before the time went on", got)
	}
	w.Advance(w.Now())
	if want := []int{0, 1, 2, 3, 4}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
