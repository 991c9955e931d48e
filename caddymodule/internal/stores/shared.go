// Package stores holds what outlives a config: the pool of everything that configs share, the
// memory of buckets with its snapshots, and connections to shared stores. Begin with [Join].
// It imports the stores and the metrics about them, and nothing that decides.
package stores

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// A SharedStore is a store outside of this process. Configs with the same options
// share one, so a reload keeps its connections.
type SharedStore struct {
	*sharedstore.Backend
	Name   string
	Memory *Memory // has this process's own buckets
	key    string  // in the pool

	users atomic.Int64 // and left
	close func()       // once

	// ChangesRead lets requests go on that wait at the start until this Caddy knows the bans
	// and limits that the store keeps. It may be called more than once.
	ChangesRead func()
}

// ConnectStore returns the shared store of a name and its options, or creates it with
// open. Stores with different options are different stores. Options may be secret:
// only a digest is kept. The store reports errors for which no call waits. Nothing connects before a config with the store starts. The
// caller must leave the store.
func ConnectStore(name string, options []string, open func(report func(error)) (leakybucket.Store, error)) (*SharedStore, error) {
	text, _ := json.Marshal(options) // which fails for no texts
	key := fmt.Sprintf("store %s %x", name, sha256.Sum256(text))
	// The memory is joined before: while the pool opens one entry, another one may wait for
	// whoever looks at all of them.
	local := JoinMemory(DefaultMaxBuckets)
	taken := false
	defer func() {
		if !taken {
			_ = Leave(MemoryKey) // fails for no key that was joined
		}
	}()
	store, _, err := Process.LoadOrNew(key, func() (caddy.Destructor, error) {
		s := &SharedStore{Name: name, Memory: local, key: key}
		remote, err := open(func(err error) { s.Report(err) }) // which nothing does before it is used
		if err != nil {
			return nil, err
		}
		taken = true
		s.Backend = sharedstore.NewBackend(name, remote, local.Store)
		read := make(chan struct{})
		s.ChangesRead = sync.OnceFunc(func() { close(read) })
		if _, keeps := s.Registry(); keeps {
			s.AlsoAwait(read)
		}
		s.OnCall(func(took time.Duration) { telemetry.StoreSeconds.WithLabelValues(name).Observe(took.Seconds()) })
		s.close = sync.OnceFunc(func() {
			_ = Leave(MemoryKey) // first, since it may save the buckets
			closed := make(chan struct{})
			go func() { s.Close(); close(closed) }()
			select {
			case <-closed:
			case <-time.After(closing):
			}
		})
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	return store.(*SharedStore), nil
}

// closing is how long the end of a config waits for the store. It may take a server that hangs 15 s to close
// a connection, and Caddy's unit for systemd allows 5.
const closing = time.Second

// left is a bit of SharedStore.users, which no number of users reaches: no config has the store.
const left = 1 << 62

// Hold keeps the store open until Release. Requests call it, because they may outlive their
// config.
func (s *SharedStore) Hold() { s.users.Add(1) }

// Release undoes Hold.
func (s *SharedStore) Release() {
	if s.users.Add(-1) == left {
		go s.close() // the caller need not wait for it
	}
}

// Destruct implements caddy.Destructor. It closes the store, unless requests still use it: then
// the last one does. Caddy may exit next, so it waits until settlements have ended, but not for long.
func (s *SharedStore) Destruct() error {
	if s.users.Or(left) == 0 {
		s.close()
	}
	return nil
}

// Leave gives the store up, which closes when no config uses it any more. A nil store was
// never connected.
func (s *SharedStore) Leave() error {
	if s == nil {
		return nil
	}
	return Leave(s.key)
}

// FillIn fills in the placeholders in options of a store, such as {env.X} and
// {file.X}. A placeholder without a value is an error. Errors show no values.
func FillIn(options ...string) ([]string, error) {
	repl := caddy.NewReplacer()
	filled := make([]string, len(options))
	for i, option := range options {
		var err error
		if filled[i], err = repl.ReplaceOrErr(option, true, true); err != nil {
			return nil, fmt.Errorf("filling in placeholders: %w", err)
		}
	}
	return filled, nil
}

// EachOf calls f with all entries of a type that outlive configs.
func EachOf[T any](f func(T)) {
	Process.Range(func(_, value any) bool {
		if one, ok := value.(T); ok {
			f(one)
		}
		return true
	})
}

// Process holds the state that outlives a config: the memory store, connections to
// shared stores, and the slots and queues of each in_flight. An entry lasts
// until no config uses it any more. Limits come with each request, so a config that
// fails to load cannot change how a running one decides. Only what must last as long as
// the process is a variable of the package, as the collectors of metrics are.
var Process = caddy.NewUsagePool()

// MemoryKey is the key of the process's memory of buckets.
const MemoryKey = "memory"

// Join returns the entry of a key, or creates it. The caller must leave it once.
func Join[T caddy.Destructor](key string, open func() T) T {
	value, _, _ := Process.LoadOrNew(key, func() (caddy.Destructor, error) { return open(), nil })
	return value.(T)
}

// Leave releases an entry. The last leave destructs it.
func Leave(key string) error {
	_, err := Process.Delete(key)
	return err
}
