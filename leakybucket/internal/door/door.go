// Package door is the short way from a Limiter to a store in memory, which spares it the
// arguments and answers of a store that may fail.
package door

// An Opener is a store that has the short way.
type Opener interface {
	// OpenZone returns a zone of the store, or nil unless that is the one that is asked: another may
	// embed it, and with it this method, and have a Take of its own.
	OpenZone(asked any, name string) Zone
}

// A Zone takes costs of single buckets.
type Zone interface {
	// Take does what Store.Take does of one charge without debt, ceiling and block. The key is one
	// of a Limiter, and at is in microseconds.
	Take(key string, capacity, leak, cost float64) (level float64, at int64, fits bool)
}
