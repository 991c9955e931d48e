package admission

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
)

// growth returns how many of twelve requests that come at once have been served after
// 5 seconds, after 15, and so on.
func growth(zone *Zone, gate *Gate, turns bool) (served []int) {
	var visits []*visit
	began := time.Now()
	for i := range 12 {
		e := Entry{Zone: zone, Key: "k", InFlight: 9, MaxWait: time.Hour, MaxWaiting: 100}
		if turns {
			e = shared(zone, 9, fairqueue.First, fmt.Sprint(began, i))
		}
		visits = append(visits, come(gate, 50*time.Second, e))
	}
	pass(time.Hour)
	for i := range 8 {
		n := 0
		for _, v := range visits {
			if v.after < time.Duration(5+10*i)*time.Second {
				n++
			}
		}
		served = append(served, n)
	}
	return served
}

func TestSlotsGrowFromAThirdWhenTheUpstreamIsCold(t *testing.T) {
	for _, turns := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			zone, gate := &Zone{Name: "z"}, new(Gate)
			for range 20 { // what is left of another zone's keys is used again
				come(gate, time.Second, shared(&Zone{Name: "other"}, 3, fairqueue.First, "a"))
				pass(2 * time.Second)
			}
			zone.SetWarmUp(time.Minute)
			want := []int{3, 4, 5, 6, 7, 11, 12, 12} // a slot more every ten seconds, and the first three end after fifty
			if got := growth(zone, gate, turns); !slices.Equal(got, want) {
				t.Errorf("turns %v: got %v served, want %v", turns, got, want)
			}
			if got := growth(zone, gate, turns); !slices.Equal(got, want) {
				t.Errorf("turns %v: got %v served after an idle hour, want %v", turns, got, want)
			}
			come(gate, time.Second, Entry{Zone: zone, Key: "k", InFlight: 9})
			pass(30 * time.Second)
			come(gate, time.Second, Entry{Zone: zone, Key: "k", InFlight: 9})
			pass(59 * time.Second)
			if got, want := growth(zone, gate, turns), []int{9, 9, 9, 9, 9, 12, 12, 12}; !slices.Equal(got, want) {
				t.Errorf("turns %v: got %v served after less than a minute of rest, want %v", turns, got, want)
			}
			wantEmpty(t, zone)
		})
	}
}

func TestAZoneThatIsInUseIsNotColdWhenAConfigBringsAWarmUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "z"}, new(Gate)
		come(gate, time.Second, Entry{Zone: zone, Key: "k", InFlight: 9})
		pass(10 * time.Second)
		zone.SetWarmUp(time.Minute)
		if got := growth(zone, gate, false); got[0] != 9 {
			t.Errorf("got %v served, want nine at once", got)
		}
		wantEmpty(t, zone)
	})
}

func TestAWarmUpThatAConfigEndsLetsAllWaitingOnesThrough(t *testing.T) {
	for _, turns := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			zone, gate := &Zone{Name: "z"}, new(Gate)
			zone.SetWarmUp(time.Hour)
			time.AfterFunc(12*time.Second, func() { zone.SetWarmUp(0) })
			if got, want := growth(zone, gate, turns), []int{3, 9, 9, 9, 9, 12, 12, 12}; !slices.Equal(got, want) {
				t.Errorf("turns %v: got %v served, want %v", turns, got, want)
			}
			wantEmpty(t, zone)
		})
	}
}

func TestAWarmUpBeginsWithARequestThatIsDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "z"}, new(Gate)
		zone.SetWarmUp(time.Minute)
		var visits []*visit
		for i := range 9 {
			delay := 21*time.Second + time.Duration(i)*time.Microsecond
			visits = append(visits, come(gate, time.Second, Entry{Zone: zone, Key: "k", Delay: delay, InFlight: 9, MaxWaiting: 100}))
		}
		pass(time.Hour)
		wantWhy(t, visits, Admitted, Admitted, Admitted, Admitted, Admitted, TooLong, TooLong, TooLong, TooLong)
		wantEmpty(t, zone)
	})
}

func TestSlotsOfAShadowGrowToo(t *testing.T) {
	for _, turns := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			zone := &Zone{Name: "z"}
			zone.SetWarmUp(time.Minute)
			for range 2 { // the second time after an idle hour
				var shadows []*shadow
				for i := range 9 {
					e := Entry{Zone: zone, Key: "k", InFlight: 9, MaxWait: time.Hour, MaxWaiting: 100}
					if turns {
						e = shared(zone, 9, fairqueue.First, fmt.Sprint(i))
					}
					s := newShadow(e)
					s.Begin()
					shadows = append(shadows, s)
				}
				pass(time.Second)
				wantServed(t, zone, 3)
				pass(20 * time.Second)
				wantServed(t, zone, 5)
				for _, s := range shadows {
					s.Release()
				}
				pass(time.Hour)
				wantEmpty(t, zone)
			}
		})
	}
}
