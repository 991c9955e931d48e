package servertest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// SharedStore is a store that other Caddys would share, and its faults. One test at a
// time uses it.
type SharedStore struct {
	*memstore.Store
	Takes, Settles, Closed atomic.Int32

	Down   atomic.Bool  // it refuses at once
	Locked atomic.Bool  // it answers that the password is wrong
	Hung   atomic.Bool  // it does not answer
	Deaf   atomic.Bool  // it settles nothing
	Slow   atomic.Int64 // how long it takes to answer, in nanoseconds
	None   string       // the key of what is no bucket

	OnError atomic.Pointer[func(error)] // for errors that no call waits for
}

func (s *SharedStore) answer(ctx context.Context) error {
	switch {
	case s.Hung.Load():
		<-ctx.Done()
		return ctx.Err()
	case s.Down.Load():
		return errors.New("connection refused")
	case s.Locked.Load():
		return errors.New("wrong password")
	}
	slow := time.Duration(s.Slow.Load())
	if slow == 0 {
		return nil // two timers that are due at once fail the race detector: see go.dev/issue/78156
	}
	select {
	case <-time.After(slow):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *SharedStore) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if charges[0].Zone != "@probe" { // which tries whether it answers
		s.Takes.Add(1)
	}
	if err := s.answer(ctx); err != nil {
		return err
	}
	if s.None != "" && charges[0].Key == s.None {
		return fmt.Errorf("reading a list: %w", store.ErrBadBucket)
	}
	return s.Store.Take(ctx, charges, decisions)
}

func (s *SharedStore) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	s.Settles.Add(1)
	if err := s.answer(ctx); err != nil {
		return err
	}
	if s.Deaf.Load() {
		return errors.New("connection reset")
	}
	return s.Store.Settle(ctx, settlements)
}

func (s *SharedStore) Reset(ctx context.Context, zone, key string, shadow bool) error {
	if err := s.answer(ctx); err != nil {
		return err
	}
	return s.Store.Reset(ctx, zone, key, shadow)
}

func (s *SharedStore) Close() { s.Closed.Add(1) }

// TestStore is its module.
type TestStore struct {
	store *stores.SharedStore
}

var TheShared = &SharedStore{Store: memstore.New(memstore.Options{})}

func init() { caddy.RegisterModule(new(TestStore)) }

func (*TestStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle.stores.test_shared", New: func() caddy.Module { return new(TestStore) }}
}

func (s *TestStore) Provision(caddy.Context) error {
	var err error
	s.store, err = stores.ConnectStore("test_shared", nil, func(report func(error)) (leakybucket.Store, error) {
		TheShared.OnError.Store(&report)
		return TheShared, nil
	})
	return err
}

func (s *TestStore) Cleanup() error { return s.store.Leave() }

func (s *TestStore) SharedStore() *stores.SharedStore { return s.store }

func (s *TestStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	return nil
}

// RunShared runs a site whose buckets are in a shared store.
func RunShared(t *testing.T, global, zones string) *Site {
	t.Helper()
	return RunSharedWith(t, "", global, zones)
}

// RunSharedWith is RunShared with more global options.
func RunSharedWith(t *testing.T, options, global, zones string) *Site {
	t.Helper()
	TheShared = &SharedStore{Store: memstore.New(memstore.Options{})}
	for _, of := range []interface{ Reset() }{telemetry.StoreErrors, telemetry.StoreOutages, telemetry.StoreSeconds} {
		of.Reset() // those of earlier tests, whose stores may have the same name
	}
	s := Run(t, `{
		`+options+`
		throttle {
			store test_shared
			`+global+`
		}
	}
	http:// {
		throttle {
			`+zones+`
		}
		respond "{http.throttle.decision} {http.throttle.reason}"
	}`)
	s.Engine().Exiting = nil // virtual time stands still for what waits on a channel of the real one
	// Caddy does this when it starts a config and when it stops it.
	if err := s.Module().Start(); err != nil {
		t.Fatal(err)
	}
	s.Engine().Shared.Await(t.Context())
	t.Cleanup(func() {
		<-time.After(time.Second) // for what no request waits for
		_ = s.Module().Stop()
	})
	return s
}
