package sharedstore

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A lockedBuffer may be written to and read by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// TestAProgramWithOneStoreNeedsNoMore: a limiter over New goes on through an outage by this
// node's own buckets, and the log says so once.
func TestAProgramWithOneStoreNeedsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote()
		var log lockedBuffer
		store := New(r, Options{Timeout: -1}, Log(slog.New(slog.NewTextHandler(&log, nil))))
		limiter := check.Must(leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 10, Leak: 0.001}, leakybucket.LimiterOptions{Timeout: -1}))(t)
		take := func(fits bool) {
			t.Helper()
			got, err := limiter.Take(t.Context(), "k", 1)
			check.Assume(t, err == nil && got.Fits == fits, "got %+v, %v, want fits %v", got, err, fits)
		}
		for range 4 {
			take(true)
		}
		check.That(t, r.level(t, leakybucket.Charge{Key: "k", Limit: limiter.Limit()}) > 3.9, "got another level, want the store asked")
		r.down.Store(true)
		for range 10 {
			take(true)
		}
		for range 20 {
			take(false)
		}
		r.down.Store(false)
		time.Sleep(10 * time.Second) // virtual
		if got := r.level(t, leakybucket.Charge{Key: "k", Limit: limiter.Limit()}); got < 3.9 || got > 4 {
			t.Errorf("after the outage: got a level of %v, want what it had admitted", got)
		}
		store.Close()
		store.Close()
		synctest.Wait()
		check.Equal(t, r.closed.Load(), 1, "times the remote store was closed")
		for _, line := range []string{"the store is down", "connection refused", "the store is up again"} {
			check.That(t, strings.Count(log.String(), line) != 0, "got no line %q:\n%s", line, log.String())
		}
	})
}
