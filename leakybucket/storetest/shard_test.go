package storetest

import (
	"hash/crc32"
	"math/rand/v2"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

var shardMutants = []mutant{
	{"shards by what is asked", "a bucket has one shard", bugs{shard: func(c leakybucket.Charge) int { return int(c.Cost) % 3 }}},
	{"shards by the group of shadow", "a bucket has one shard", bugs{shard: func(c leakybucket.Charge) int { return int(c.Shadow) }}},
	{"asks any shard", "a bucket has one shard", bugs{shard: func(leakybucket.Charge) int { return rand.N(3) }}},
	{"has a shard for each bucket", "shards are few", bugs{shard: func(c leakybucket.Charge) int {
		return int(crc32.ChecksumIEEE([]byte(c.Key)))
	}}},
}
