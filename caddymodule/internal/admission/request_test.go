package admission

import (
	"testing"
	"testing/synctest"
	"time"
)

// newRequest is a request on its way through one zone.
func newRequest(e Entry) *request {
	r := &request{open: true}
	r.steps = append(r.room[:0], step{Entry: e})
	r.start(time.Now())
	return r
}

// pop does what Zone.advance does before it calls resume.
func pop(w *waiter) *keyState {
	k := w.zone.keys[w.key]
	w.in.remove(w)
	w.zone.waiting--
	w.zone.serve(w.key, k)
	k.queued.moving = true
	return k
}

// A slot may be on its way to a request that gives up at this moment.
func TestASlotThatComesWhenItsRequestGivesUpIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entry := Entry{Zone: new(Zone), Key: "k", InFlight: 1, MaxWait: time.Minute, MaxWaiting: 10}
		for _, give := range []struct {
			name string
			up   func(*request, *waiter)
			want Why
		}{
			{"the client leaves", func(r *request, _ *waiter) { r.cancel(Left) }, Left},
			{"the time is over", func(r *request, w *waiter) { r.expire(w) }, Admitted},
		} {
			first, second := newRequest(entry), newRequest(entry)
			first.steps[0].slot = nil
			w := second.waiting
			k := w.zone.keys["k"]
			k.served-- // the first ends
			w.zone.served--
			k = pop(w)
			give.up(second, w)
			moved := second.resume(w, k)
			if second.result.Why != give.want || moved != (give.want != Admitted) {
				t.Errorf("%s: got %v, moved %v, want %v", give.name, second.result.Why, moved, give.want)
			}
			w.zone.moved(k, &k.queued)
			second.release()
			wantEmpty(t, entry.Zone)
		}
	})
}

func TestTheStateOfAKeyStaysUntilTheLastRequestIsAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		delayed := newRequest(Entry{Zone: zone, Key: "k", Delay: time.Second, MaxWaiting: 10})
		pass(time.Second)
		newRequest(Entry{Zone: zone, Key: "k", InFlight: 1}).release()
		if !delayed.over || zone.keys["k"] == nil {
			t.Errorf("got over %v and %v, want the state of the key kept", delayed.over, zone.keys)
		}
		delayed.awake()
		wantEmpty(t, zone)
	})
}

func TestARequestThatComesWhileAnotherWakesUpStaysBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		entry := Entry{Zone: zone, Key: "k", InFlight: 2, MaxWait: time.Minute, MaxWaiting: 10}
		first, second, third := newRequest(entry), newRequest(entry), newRequest(entry)
		first.release()
		second.release() // a slot is free, and the third has not woken up
		fourth := newRequest(entry)
		if zone.Vacant("k", 2) || !third.over || fourth.over {
			t.Errorf("got over %v, %v, want the fourth to stay behind the third", third.over, fourth.over)
		}
		third.awake()
		if !fourth.over {
			t.Error("got the fourth waiting when the third is awake, want it to go on")
		}
		fourth.awake()
		third.release()
		fourth.release()
		wantEmpty(t, zone)
	})
}
