package stores

import (
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A StoreModule is a module in the namespace throttle.stores that keeps buckets in
// this process. It needs no fallback.
type StoreModule interface {
	// Store returns the store. It must remain usable until the last request that
	// uses it has ended, which may be after the module's Cleanup.
	Store() leakybucket.Store
}

// A SharedStoreModule is a module in the namespace throttle.stores that keeps
// buckets outside of this process.
type SharedStoreModule interface {
	// SharedStore returns the store, which comes from [ConnectStore].
	SharedStore() *SharedStore
}
