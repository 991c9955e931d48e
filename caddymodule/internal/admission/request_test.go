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

// pop does what Zone.advanceSlots does before it calls resume.
func pop(z *Zone, key string) (*waiter, *keyState) {
	k := z.keys[key]
	w := k.slots.Next().Owner.(*waiter)
	z.count(k)
	return w, k
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
			{"the client leaves", func(r *request, _ *waiter) { r.stop(nil, Left) }, Left},
			{"the time is over", func(r *request, w *waiter) { r.stop(w, TimedOut) }, Admitted},
		} {
			first, second := newRequest(entry), newRequest(entry)
			k := entry.Zone.keys["k"]
			k.slots.Abandon(&first.steps[0].slot.Request) // the first ends
			first.steps[0].slot = nil
			w, k := pop(entry.Zone, "k")
			give.up(second, w)
			second.resume(w, k)
			if second.result.Why != give.want {
				t.Errorf("%s: got %v, want %v", give.name, second.result.Why, give.want)
			}
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
