package sharedstore

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
)

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
	leakybucket.TakeAll(charges, states, p.clock(), decisions)
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
		if state, there := p.buckets[name]; there || settlements[i].Diff > 0 && !settlements[i].Cancel {
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

func (p *plain) List(_ context.Context, zone, prefix string, shadow bool, yield func(leakybucket.Kept) bool) error {
	p.mu.Lock()
	var found []leakybucket.Kept
	for name, state := range p.buckets {
		if name.zone == zone && name.shadow == shadow && strings.HasPrefix(name.key, prefix) {
			found = append(found, leakybucket.Kept{Key: name.key, State: state, Now: p.clock()})
		}
	}
	p.mu.Unlock()
	for _, kept := range found {
		if !yield(kept) {
			break
		}
	}
	return nil
}

func (p *plain) Close() {}

// A remote store that cannot list is no store that is down.
func TestAStoreThatCannotListSaysSo(t *testing.T) {
	b := NewBackend("mute", struct{ Remote }{&plain{}}, memstore.New(memstore.Options{}))
	t.Cleanup(func() { _ = b.Destruct() })
	err := b.With(Options{}).List(t.Context(), "z", "", false, func(leakybucket.Kept) bool { return true })
	if err == nil || !strings.Contains(err.Error(), "mute") || b.Down() {
		t.Errorf("got error %v and an outage %v, want an error that names the store, and none", err, b.Down())
	}
}

func TestTheStoreKeepsTheContractOfTheRemoteOne(t *testing.T) {
	storetest.Run(t, func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		p := &plain{buckets: make(map[bucket]leakybucket.State)}
		p.clock = func() leakybucket.Instant { return leakybucket.Instant(time.Now().UnixMicro()) }
		b := NewBackend("plain", p, memstore.New(memstore.Options{}))
		tb.Cleanup(func() { _ = b.Destruct() })
		// Settle waits for a fifth of it, however busy the machine is.
		return b.With(Options{Timeout: time.Minute, Nodes: 3}), func(at leakybucket.Instant) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.clock = func() leakybucket.Instant { return at }
		}
	})
}
