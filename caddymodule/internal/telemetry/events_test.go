package telemetry

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestASlowSubscriberHoldsUpNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, told := make(chan struct{}), 0
		drops := func() int {
			var m dto.Metric
			check.OK(t, EventsDropped.Write(&m))
			return int(m.GetCounter().GetValue())
		}
		before := drops()
		q, tell := NewBackground(), func() {
			<-hang
			told++
		}
		ctx, stop := context.WithCancel(t.Context())
		go q.Run(ctx)
		q <- tell
		synctest.Wait() // for the subscriber to have this one in its hands
		f := overflowsOf(Options{Events: q, Wanted: func(string) bool { return true }, Emit: func(string, map[string]any) { tell() }})
		for i := range 3000 {
			o := &limit.Outcome{Charge: leakybucket.Charge{Key: fmt.Sprint(i)}, Answer: leakybucket.Decision{Began: true}, Block: time.Second}
			o.Refuse(limit.Capacity)
			f.note(o)
		}
		synctest.Wait()
		f.mu.Lock()
		check.That(t, len(f.keys) == mostOverflowing && len(q) == mostWaiting, "got %d keys and %d events, want %d and %d", len(f.keys), len(q), mostOverflowing, mostWaiting)
		f.mu.Unlock()
		close(hang)
		synctest.Wait()
		// Of the first, 3000 blocks and 1000 overflows.
		all := told + drops() - before
		check.That(t, all == 4001 && told == 1+mostWaiting, "got %d told of %d, want %d of 4001", told, all, 1+mostWaiting)
		stop()
		synctest.Wait()
		q <- tell
		synctest.Wait()
		check.Equal(t, told, 1+mostWaiting, "told after the end")
		<-time.After(2 * time.Minute)
	})
}

func overflowsOf(options Options) *overflows {
	return &overflows{keys: make(map[string]*overflow), of: &Counts{zone: &limit.Zone{Name: "some"}, Options: options}}
}

func TestNothingIsKeptOfKeysWithoutSubscribers(t *testing.T) {
	f := overflowsOf(Options{Wanted: func(string) bool { return false }})
	o := &limit.Outcome{Charge: leakybucket.Charge{Key: "203.0.113.7"}}
	o.Refuse(limit.Capacity)
	f.note(o)
	check.Equal(t, len(f.keys), 0, "keys")
}
