package bench

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
)

const (
	manyKeys = 1_000_000

	// manyTakes is how many takes are prepared before a benchmark makes them,
	// again and again.
	manyTakes = 1 << 21
)

// keys are strings that follow each other in memory, in the order in which they
// will be asked. Reading them costs almost nothing. None of them is the very
// string that a store has kept, just as with requests, whose keys were built just
// before.
type keys struct {
	text string
	ends []uint32
}

func (k *keys) len() int { return len(k.ends) - 1 }

func (k *keys) at(i int) string { return k.text[k.ends[i]:k.ends[i+1]] }

// ipv4Keys returns the addresses of clients as their keys.
func ipv4Keys(clients []uint32) *keys {
	text, ends := make([]byte, 0, 15*len(clients)), make([]uint32, 1, len(clients)+1)
	for _, client := range clients {
		text = ipv4(client).AppendTo(text)
		ends = append(ends, uint32(len(text)))
	}
	return &keys{string(text), ends}
}

// ipv4 returns the address of a client. All have 13 to 15 bytes.
func ipv4(client uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{100, 100 + byte(client>>16), byte(client >> 8), byte(client)})
}

// Orders in which a million clients come. They do not depend on the addresses.
var (
	everyoneOnce = sync.OnceValue(func() *keys { return ipv4Keys(everyone(rand.New(rand.NewPCG(1, 1)))) })

	uniform = sync.OnceValue(func() *keys {
		rng := rand.New(rand.NewPCG(2, 2))
		order := make([]uint32, manyTakes)
		for i := range order {
			order[i] = uint32(rng.IntN(manyKeys))
		}
		return ipv4Keys(order)
	})

	zipf = sync.OnceValue(func() *keys {
		rng := rand.New(rand.NewPCG(3, 3))
		ranks, clients := rand.NewZipf(rng, 1.1, 1, manyKeys-1), everyone(rng)
		order := make([]uint32, manyTakes)
		for i := range order {
			order[i] = clients[ranks.Uint64()]
		}
		return ipv4Keys(order)
	})

	// one is one client. Its copies are different strings, as those of many
	// clients are.
	one = sync.OnceValue(func() *keys { return ipv4Keys(make([]uint32, 64)) })
)

func everyone(rng *rand.Rand) []uint32 {
	clients := make([]uint32, manyKeys)
	for i, client := range rng.Perm(manyKeys) {
		clients[i] = uint32(client)
	}
	return clients
}

// fill asks for every client once. Each key is a string of its own, like that of
// a request, which stores may keep.
func fill(take take) {
	for all, i := everyoneOnce(), 0; i < all.len(); i++ {
		if !take(strings.Clone(all.at(i))) {
			panic("filling a store: a first take was refused")
		}
	}
}
