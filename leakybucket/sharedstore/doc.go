// Package sharedstore puts a timeout, a circuit breaker and a fallback around a store that
// several nodes share. To change it, begin with [Store.Take]. Users wrap the store that they opened:
//
//	store := sharedstore.New(remote, sharedstore.Options{Nodes: 4}, sharedstore.Log(slog.Default()))
//	defer store.Close() // closes the remote store, too
//
// # Through an outage
//
// Each call of the store has a timeout. If it fails or takes longer, its zones follow their
// [Policy]. When a fifth of the calls fail, or twenty in a row, the store is down, and nobody
// waits for it. This node tries it once a second, and after three answers in a row the outage is
// over. With the policy [Local], a key meanwhile has a bucket in this node's memory, with this
// node's share of the limit: capacity and leak divided by the number of nodes, but never less
// capacity than the zone's largest constant cost, or than the cost asked for. The local bucket
// starts empty, and is kept for the next outage. It is not written to the store, whose buckets
// leak meanwhile. So around outages a client gets at most what the shared bucket admits, plus,
// on each node, what one local bucket admits. A node that
// is killed in an outage starts its share anew.
//
// # Blocks
//
// A block that the store has reported holds on this node through an outage. With one node,
// overflowing the local bucket begins a block, which holds on this node until its end, also
// when the store is back. With several nodes none begins: a share is no limit. Takes,
// [Store.Known] and [Store.List] agree on the blocks that hold.
//
// # The first connection
//
// A process that starts has not reached the store yet, and its local buckets are empty. So
// until it has, and for two seconds at most, requests wait instead of falling back: up to a
// thousand at once, and none that only shadow zones concern. If the store does not answer by
// then, it is down. A [leakybucket.Limiter] waits no longer than its own Timeout, also then.
package sharedstore
