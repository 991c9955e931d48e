package admission

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A shadow is a simulation in a test, with what it has been told.
type shadow struct {
	*Simulation
	began   time.Time
	results []Result
	after   []time.Duration // when each was told
}

func newShadow(e Entry) *shadow {
	s := &shadow{began: time.Now()}
	s.Simulation = Simulate(s.began, []Entry{e}, func(r Result) {
		s.results = append(s.results, r)
		s.after = append(s.after, time.Since(s.began))
	})
	return s
}

// want checks what was told so far, and when.
func (s *shadow) want(t *testing.T, after time.Duration, result Result) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(s.results, []Result{result}) || s.after[0] != after {
		t.Errorf("got %+v after %v, want %+v after %v", s.results, s.after, result, after)
	}
}

func (s *shadow) wantNothing(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if len(s.results) != 0 {
		t.Errorf("got %+v, want nothing told yet", s.results)
	}
}

// wantServed checks how many slots of a zone are held.
func wantServed(t *testing.T, zone *Zone, want int) {
	t.Helper()
	synctest.Wait()
	if _, served := zone.Counts(); served != want {
		t.Errorf("got %d served after %v, want %d", served, time.Now().Format("05.000"), want)
	}
}

func TestShadowSlotsBehindAnEnforcedDelayRefuseNobodyWhomEnforcementAdmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delays, slots, gate := &Zone{Name: "delays"}, &Zone{Name: "slots"}, new(Gate)
		var shadows []*shadow
		for i := range 4 {
			s, since := newShadow(Entry{Zone: slots, Key: "k", InFlight: 2}), time.Now()
			shadows = append(shadows, s)
			delay := time.Duration(i) * time.Second
			go func() {
				defer s.Release()
				p, _ := gate.Admit(context.Background(), since, []Entry{{Zone: delays, Key: "k", Delay: delay, MaxWaiting: 10}}, nil)
				defer p.Release()
				s.Begin()
				time.Sleep(1500 * time.Millisecond)
			}()
			synctest.Wait()
		}
		pass(time.Minute)
		for i, s := range shadows {
			s.want(t, time.Duration(i)*time.Second, Result{Why: Admitted})
		}
		wantEmpty(t, delays, slots)
	})
}

func TestAShadowWaitsForItsOwnDelayBeforeItTakesASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		var shadows []*shadow
		for i := range 4 {
			s := newShadow(Entry{Zone: zone, Key: "k", Delay: time.Duration(i) * time.Second, InFlight: 1, MaxWaiting: 10})
			shadows = append(shadows, s)
			s.Begin()
			time.AfterFunc(900*time.Millisecond, s.Release)
		}
		pass(time.Minute)
		for i, s := range shadows {
			delay := time.Duration(i) * time.Second
			s.want(t, delay, Result{Why: Admitted, Waited: delay})
		}
		wantEmpty(t, zone)
	})
}

func TestAShadowIsToldAtOnceWhatIsKnownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		admitted := newShadow(Entry{Zone: zone, Key: "k", InFlight: 1})
		admitted.wantNothing(t) // enforcement may refuse it yet
		wantServed(t, zone, 0)
		time.Sleep(time.Second)
		admitted.Begin()
		admitted.want(t, time.Second, Result{Why: Admitted})
		wantServed(t, zone, 1)

		noSlot := newShadow(Entry{Zone: zone, Key: "k", InFlight: 1})
		noSlot.Begin()
		noSlot.want(t, 0, Result{Why: TooLong})

		delayed := newShadow(Entry{Zone: zone, Key: "k", Delay: time.Minute, MaxWaiting: 1})
		delayed.Begin()
		delayed.want(t, 0, Result{Why: Admitted, Waited: time.Minute})
		full := newShadow(Entry{Zone: zone, Key: "k", Delay: time.Minute, MaxWaiting: 1})
		full.want(t, 0, Result{Why: QueueFull})
		full.Begin()

		for _, s := range []*shadow{admitted, noSlot, delayed, full} {
			s.Release()
		}
		wantServed(t, zone, 0)
		pass(time.Hour)
		for _, s := range []*shadow{admitted, noSlot, delayed, full} {
			if len(s.results) != 1 {
				t.Errorf("got %+v, want one result", s.results)
			}
		}
		wantEmpty(t, zone)
	})
}

func TestAShadowQueuesForASlotWithoutHoldingItsRequestUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		entry := Entry{Zone: zone, Key: "k", InFlight: 1, MaxWait: 3 * time.Second, MaxWaiting: 2}
		var shadows []*shadow
		for range 4 {
			s := newShadow(entry)
			s.Begin()
			time.AfterFunc(2*time.Second, s.Release)
			shadows = append(shadows, s)
		}
		pass(time.Minute)
		shadows[0].want(t, 0, Result{Why: Admitted})
		shadows[1].want(t, 2*time.Second, Result{Why: Admitted, Waited: 2 * time.Second})
		shadows[2].want(t, 3*time.Second, Result{Why: TimedOut, Waited: 3 * time.Second})
		shadows[3].want(t, 0, Result{Why: QueueFull})
		wantEmpty(t, zone)
	})
}

func TestAShadowHoldsItsSlotForAsLongAsTheRequestIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		s := newShadow(Entry{Zone: zone, Key: "k", Delay: 5 * time.Second, InFlight: 1, MaxWaiting: 1})
		time.Sleep(time.Second)
		s.Begin()
		time.Sleep(2 * time.Second)
		s.Release() // served for 2s, while the shadow still waits
		s.Release()
		wantServed(t, zone, 0)
		time.Sleep(2 * time.Second)
		s.want(t, 5*time.Second, Result{Why: Admitted, Waited: 5 * time.Second})
		wantServed(t, zone, 1)
		time.Sleep(1999 * time.Millisecond)
		wantServed(t, zone, 1)
		time.Sleep(time.Millisecond)
		wantServed(t, zone, 0)

		late := newShadow(Entry{Zone: zone, Key: "k", Delay: 5 * time.Second, InFlight: 1, MaxWaiting: 1})
		late.Begin()
		time.Sleep(7 * time.Second)
		late.Release() // served for 7s, of which the shadow has seen 2
		time.Sleep(4999 * time.Millisecond)
		wantServed(t, zone, 1)
		time.Sleep(time.Millisecond)
		wantServed(t, zone, 0)
		wantEmpty(t, zone)
	})
}

func TestATunnelGivesItsShadowSlotBackEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		s := newShadow(Entry{Zone: zone, Key: "k", InFlight: 1})
		s.Begin()
		time.Sleep(time.Second)
		for range 5 {
			go s.Release()
		}
		wantServed(t, zone, 0)
		time.Sleep(time.Hour)
		s.Release()
		wantEmpty(t, zone)
	})
}

func TestAShadowOfARequestThatGoesNoFurtherLeavesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		delayed := newShadow(Entry{Zone: zone, Key: "k", Delay: time.Minute, InFlight: 1, MaxWaiting: 1})
		idle := newShadow(Entry{Zone: zone, Key: "k", InFlight: 1})
		parked := newShadow(Entry{Zone: zone, Key: "other", Delay: time.Second, InFlight: 1, MaxWaiting: 2})
		time.Sleep(2 * time.Second)
		for _, s := range []*shadow{delayed, idle, parked} {
			s.Release()
			s.Begin() // too late
		}
		delayed.want(t, 2*time.Second, Result{Why: Left, Waited: 2 * time.Second})
		idle.want(t, 2*time.Second, Result{Why: Left})
		parked.want(t, 2*time.Second, Result{Why: Left, Waited: time.Second})
		wantEmpty(t, zone)
	})
}

// A key's simulations must not go on for longer than their slots need.
func TestMemoryOfSimulationsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 50
		zone := new(Zone)
		for range 1000 {
			s := newShadow(Entry{Zone: zone, Key: "k", InFlight: 3, MaxWait: 10 * time.Second, MaxWaiting: most})
			s.Begin()
			time.Sleep(time.Millisecond)
			s.Release()
			if waiting, served := zone.Counts(); waiting > most || served > 3 {
				t.Fatalf("got %d waiting, %d served, want at most %d and 3", waiting, served, most)
			}
		}
		pass(10 * time.Second)
		wantEmpty(t, zone)
	})
}
