// Package sharedstore makes a store that several nodes share safe to wait for. A [Store]
// is a [leakybucket.Store] around a remote one. It owns all that an outage is about, so
// its caller calls Take and Settle and knows of none. Users begin with [New] and the
// example. To change it, begin with [Store.Take], which asks, falls back or remembers.
//
// What this node keeps of an outage:
//
//	state           of       kept by     begins with                 ends with
//	closed or open  a shard  breakers    failures, see below         three trials that succeed
//	level, block    a bucket local store the store's last answer     the bucket is empty
//	seen and own    a bucket ledger      a charge taken without it   the store has confirmed it
//	whole bucket    a bucket ledger      a charge that may block     the store answers about it
//	release         a bucket releases    a reset it did not hear of  it is told
//
// A store has these parts:
//
//   - Budget: each call of the remote store has a timeout of its own. A client
//     that leaves ends no call, and a deadline of the caller's own that is sooner
//     is no failure of the store.
//   - Circuit breaker: after three failures that are at least half of the last 20
//     calls and of those in the last 10 seconds, the remote store is left alone. One
//     call at a time tries it, 100 ms later at first and every second at last: a
//     request, which waits for a fifth of the timeout, or a ping if there is none.
//     Three that succeed in a row end the outage. Each shard of a
//     [leakybucket.Sharded] store has a breaker: a take that needs one that is open
//     falls back as a whole, and others do not notice.
//   - Fallback: without the remote store a zone goes by its [Policy].
//   - Reconciliation: charges that this node admitted alone are poured into the
//     shared buckets after the outage, and blocks that it began alone are begun there.
//
// # Policies
//
// A call falls back if the remote store fails it, answers too late, or is known
// to be down. An error about one bucket ([leakybucket.ErrBadBucket]) makes only
// its own call fall back and never opens the breaker. Neither do buckets that are
// being moved ([leakybucket.ErrMoving]).
//
//	                            local                    allow           deny
//	decided by                  this node's own bucket,  nobody          nobody
//	                            with its share of the
//	                            limit
//	Decision.Fits               as that bucket says      true            false
//	Decision.Undecided          false                    true            true
//	FellBack                    true                     true            true
//	an enforced charge          if the bucket overflows  never           always
//	refuses the request
//	a shadow charge refuses it  never                    never           never
//	poured                      into that bucket, if no  nowhere         nowhere, nor is any
//	                            enforced zone refuses                    charge beside it
//	the charge is left          as the share             as it was       as it was
//	settled                     in that bucket           nowhere         nowhere
//	begins a block              if the whole limit       never           never
//	                            overflows on this node
//	told after the outage       yes                      no              no
//	remembered before it        level and block          nothing         nothing
//
// The share of one of n nodes has an n-th of the capacity, but no less than the
// dearest constant cost, and an n-th of the leak, the debt and the undelayed
// part. A computed cost above that capacity and within the shared one counts as
// that capacity. So an unread body, which costs the shared capacity by default,
// still fits an empty bucket.
//
// # Reconciliation
//
// A ledger has an entry for each bucket that this node admitted charges to, or
// may block, without the store: seen, the level that the store last showed and
// what it has confirmed since, and own, what this node admitted and the store has
// not confirmed. Both leak, seen first, as one bucket would. The invariant:
//
//	seen + own is what the shared bucket would hold if it had taken every charge
//	that this node admitted. Telling the store moves an amount from own to seen,
//	once, when the store confirms it.
//
// A call without an answer may have been executed, or be executed later. Its
// cost is doubtful: it counts as own, but is not told for a second. If by
// then the store shows a higher level than seen, up to that much is taken as
// executed, and moves to seen. The rest is told. The same goes for a settlement
// that tells and gets no answer. After that the level of the shared bucket is
//
//	at least  what was admitted, less what has leaked, and
//	at most   that, and what calls added that were refused here and executed there
//
// and never more than was admitted in total but for the latter. Three things
// make it inexact. On one of n nodes own leaks by this node's share, so more may
// be told than is left of it. A pour by another node cannot be told from a
// doubtful call, so no more is lost than calls were doubtful. And a call that is
// executed later than patience allows counts twice.
//
// # Blocks and releases
//
// A node with a share of the limits follows the buckets of requests that may be blocked
// as if it had the whole limits and no other node did anything. What overflows then has
// overflowed the shared bucket as well. The block holds on this node at once. The store
// is told its step and the rest of its length, never an instant, and of two blocks the
// later end and the larger step stay. So it may be told twice, and is never longer than
// its step. Until the store has confirmed it, this node refuses what the block refuses,
// and asks the store with probes.
//
// A bucket that is reset while the store does not answer is reset on this node, with its
// block. The store is told before it is next asked for that bucket.
//
// # When the store is told
//
// The next decision of the store about a bucket makes this node tell it. While
// there is anything to tell, a reconciler asks for those buckets every two seconds, so the
// store is told of those too that nobody asks for again here. The ledger keeps
// 200,000 entries. Without room, charges are admitted and not told. From 100,000 on, no
// further bucket is followed for blocks, and its overflows begin none. The ledger is lost
// when the process ends.
package sharedstore
