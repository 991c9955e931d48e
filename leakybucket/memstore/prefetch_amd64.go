package memstore

// prefetch loads the cache line of a slot without waiting for it.
//
//go:noescape
func prefetch(s *slot)
