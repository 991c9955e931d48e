package sharedstore

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A remote store that cannot list is no store that is down.
func TestAStoreThatCannotListSaysSo(t *testing.T) {
	b := NewBackend("mute", struct{ leakybucket.Store }{memstore.New(memstore.Options{})}, memstore.New(memstore.Options{}))
	t.Cleanup(b.Close)
	_, _, err := b.With(Options{}).List(t.Context(), store.Filter{Zone: "z", Scan: 1}, "")
	if err == nil || !strings.Contains(err.Error(), "mute") || b.Down() {
		t.Errorf("got error %v and an outage %v, want an error that names the store, and none", err, b.Down())
	}
}

// TestAListingIsOfOneStore: this node's own buckets are no part of what the shared store
// keeps, and the other way round.
func TestAListingIsOfOneStore(t *testing.T) {
	remote, local := memstore.New(memstore.Options{}), memstore.New(memstore.Options{})
	b := NewBackend("remote", remote, local)
	t.Cleanup(b.Close)
	for i := range 100 {
		for about, s := range map[string]*memstore.Store{"remote": remote, "local": local} {
			c := leakybucket.Charge{Zone: "z", Key: fmt.Sprint(about, i), Limit: leakybucket.Limit{Capacity: 10, Leak: 0.001}, Cost: 1}
			_ = s.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1))
		}
	}
	s, of := b.With(Options{}), store.Filter{Zone: "z", Scan: 10}
	var cursors []string
	for _, down := range []bool{false, true} {
		b.down.Store(down)
		some, next, err := s.List(t.Context(), of, "")
		if err != nil || len(some) == 0 || next == "" || strings.HasPrefix(some[0].Key, "local") != down {
			t.Fatalf("down %v: got %v, cursor %q and error %v, want some of the store that answers", down, some, next, err)
		}
		if _, _, err := s.List(t.Context(), of, next); err != nil {
			t.Errorf("down %v, the second page: got error %v, want none", down, err)
		}
		cursors = append(cursors, next)
	}
	for i, down := range []bool{true, false} {
		b.down.Store(down)
		_, _, err := s.List(t.Context(), of, cursors[i])
		check.That(t, errors.Is(err, store.ErrBadCursor), "down %v, with a cursor of the other store: got error %v, want ErrBadCursor", down, err)
	}
}

func TestTheStoreKeepsTheContractOfTheRemoteOne(t *testing.T) {
	storetest.Run(t, func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		var held atomic.Int64
		b := NewBackend("remote", memstore.New(memstore.Options{Clock: func() leakybucket.Instant {
			if at := held.Load(); at != 0 {
				return leakybucket.Instant(at)
			}
			return leakybucket.Instant(time.Now().UnixMicro())
		}}), memstore.New(memstore.Options{}))
		tb.Cleanup(b.Close)
		b.Await(tb.Context())
		// Settle waits for a fifth of it, however busy the machine is.
		return b.With(Options{Timeout: time.Minute, Nodes: 3}), func(at leakybucket.Instant) { held.Store(int64(at)) }
	})
}
