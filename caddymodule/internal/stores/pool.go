// Package stores holds what outlives a config: the pool of everything that configs share, the
// memory of buckets with its snapshots, and connections to shared stores. Begin with [Join].
// It imports the stores and the metrics about them, and nothing that decides.
package stores

import (
	"github.com/caddyserver/caddy/v2"
)

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
// shared stores, the blocklist, and the queues and slots of each zone. An entry lasts
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
