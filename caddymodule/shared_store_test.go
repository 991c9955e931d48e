package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// shared is a store that other Caddys would share, and its faults. One test at a
// time uses it.
type shared struct {
	*memstore.Store
	takes, settles, closed atomic.Int32

	down atomic.Bool  // it refuses at once
	hung atomic.Bool  // it does not answer
	deaf atomic.Bool  // it settles nothing
	slow atomic.Int64 // how long it takes to answer, in nanoseconds
	none string       // the key of what is no bucket

	onError atomic.Pointer[func(error)] // for errors that no call waits for
}

func (s *shared) answer(ctx context.Context) error {
	switch {
	case s.hung.Load():
		<-ctx.Done()
		return ctx.Err()
	case s.down.Load():
		return errors.New("connection refused")
	}
	slow := time.Duration(s.slow.Load())
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

func (s *shared) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	s.takes.Add(1)
	if err := s.answer(ctx); err != nil {
		return err
	}
	if s.none != "" && charges[0].Key == s.none {
		return fmt.Errorf("reading a list: %w", leakybucket.ErrBadBucket)
	}
	return s.Store.Take(ctx, charges, decisions)
}

func (s *shared) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	s.settles.Add(1)
	if err := s.answer(ctx); err != nil {
		return err
	}
	if s.deaf.Load() {
		return errors.New("connection reset")
	}
	return s.Store.Settle(ctx, settlements)
}

func (s *shared) Reset(ctx context.Context, zone, key string, shadow bool) error {
	if err := s.answer(ctx); err != nil {
		return err
	}
	return s.Store.Reset(ctx, zone, key, shadow)
}

func (s *shared) SetOnError(onError func(error)) { s.onError.Store(&onError) }

func (s *shared) Start() {}
func (s *shared) Close() { s.closed.Add(1) }

// testStore is its module.
type testStore struct {
	store *stores.SharedStore
}

var theShared *shared

func init() { caddy.RegisterModule(new(testStore)) }

func (*testStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle.stores.test_shared", New: func() caddy.Module { return new(testStore) }}
}

func (s *testStore) Provision(caddy.Context) error {
	var err error
	s.store, err = stores.ConnectStore("test_shared", nil, func() (sharedstore.Remote, error) { return theShared, nil })
	return err
}

func (s *testStore) Cleanup() error { return s.store.Leave() }

func (s *testStore) SharedStore() *stores.SharedStore { return s.store }

func (s *testStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	return nil
}

// runShared runs a site whose buckets are in a shared store.
func runShared(t *testing.T, global, zones string) *site {
	t.Helper()
	return runSharedWith(t, "", global, zones)
}

// runSharedWith is runShared with more global options.
func runSharedWith(t *testing.T, options, global, zones string) *site {
	t.Helper()
	theShared = &shared{Store: memstore.New(memstore.Options{})}
	for _, of := range []*prometheus.CounterVec{telemetry.StoreErrors, telemetry.StoreOutages} {
		of.Reset() // those of earlier tests, whose stores had the same name
	}
	s := run(t, `{
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
	s.app().Gate.Exiting = nil // virtual time stands still for what waits on a channel of the real one
	// Caddy does this when it starts a config and when it stops it.
	if err := s.module().Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		<-time.After(time.Second) // for what no request waits for
		_ = s.module().Stop()
	})
	return s
}

// A reload keeps the store, and errors that no request waits for go to the log of
// the config that runs.
func TestErrorsOfAStoreThatNoRequestWaitsForAreLoggedByTheConfigThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theShared = &shared{Store: memstore.New(memstore.Options{})}
		const config = "{\nthrottle {\nstore test_shared\n}\n}\nhttp:// {\nthrottle site 5 1/s\n}"
		start := func() *site {
			s := run(t, config)
			if err := s.module().Start(); err != nil {
				t.Fatal(err)
			}
			return s
		}
		wantLines := func(s *site, want int) {
			t.Helper()
			synctest.Wait()
			if got := s.logs.lines(t, "looking after the store"); len(got) != want || want > 0 && !strings.Contains(got[0]["error"].(string), "disk full") {
				t.Errorf("got %v, want %d lines", got, want)
			}
		}
		fail := func() { (*theShared.onError.Load())(errors.New("disk full")) }
		first := start()
		for range 3 {
			fail()
		}
		wantLines(first, 1)
		<-time.After(time.Minute)
		fail()
		wantLines(first, 2)

		second := start()
		_ = first.module().Stop()
		first.stop()
		<-time.After(time.Minute)
		fail()
		wantLines(first, 2)
		wantLines(second, 1)

		// A reload that fails takes nothing with it.
		third := start()
		_ = third.module().Stop()
		third.stop()
		<-time.After(time.Minute)
		fail()
		wantLines(second, 2)
		wantLines(third, 0)
		_ = second.module().Stop()
		second.stop()
		<-time.After(time.Second)
	})
}
