package servertest

import (
	"context"
	"io/fs"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
)

// MemoryStorage is a Caddy storage in memory, without goroutines of its own, which would
// outlive virtual time.
type MemoryStorage struct {
	certmagic.Storage // only what is below is used

	mu     sync.Mutex
	values map[string][]byte
}

func init() { caddy.RegisterModule(new(MemoryStorage)) }

func (*MemoryStorage) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.storage.memory_test", New: func() caddy.Module { return &MemoryStorage{values: make(map[string][]byte)} }}
}

func (s *MemoryStorage) CertMagicStorage() (certmagic.Storage, error) { return s, nil }

func (s *MemoryStorage) Load(_ context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value, found := s.values[key]; found {
		return value, nil
	}
	return nil, fs.ErrNotExist
}

func (s *MemoryStorage) Store(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
	return nil
}

func (*MemoryStorage) Lock(context.Context, string) error { return nil }

func (*MemoryStorage) Unlock(context.Context, string) error { return nil }
