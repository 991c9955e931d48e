package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Interruptible returns a store whose Take and Settle end when their contexts do, even if those
// of the given store go on: they have copies of their arguments. Its Reset and List are the
// given store's own.
func Interruptible(store leakybucket.Store) leakybucket.Store { return &interruptible{Store: store} }

type interruptible struct {
	leakybucket.Store
	running atomic.Int64 // calls, with those for which nobody waits any longer
}

// mostRunning bounds the goroutines of a store that never answers.
const mostRunning = 10_000

var errBusy = errors.New("10,000 calls have not returned yet")

func (i *interruptible) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	charges, answers := slices.Clone(charges), make([]leakybucket.Decision, len(decisions))
	err := i.run(ctx, func() error { return i.Store.Take(ctx, charges, answers) })
	if err == nil {
		copy(decisions, answers)
	}
	return err
}

func (i *interruptible) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	settlements = slices.Clone(settlements)
	return i.run(ctx, func() error { return i.Store.Settle(ctx, settlements) })
}

func (i *interruptible) run(ctx context.Context, f func() error) error {
	if i.running.Add(1) > mostRunning {
		i.running.Add(-1)
		return errBusy
	}
	ended := make(chan error, 1)
	go func() {
		defer i.running.Add(-1)
		ended <- recovered(f)
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// recovered makes a panic an error. In a goroutine of its own it would end the process.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in the store: %v", p)
		}
	}()
	return f()
}

// capability returns the store as an optional interface, if it has that.
func capability[T any](store leakybucket.Store) (T, bool) {
	if i, is := store.(*interruptible); is {
		store = i.Store
	}
	able, can := store.(T)
	return able, can
}
