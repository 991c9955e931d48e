package sharedstore

import (
	"context"
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

func (p *plain) Close() {}

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
