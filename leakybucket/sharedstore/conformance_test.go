package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
)

type bucket struct {
	zone, key string
	shadow    bool
}

func bucketOf(c *leakybucket.Charge) bucket { return bucket{c.Zone, c.Key, c.Shadow} }

// A plain store keeps states in a map, on a clock that can be set.
type plain struct {
	mu      sync.Mutex
	buckets map[bucket]leakybucket.State
	clock   func() leakybucket.Instant
}

func (p *plain) Take(_ context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	states := make([]leakybucket.State, len(charges))
	for i := range charges {
		states[i] = p.buckets[bucketOf(&charges[i])]
	}
	store.TakeAll(charges, states, p.clock(), decisions)
	for i := range charges {
		if _, there := p.buckets[bucketOf(&charges[i])]; there || states[i] != (leakybucket.State{}) {
			p.buckets[bucketOf(&charges[i])] = states[i]
		}
	}
	return nil
}

func (p *plain) Settle(_ context.Context, settlements []leakybucket.Settlement) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range settlements {
		name := bucketOf(&settlements[i].Charge)
		if state, there := p.buckets[name]; there || settlements[i].Creates() {
			p.buckets[name] = settlements[i].Apply(state, p.clock())
		}
	}
	return nil
}

func (p *plain) Reset(_ context.Context, zone, key string, shadow bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.buckets, bucket{zone, key, shadow})
	return nil
}

func (p *plain) List(_ context.Context, of store.Filter, cursor string) (some []store.Entry, next string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cursor != "" && !strings.HasPrefix(cursor, ">") {
		return nil, "", store.ErrBadCursor
	}
	for name, state := range p.buckets {
		if name.zone == of.Zone && name.shadow == of.Shadow && strings.HasPrefix(name.key, of.Prefix) && ">"+name.key > cursor {
			some = append(some, store.Entry{Key: name.key, State: state, Now: p.clock()})
		}
	}
	slices.SortFunc(some, func(a, b store.Entry) int { return strings.Compare(a.Key, b.Key) })
	if len(some) > of.Scan {
		some = some[:of.Scan]
		next = ">" + some[of.Scan-1].Key
	}
	return some, next, nil
}

// A remote store that cannot list is no store that is down.
func TestAStoreThatCannotListSaysSo(t *testing.T) {
	b := NewBackend("mute", struct{ leakybucket.Store }{&plain{buckets: make(map[bucket]leakybucket.State), clock: func() leakybucket.Instant { return 1e15 }}}, memstore.New(memstore.Options{}))
	t.Cleanup(func() { _ = b.Destruct() })
	_, _, err := b.With(Options{}).List(t.Context(), store.Filter{Zone: "z", Scan: 1}, "")
	if err == nil || !strings.Contains(err.Error(), "mute") || b.Down() {
		t.Errorf("got error %v and an outage %v, want an error that names the store, and none", err, b.Down())
	}
}

// TestAListingIsOfOneStore: this node's own buckets are no part of what the shared store
// keeps, and the other way round.
func TestAListingIsOfOneStore(t *testing.T) {
	p := &plain{buckets: make(map[bucket]leakybucket.State), clock: func() leakybucket.Instant { return 1e15 }}
	local := memstore.New(memstore.Options{})
	b := NewBackend("plain", p, local)
	t.Cleanup(func() { _ = b.Destruct() })
	limit := leakybucket.Limit{Capacity: 10, Leak: 0.001}
	for i := range 100 {
		key := fmt.Sprint(i)
		p.buckets[bucket{"z", key, false}] = leakybucket.State{Level: 1, At: 1e15}
		charge := []leakybucket.Charge{{Zone: "z", Key: "local" + key, Limit: limit, Cost: 1}}
		if err := local.Take(t.Context(), charge, make([]leakybucket.Decision, 1)); err != nil {
			t.Fatal(err)
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
		if _, _, err := s.List(t.Context(), of, cursors[i]); !errors.Is(err, store.ErrBadCursor) {
			t.Errorf("down %v, with a cursor of the other store: got error %v, want ErrBadCursor", down, err)
		}
	}
}

func TestTheStoreKeepsTheContractOfTheRemoteOne(t *testing.T) {
	storetest.Run(t, func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		p := &plain{buckets: make(map[bucket]leakybucket.State)}
		p.clock = func() leakybucket.Instant { return leakybucket.Instant(time.Now().UnixMicro()) }
		b := NewBackend("plain", p, memstore.New(memstore.Options{}))
		tb.Cleanup(func() { _ = b.Destruct() })
		b.Await(tb.Context())
		p.mu.Lock()
		clear(p.buckets) // of trials
		p.mu.Unlock()
		// Settle waits for a fifth of it, however busy the machine is.
		return b.With(Options{Timeout: time.Minute, Nodes: 3}), func(at leakybucket.Instant) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.clock = func() leakybucket.Instant { return at }
		}
	})
}
