package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// Interruptible returns a store whose calls end when their contexts do, even if those of the given
// store go on: they have copies of their arguments. A [Backend] still finds the other interfaces
// of the given store.
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
func capability[T any](store leakybucket.Store) (able T, can bool) {
	i, is := store.(*interruptible)
	if !is {
		able, can = store.(T)
		return able, can
	}
	able, can = i.Store.(T)
	if ends, has := any(capable{i}).(T); can && has {
		able = ends
	}
	return able, can
}

// capable has the optional methods of its store, which must have those that are called.
type capable struct{ *interruptible }

func (c capable) Reset(ctx context.Context, zone, key string, shadow bool) error {
	return c.run(ctx, func() error { return c.Store.(store.Resetter).Reset(ctx, zone, key, shadow) })
}

// A page is what List returns.
type page struct {
	some []store.Entry
	next string
}

func (c capable) List(ctx context.Context, of store.Filter, cursor string) ([]store.Entry, string, error) {
	p, err := within(ctx, c, func() (p page, err error) {
		p.some, p.next, err = c.Store.(store.Lister).List(ctx, of, cursor)
		return p, err
	})
	return p.some, p.next, err
}

func (c capable) Texts(ctx context.Context, seen int64) (store.Texts, error) {
	return within(ctx, c, func() (store.Texts, error) { return c.Store.(store.Registry).Texts(ctx, seen) })
}

func (c capable) PutTexts(ctx context.Context, texts []store.Text) (before, last int64, err error) {
	texts = slices.Clone(texts)
	marks, err := within(ctx, c, func() (m [2]int64, err error) {
		m[0], m[1], err = c.Store.(store.Registry).PutTexts(ctx, texts)
		return m, err
	})
	return marks[0], marks[1], err
}

// within returns what f does, unless ctx ends first: f may go on then.
func within[T any](ctx context.Context, c capable, f func() (T, error)) (result T, err error) {
	var later T
	if err = c.run(ctx, func() (err error) { later, err = f(); return err }); err == nil {
		result = later
	}
	return result, err
}
