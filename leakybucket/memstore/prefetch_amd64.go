//go:build gc && !purego

package memstore

// prefetch has the home of a hash and its tag come into the cache while the clock is read, which is most
// of the time of a decision with a million keys. It needs no lock: another goroutine may change the
// table meanwhile, but what is prefetched is not read.
//
//go:noescape
func prefetch(sh *shard, hash uint64)
