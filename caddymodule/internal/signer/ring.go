// Package signer signs what clients keep for us, such as device cookies. The keys are in
// Caddy's storage, so that all nodes which share it accept each other's tokens. Begin with
// [Ring].
package signer

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// storageKey is where the keys are in storage, and lockName the lock under which
	// they are changed.
	storageKey = "throttle/signing_keys.json"
	lockName   = "throttle_signing_keys"

	// KeyIDSize is how many bytes name a key.
	KeyIDSize  = 4
	secretSize = 32 // bytes

	// Term is how long a key signs. It is accepted for as long again, while the next
	// one signs.
	Term = 365 * 24 * time.Hour

	// ahead is how long before its use a key is published, so that all nodes know it
	// by then.
	ahead = 24 * time.Hour

	// Leeway is how far the clocks of nodes may differ.
	Leeway = time.Minute

	readEvery     = 10 * time.Minute
	retryEvery    = time.Minute
	unknownEvery  = time.Minute      // between two reads because of unknown keys
	unknownWait   = time.Second      // for such a read, which a request waits for
	maintainLimit = 30 * time.Second // for storage to answer, locks included
)

// Storage is the part of certmagic.Storage that holds the keys.
type Storage interface {
	Load(ctx context.Context, key string) ([]byte, error)
	Store(ctx context.Context, key string, value []byte) error
	Lock(ctx context.Context, name string) error
	Unlock(ctx context.Context, name string) error
}

// A Ring holds the signing keys as storage has them. It is safe for concurrent use.
type Ring struct {
	storage Storage               // nil if the keys are fixed
	keys    atomic.Pointer[[]key] // none until storage was read

	mu      sync.Mutex   // of whoever reads or writes storage
	unknown atomic.Int64 // when storage was last read for an unknown key, in Unix nanoseconds

	once  sync.Once
	tried chan struct{} // closed when storage was asked once, by Run
}

// A key signs from an instant on, until the next one does.
type key struct {
	ID     []byte    `json:"id"`
	Secret []byte    `json:"secret"`
	From   time.Time `json:"from"`

	macs *sync.Pool // of HMACs with the secret, for tokens
}

// ready prepares the key for signing.
func (k *key) ready() {
	secret := k.Secret
	k.macs = &sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}
}

type keyFile struct {
	Keys []key `json:"keys"` // by From
}

// New returns a ring for the keys in storage. Until they are read, it has the keys of
// an earlier ring, which may be nil.
func New(storage Storage, earlier *Ring) *Ring {
	r := &Ring{storage: storage, tried: make(chan struct{})}
	r.keys.Store(new([]key))
	if earlier != nil {
		r.keys.Store(earlier.keys.Load())
	}
	return r
}

// Fixed returns a ring that has one key for ever, which a secret gives. Nodes with the same
// secret need not share storage.
func Fixed(secret string) *Ring {
	digest := func(what string) []byte {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(what))
		return mac.Sum(nil)
	}
	k := key{ID: digest("throttle key ID")[:KeyIDSize], Secret: digest("throttle key")}
	k.ready()
	r := New(nil, nil)
	r.keys.Store(&[]key{k})
	r.once.Do(func() { close(r.tried) })
	return r
}

// ErrFixed is the error of [Ring.Rotate] if the config gives the key.
var ErrFixed = errors.New("the key is signing_key of the config: change it there, on all Caddys")

// Run keeps the keys up to date until ctx is done. failed is told when storage begins
// to fail.
func (r *Ring) Run(ctx context.Context, failed func(error)) {
	if r.storage == nil {
		return
	}
	failing := false
	for {
		wait := readEvery
		err := r.Maintain(ctx, time.Now())
		if err != nil {
			wait = retryEvery
			if !failing && ctx.Err() == nil {
				failed(err)
			}
		}
		failing = err != nil
		r.once.Do(func() { close(r.tried) })
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// Tried is closed when Run has asked storage once, with success or not, and told of a
// failure.
func (r *Ring) Tried() <-chan struct{} { return r.tried }

// Maintain reads the keys. If storage has none, it makes one, and a day before the
// last one's year is over it publishes the next one. If storage cannot be read, it
// makes none, and the ring keeps the keys it has.
func (r *Ring) Maintain(ctx context.Context, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, maintainLimit)
	defer cancel()
	switch keys, err := r.load(ctx); {
	case err == nil && !due(keys, now):
		r.keys.Store(&keys)
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return r.change(ctx, func(keys []key) []key {
		switch {
		case len(keys) == 0:
			return []key{newKey(now)}
		case !due(keys, now): // another node was faster
			return keys
		}
		from := keys[len(keys)-1].From.Add(Term)
		if soonest := now.Add(ahead); from.Before(soonest) {
			from = soonest
		}
		return append(keys, newKey(from))
	}, now)
}

// Rotate replaces all keys by one new one. Nothing that was signed before is accepted
// any more: here at once, on other nodes when they next read storage, which is within
// ten minutes, or as soon as they meet what the new key has signed.
func (r *Ring) Rotate(ctx context.Context, now time.Time) error {
	if r.storage == nil {
		return ErrFixed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.change(ctx, func([]key) []key { return []key{newKey(now)} }, now)
}

// change changes the keys in storage, under its lock.
func (r *Ring) change(ctx context.Context, with func([]key) []key, now time.Time) (err error) {
	if err := r.storage.Lock(ctx, lockName); err != nil {
		return fmt.Errorf("locking %s in storage: %w", lockName, err)
	}
	defer func() {
		if unlock := r.storage.Unlock(context.WithoutCancel(ctx), lockName); unlock != nil && err == nil {
			err = fmt.Errorf("unlocking %s in storage: %w", lockName, unlock)
		}
	}()
	keys, err := r.load(ctx)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	keys = with(keys)
	keys = keys[max(0, current(keys, now)-1):] // older ones are not accepted any more
	raw, err := json.Marshal(keyFile{keys})
	if err != nil {
		return err
	}
	if err := r.storage.Store(ctx, storageKey, raw); err != nil {
		return fmt.Errorf("writing %s to storage: %w", storageKey, err)
	}
	r.keys.Store(&keys)
	return nil
}

// load reads the keys from storage.
func (r *Ring) load(ctx context.Context) ([]key, error) {
	raw, err := r.storage.Load(ctx, storageKey)
	if err != nil {
		return nil, fmt.Errorf("reading %s from storage: %w", storageKey, err)
	}
	var file keyFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("reading %s from storage: %w; delete it, and all clients get new cookies", storageKey, err)
	}
	whole := len(file.Keys) > 0
	for _, k := range file.Keys {
		whole = whole && len(k.ID) == KeyIDSize && len(k.Secret) == secretSize && !k.From.IsZero()
	}
	if !whole {
		return nil, fmt.Errorf("reading %s from storage: a key is missing or incomplete; delete it, and all clients get new cookies", storageKey)
	}
	for i := range file.Keys {
		file.Keys[i].ready()
	}
	slices.SortStableFunc(file.Keys, func(a, b key) int { return a.From.Compare(b.From) })
	return file.Keys, nil
}

func newKey(from time.Time) key {
	k := key{ID: make([]byte, KeyIDSize), Secret: make([]byte, secretSize), From: from.UTC().Truncate(time.Second)}
	rand.Read(k.ID) // never fails
	rand.Read(k.Secret)
	k.ready()
	return k
}

// due reports whether the next key must be published.
func due(keys []key, now time.Time) bool {
	return !now.Before(keys[len(keys)-1].From.Add(Term - ahead))
}

// current returns the index of the key that signs, or -1 if none does yet.
func current(keys []key, now time.Time) int {
	at := -1
	for i := range keys {
		if !keys[i].From.After(now) {
			at = i
		}
	}
	return at
}

// signing returns the key that signs, or nil if there is none.
func (r *Ring) signing(now time.Time) *key {
	keys := *r.keys.Load()
	if at := current(keys, now); at >= 0 {
		return &keys[at]
	}
	return nil
}

// accepted returns the key of an ID, or nil if there is none that is accepted: the key
// that signs, the one before, or one that signs on a node whose clock is ahead. If
// the ID is unknown, storage is read again, at most once a minute.
func (r *Ring) accepted(ctx context.Context, id []byte, now time.Time) *key {
	k, known := r.find(id, now)
	if known || r.storage == nil || !r.mayRead(now) || !r.mu.TryLock() {
		return k
	}
	defer r.mu.Unlock()
	// The client's leaving must not use up the minute's read.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unknownWait)
	defer cancel()
	if keys, err := r.load(ctx); err == nil {
		r.keys.Store(&keys)
	}
	k, _ = r.find(id, now)
	return k
}

func (r *Ring) find(id []byte, now time.Time) (accepted *key, known bool) {
	keys := *r.keys.Load()
	at := current(keys, now)
	for i := range keys {
		if string(keys[i].ID) == string(id) {
			if i >= at-1 && !keys[i].From.After(now.Add(Leeway)) {
				return &keys[i], true
			}
			known = true
		}
	}
	return nil, known
}

// mayRead reports whether an unknown key may make storage be read, and counts it.
func (r *Ring) mayRead(now time.Time) bool {
	last := r.unknown.Load()
	return now.UnixNano()-last >= int64(unknownEvery) && r.unknown.CompareAndSwap(last, now.UnixNano())
}
