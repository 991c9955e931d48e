// Package signer signs what clients keep for us, such as device cookies. The key is in
// Caddy's storage, so that all nodes which share it accept each other's tokens. Begin with
// [Ring].
package signer

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha512"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"
)

const (
	// storageKey is where the key is in storage, and lockName the lock under which it is
	// changed.
	storageKey = "throttle/signing_key"
	lockName   = "throttle_signing_key"

	keySize = 32 // bytes

	readEvery     = time.Minute
	maintainLimit = 30 * time.Second // for storage to answer, locks included
)

// Storage is the part of certmagic.Storage that holds the key.
type Storage interface {
	Load(ctx context.Context, key string) ([]byte, error)
	Store(ctx context.Context, key string, value []byte) error
	Lock(ctx context.Context, name string) error
	Unlock(ctx context.Context, name string) error
}

// A Ring holds the signing key as storage has it. It is safe for concurrent use. The zero Ring has no
// key, and is ready for use.
type Ring struct {
	key atomic.Pointer[[]byte]
}

// Fixed returns a ring that has one key for ever, which a secret gives. Nodes with the same
// secret need not share storage.
func Fixed(secret string) *Ring {
	mac := hmac.New(sha512.New, []byte(secret))
	mac.Write([]byte("throttle signing key"))
	key := mac.Sum(nil)[:keySize]
	r := new(Ring)
	r.key.Store(&key)
	return r
}

// Run keeps the key up to date until ctx is done. failed is told when storage begins to fail.
// After each attempt, Run calls tried. A fixed ring needs none of it.
func (r *Ring) Run(ctx context.Context, storage Storage, tried func(), failed func(error)) {
	for failing := false; ; {
		err := r.Maintain(ctx, storage)
		if err != nil && !failing && ctx.Err() == nil {
			failed(err)
		}
		failing = err != nil
		tried()
		select {
		case <-ctx.Done():
			return
		case <-time.After(readEvery):
		}
	}
}

// Maintain reads the key. If storage has none, it makes one. If storage cannot be read, it
// makes none, and the ring keeps the key it has.
func (r *Ring) Maintain(ctx context.Context, storage Storage) (err error) {
	ctx, cancel := context.WithTimeout(ctx, maintainLimit)
	defer cancel()
	if err := r.load(ctx, storage); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := storage.Lock(ctx, lockName); err != nil {
		return fmt.Errorf("locking %s in storage: %w", lockName, err)
	}
	defer func() {
		if unlock := storage.Unlock(context.WithoutCancel(ctx), lockName); unlock != nil && err == nil {
			err = fmt.Errorf("unlocking %s in storage: %w", lockName, unlock)
		}
	}()
	if err = r.load(ctx, storage); !errors.Is(err, fs.ErrNotExist) {
		return err // another node was faster
	}
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	if err := storage.Store(ctx, storageKey, key); err != nil {
		return fmt.Errorf("writing %s to storage: %w", storageKey, err)
	}
	r.key.Store(&key)
	return nil
}

// load reads the key from storage.
func (r *Ring) load(ctx context.Context, storage Storage) error {
	key, err := storage.Load(ctx, storageKey)
	if err != nil {
		return fmt.Errorf("reading %s from storage: %w", storageKey, err)
	}
	if len(key) != keySize {
		return fmt.Errorf("reading %s from storage: it holds no key; delete it, and all clients get new cookies", storageKey)
	}
	r.key.Store(&key)
	return nil
}
