package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	// slots is how many a cluster has. As a shard it is that of slots without a master.
	slots = 16384

	// shardsEvery is how often the cluster is asked which master has which slot.
	shardsEvery = 5 * time.Second
)

// shards knows which slots of a cluster share a master, and so fail together. The number
// of a shard is its lowest slot: it stays when a replica takes over.
type shards struct {
	table atomic.Pointer[[slots]uint16] // nil while it is not known
}

// of returns the shard of a slot. All slots are one while their masters are not known.
func (s *shards) of(slot uint16) int {
	if table := s.table.Load(); table != nil {
		return int(table[slot])
	}
	return 0
}

// follow keeps up with slots that move, until the connection is closed.
func (s *shards) follow(c *connection) {
	ticker := time.NewTicker(shardsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-c.ending.Done():
			return
		case <-ticker.C:
			if client, err := c.get(); err == nil {
				_ = s.learn(client)
			}
		}
	}
}

// learn asks a node of the cluster. If it fails, the shards stay as they are.
func (s *shards) learn(client rueidis.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	answer, err := client.Do(ctx, client.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return err
	}
	var masters [slots]string
	for _, r := range answer {
		first, last, master, err := slotRange(r)
		if err != nil {
			return err
		}
		for slot := first; slot <= last; slot++ {
			masters[slot] = master
		}
	}
	table, lowest := new([slots]uint16), map[string]uint16{"": slots}
	for slot, master := range masters {
		if _, known := lowest[master]; !known {
			lowest[master] = uint16(slot)
		}
		table[slot] = lowest[master]
	}
	s.table.Store(table)
	return nil
}

// slotRange reads an element of CLUSTER SLOTS: the first slot and the last one, and
// the address, port and ID of their master.
func slotRange(r rueidis.RedisMessage) (first, last int64, master string, err error) {
	parts, err := r.ToArray()
	if err != nil || len(parts) < 3 {
		return 0, 0, "", errGarbage
	}
	first, errFirst := parts[0].AsInt64()
	last, errLast := parts[1].AsInt64()
	node, errNode := parts[2].ToArray()
	if errors.Join(errFirst, errLast, errNode) != nil || first < 0 || last >= slots || len(node) < 3 {
		return 0, 0, "", errGarbage
	}
	master, err = node[2].ToString()
	return first, last, master, err
}

// Shard implements [leakybucket.Sharded]. In a cluster, buckets share a shard if the
// same master keeps them. Without one, all do.
func (s *Store) Shard(c *leakybucket.Charge) int {
	if s.connection.target.mode != cluster {
		return 0
	}
	return s.connection.shards.of(s.slotOfCharge(c))
}

// outcomes are the errors of calls about several slots.
type outcomes struct {
	shards *shards

	mu     sync.Mutex
	worst  error
	failed []int // shards
}

func (o *outcomes) add(slot uint16, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.worst = graver(o.worst, err)
	if err != nil && !isOfBuckets(err) {
		o.failed = append(o.failed, o.shards.of(slot))
	}
}

// err returns the gravest error, and says which shards failed.
func (o *outcomes) err() error {
	if len(o.failed) == 0 {
		return o.worst
	}
	return &leakybucket.ShardError{Shards: o.failed, Err: o.worst}
}
