package signer

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
)

// A memoryStorage is storage that can be made to fail.
type memoryStorage struct {
	lock  chan struct{}
	mu    sync.Mutex
	value []byte
	fails error
	loads int
}

func newMemoryStorage() *memoryStorage { return &memoryStorage{lock: make(chan struct{}, 1)} }

func (s *memoryStorage) Load(ctx context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads++
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

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func day(n int) time.Time { return began.Add(time.Duration(n) * 24 * time.Hour) }

func ringAt(t *testing.T, storage Storage, now time.Time) *Ring {
	t.Helper()
	r := New(storage, nil)
	maintain(t, r, now)
	return r
}

func maintain(t *testing.T, r *Ring, now time.Time) {
	t.Helper()
	if err := r.Maintain(t.Context(), now); err != nil {
		t.Fatal(err)
	}
}

var testBound = Bound{Purpose: "test", Host: "example.com", Zone: "login", Subject: "alice"}

const testSays = "sixteen bytes, 1"

func sign(t *testing.T, r *Ring, now time.Time) string {
	t.Helper()
	token, ok := r.Sign(&testBound, []byte(testSays), now)
	if !ok {
		t.Fatal("got no token")
	}
	return token
}

func (r *Ring) accepts(token string, now time.Time) bool {
	var says [len(testSays)]byte
	return r.Open(context.Background(), token, &testBound, says[:], now) && string(says[:]) == testSays
}

func TestNodesThatShareStorageMakeOneKeyAndAcceptEachOthersTokens(t *testing.T) {
	storage := &certmagic.FileStorage{Path: filepath.Join(t.TempDir(), "caddy")}
	nodes := make([]*Ring, 4)
	var all sync.WaitGroup
	for i := range nodes {
		nodes[i] = New(storage, nil)
		all.Go(func() {
			if err := nodes[i].Maintain(t.Context(), began); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	token := sign(t, nodes[0], began)
	for i, node := range nodes {
		if len(node.all()) != 1 || !node.accepts(token, began) {
			t.Errorf("node %d has %d keys and accepts the token of another: %v, want one key and true", i, len(node.all()), node.accepts(token, began))
		}
	}
}

func TestTheNextKeyIsPublishedADayAheadAndTwoAreAccepted(t *testing.T) {
	storage := newMemoryStorage()
	r := ringAt(t, storage, day(0))
	first := sign(t, r, day(0))
	maintain(t, r, day(363))
	if n := len(r.all()); n != 1 {
		t.Errorf("two days before the year is over: got %d keys, want 1", n)
	}
	maintain(t, r, day(364))
	if n := len(r.all()); n != 2 {
		t.Errorf("a day before: got %d keys, want 2", n)
	}
	last := sign(t, r, day(364))
	if last[:5] != first[:5] {
		t.Error("the next key signs before its time")
	}
	second := sign(t, r, day(365))
	if second[:5] == first[:5] {
		t.Error("the first key signs after its year")
	}
	if !r.accepts(last, day(500)) || !r.accepts(second, day(500)) {
		t.Error("in the second year: got one of two tokens refused, want both accepted")
	}
	maintain(t, r, day(729))
	if n := len(r.all()); n != 3 {
		t.Errorf("a day before the third year: got %d keys, want 3", n)
	}
	if r.accepts(last, day(730)) {
		t.Error("in the third year: got a token of the first accepted")
	}
	maintain(t, r, day(730+364))
	if n := len(r.all()); n != 3 {
		t.Errorf("in the fourth year: got %d keys, want those that are of use, 3", n)
	}
	r = ringAt(t, storage, day(3000)) // it was off for years
	if keys := r.all(); !keys[len(keys)-1].From.Equal(day(3001)) {
		t.Errorf("after years: got a key from %v on, want a day from now", keys[len(keys)-1].From)
	}
}

func TestUnreadableStorageNeverMakesAKey(t *testing.T) {
	good := ringAt(t, newMemoryStorage(), began)
	for name, damage := range map[string]func(*memoryStorage){
		"no answer": func(s *memoryStorage) { s.fails = errors.New("permission denied") },
		"cut off":   func(s *memoryStorage) { s.value = s.value[:len(s.value)/2] },
		"empty":     func(s *memoryStorage) { s.value = []byte{} },
		"no keys":   func(s *memoryStorage) { s.value = []byte(`{"keys":[]}`) },
		"a key is short": func(s *memoryStorage) {
			s.value = []byte(`{"keys":[{"id":"AAAAAA==","secret":"AA==","from":"2026-01-01T00:00:00Z"}]}`)
		},
		"something other": func(s *memoryStorage) { s.value = []byte(`[]`) },
	} {
		storage := newMemoryStorage()
		r := ringAt(t, storage, began)
		token := sign(t, r, began)
		damage(storage)
		before := string(storage.value)
		if err := r.Maintain(t.Context(), day(364)); err == nil {
			t.Errorf("%s: got no error", name)
		}
		if !r.accepts(token, day(10)) {
			t.Errorf("%s: got a token refused, want the keys that were read kept", name)
		}
		fresh := New(storage, nil)
		if err := fresh.Maintain(t.Context(), day(364)); err == nil {
			t.Errorf("%s: got no error for a new node", name)
		}
		if _, ok := fresh.Sign(&testBound, nil, began); ok {
			t.Errorf("%s: got a token of a node that has no key", name)
		}
		if string(storage.value) != before {
			t.Errorf("%s: got storage changed", name)
		}
		reloaded := New(storage, good)
		if !reloaded.accepts(sign(t, good, began), began) {
			t.Errorf("%s: got a token of the last config refused after a reload", name)
		}
	}
}

func TestAnUnknownKeyIsLookedUpOnceAMinute(t *testing.T) {
	storage := newMemoryStorage()
	a, b := ringAt(t, storage, began), ringAt(t, storage, began)
	if err := a.Rotate(t.Context(), began.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	now := began.Add(time.Hour)
	token := sign(t, a, now)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if !b.Open(gone, token, &testBound, make([]byte, len(testSays)), now) {
		t.Error("got the token of another node's new key refused, want storage read again, although the client has left")
	}
	other := ringAt(t, newMemoryStorage(), began)
	forged := sign(t, other, now)
	loads := storage.loads
	for second := range 240 {
		b.accepts(forged, now.Add(time.Duration(second)*time.Second))
	}
	if n := storage.loads - loads; n != 3 {
		t.Errorf("got %d reads in four minutes of forged tokens after a read, want 3", n)
	}
	storage.fails = errors.New("down")
	if b.accepts(forged, now.Add(time.Hour)) || !b.accepts(sign(t, b, now), now.Add(time.Hour)) {
		t.Error("got another verdict while storage fails, want that of the keys that are known")
	}
}

func TestRotatingRevokesAllTokens(t *testing.T) {
	storage := newMemoryStorage()
	a, b := ringAt(t, storage, began), ringAt(t, storage, began)
	old := sign(t, a, began)
	if err := a.Rotate(t.Context(), began.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	now := began.Add(time.Hour)
	if a.accepts(old, now) {
		t.Error("got an old token accepted where the keys were rotated")
	}
	maintain(t, b, now)
	if b.accepts(old, now) || !b.accepts(sign(t, a, now), now) {
		t.Error("got another node not follow")
	}
	storage.fails = errors.New("read-only")
	if err := a.Rotate(t.Context(), now); err == nil {
		t.Error("got no error although nothing was rotated")
	}
}

func TestAStuckLockDelaysNobodyForEver(t *testing.T) {
	storage := newMemoryStorage()
	storage.lock <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := New(storage, nil).Maintain(ctx, began); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the lock given up", err)
	}
}

func (r *Ring) all() []key { return *r.keys.Load() }
