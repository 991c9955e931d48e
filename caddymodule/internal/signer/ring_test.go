package signer

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"

	"github.com/caddyserver/certmagic"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A memoryStorage is storage that can be made to fail.
type memoryStorage struct {
	lock  chan struct{}
	mu    sync.Mutex
	value []byte
	fails error
}

func newMemoryStorage() *memoryStorage { return &memoryStorage{lock: make(chan struct{}, 1)} }

func (s *memoryStorage) Load(ctx context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.fails != nil:
		return nil, s.fails
	case s.value == nil:
		return nil, fs.ErrNotExist
	}
	return s.value, ctx.Err()
}

func (s *memoryStorage) Store(ctx context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return s.fails
	}
	s.value = value
	return nil
}

func (s *memoryStorage) Lock(ctx context.Context, name string) error {
	select {
	case s.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *memoryStorage) Unlock(context.Context, string) error {
	<-s.lock
	return nil
}

func ringOf(t *testing.T, storage Storage) *Ring {
	t.Helper()
	r := new(Ring)
	check.OK(t, r.Maintain(t.Context(), storage))
	return r
}

var testBound = Bound{Purpose: "test", Host: "example.com", Zone: "login", Subject: "alice"}

const testSays = "sixteen bytes, 1"

func sign(t *testing.T, r *Ring) string {
	t.Helper()
	token, ok := r.Sign(&testBound, []byte(testSays))
	check.Assume(t, ok, "got no token")
	return token
}

func (r *Ring) accepts(token string) bool {
	var says [len(testSays)]byte
	_, genuine := r.Open(token, &testBound, says[:])
	return genuine && string(says[:]) == testSays
}

func TestNodesThatShareStorageMakeOneKeyAndAcceptEachOthersTokens(t *testing.T) {
	storage := &certmagic.FileStorage{Path: filepath.Join(t.TempDir(), "caddy")}
	nodes := make([]*Ring, 4)
	var all sync.WaitGroup
	for i := range nodes {
		nodes[i] = new(Ring)
		all.Go(func() {
			check.NoError(t, nodes[i].Maintain(t.Context(), storage))
		})
	}
	all.Wait()
	token := sign(t, nodes[0])
	for i, node := range nodes {
		check.That(t, node.accepts(token), "node %d: got the token of another refused", i)
	}
}

func TestUnreadableStorageNeverMakesAKey(t *testing.T) {
	for name, damage := range map[string]func(*memoryStorage){
		"no answer": func(s *memoryStorage) { s.fails = errors.New("permission denied") },
		"cut off":   func(s *memoryStorage) { s.value = s.value[:len(s.value)/2] },
		"empty":     func(s *memoryStorage) { s.value = []byte{} },
		"too long":  func(s *memoryStorage) { s.value = append(s.value[:keySize:keySize], 0) },
	} {
		storage := newMemoryStorage()
		r := ringOf(t, storage)
		token := sign(t, r)
		damage(storage)
		before := string(storage.value)
		check.That(t, r.Maintain(t.Context(), storage) != nil, "%s: got no error", name)
		check.That(t, r.accepts(token), "%s: got a token refused, want the key that was read kept", name)
		fresh := new(Ring)
		check.That(t, fresh.Maintain(t.Context(), storage) != nil, "%s: got no error for a new node", name)
		_, ok := fresh.Sign(&testBound, nil)
		check.That(t, !ok, "%s: got a token of a node that has no key", name)
		check.That(t, string(storage.value) == before, "%s: got storage changed", name)
	}
}

func TestAnotherKeyInStorageRevokesAllTokens(t *testing.T) {
	storage := newMemoryStorage()
	a := ringOf(t, storage)
	old := sign(t, a)
	storage.value = nil
	b := ringOf(t, storage)
	check.OK(t, a.Maintain(t.Context(), storage))
	check.That(t, !a.accepts(old) && a.accepts(sign(t, b)), "got another node not follow")
}

func TestAStuckLockDelaysNobodyForEver(t *testing.T) {
	storage := newMemoryStorage()
	storage.lock <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check.Is(t, new(Ring).Maintain(ctx, storage), context.Canceled, "want the lock given up")
}
