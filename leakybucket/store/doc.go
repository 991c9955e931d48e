// Package store has what a writer of a [leakybucket.Store] needs, and nothing that a user of one
// does.
//
// Between reading and writing its buckets, a store calls [TakeAll], or
// [leakybucket.Charge.Take] for a single charge, and [leakybucket.Settlement.Apply] to correct
// one. [Expiry] says when a state need no longer be kept. Package storetest holds every store
// to the same answers; its example is a whole store.
//
// A store may also implement [Resetter], [Lister] and [Registry], which callers find by type
// assertion.
package store
