package memstore

// prefetch loads the cache lines of a slot and of its tag without waiting for them.
//
//go:noescape
func prefetch(slots *slot, tags *uint8, at int)
