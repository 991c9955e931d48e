package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Benchmark measures takes of one charge, on the store's own clock:
//
//	keys=1/result=allowed     everybody in one bucket, which has room
//	keys=1/result=refused     everybody in one bucket, which is full
//	keys=1/result=disagreed   the same, by nodes that disagree about its leak
//	keys=1e6/order=uniform    a million clients, all alike
//	keys=1e6/order=zipf       a million clients, a few of which ask for most
//	first-touch               every take makes a bucket
//
// With -short there are 1e4 clients in place of a million, for stores that
// would take minutes to meet them all once.
func Benchmark(b *testing.B, open Open) {
	b.Run("keys=1", func(b *testing.B) {
		b.Run("result=allowed", func(b *testing.B) { benchmarkOneKey(b, open, true, roomyLimit) })
		b.Run("result=refused", func(b *testing.B) { benchmarkOneKey(b, open, false, limit(1, 1e-8)) })
		b.Run("result=disagreed", func(b *testing.B) { benchmarkOneKey(b, open, false, limit(1, 1e-8), limit(1, 2e-8)) })
	})
	name, clients := "keys=1e6", 1_000_000
	if testing.Short() {
		name, clients = "keys=1e4", 10_000
	}
	b.Run(name, func(b *testing.B) { benchmarkClients(b, open, clients) })
	b.Run("first-touch", func(b *testing.B) { benchmarkFirstTouch(b, open) })
}

// roomyLimit fits whatever a benchmark can pour. What is poured first, to meet
// a client, takes ten minutes to drain, so that no bucket is there to forget.
var roomyLimit = limit(1e9, 2)

const meetingCost = 1200

func benchmarkOneKey(b *testing.B, open Open, fits bool, limits ...leakybucket.Limit) {
	store, _ := open(b, Need{})
	var all []leakybucket.Charge
	var order []uint32
	for i, l := range limits {
		all, order = append(all, charge(address(0), l, 1)), append(order, uint32(i))
	}
	if err := store.Take(context.Background(), all[:1], make([]leakybucket.Decision, 1)); err != nil {
		b.Fatalf("taking a charge: %v", err)
	}
	benchmarkTakes(b, store, all, order, fits)
}

// benchmarkClients meets every client once before it measures.
func benchmarkClients(b *testing.B, open Open, clients int) {
	store, _ := open(b, Need{MaxBuckets: 2 * clients})
	all := make([]leakybucket.Charge, clients)
	for i := range all {
		all[i] = charge(address(i), roomyLimit, meetingCost)
	}
	var next atomic.Int64
	race(16, 1, func(_, _ int) {
		decisions := make([]leakybucket.Decision, 1)
		for i := next.Add(1) - 1; i < int64(clients); i = next.Add(1) - 1 {
			if err := store.Take(context.Background(), all[i:i+1], decisions); err != nil {
				b.Errorf("taking a charge: %v", err)
				return
			}
		}
	})
	for i := range all {
		all[i].Cost = 1
	}
	rng := rand.New(rand.NewPCG(1, 1))
	uniform, zipf := make([]uint32, 1<<20), make([]uint32, 1<<20)
	skewed := rand.NewZipf(rng, 1.1, 1, uint64(clients-1))
	for i := range uniform {
		uniform[i] = uint32(rng.IntN(clients))
		zipf[i] = uint32(skewed.Uint64())
	}
	b.Run("order=uniform", func(b *testing.B) { benchmarkTakes(b, store, all, uniform, true) })
	b.Run("order=zipf", func(b *testing.B) { benchmarkTakes(b, store, all, zipf, true) })
}

// benchmarkTakes takes all[order[i]] one after the other, each goroutine from a
// place of its own.
func benchmarkTakes(b *testing.B, store leakybucket.Store, all []leakybucket.Charge, order []uint32, fits bool) {
	var goroutines atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		ctx := context.Background()
		decisions := make([]leakybucket.Decision, 1)
		at := int(goroutines.Add(1)) * 104_729
		for pb.Next() {
			at++
			i := order[at%len(order)]
			if err := store.Take(ctx, all[i:i+1], decisions); err != nil {
				b.Errorf("taking a charge: %v", err)
				return
			}
			if decisions[0].Poured != fits {
				b.Errorf("take: got poured %v, want %v", decisions[0].Poured, fits)
				return
			}
		}
	})
}

// benchmarkFirstTouch goes through a block of addresses again and again, under
// another zone each time.
func benchmarkFirstTouch(b *testing.B, open Open) {
	const block = 1 << 16
	all := make([]leakybucket.Charge, block)
	for i := range all {
		all[i] = charge(address(i), roomyLimit, meetingCost)
	}
	zones := make([]string, b.N/block+2)
	for i := range zones {
		zones[i] = fmt.Sprint("zone", i)
	}
	store, _ := open(b, Need{MaxBuckets: 2 * max(b.N, block)})
	var next atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		ctx := context.Background()
		charge := make([]leakybucket.Charge, 1)
		decisions := make([]leakybucket.Decision, 1)
		for pb.Next() {
			i := int(next.Add(1) - 1)
			charge[0] = all[i%block]
			charge[0].Zone = zones[i/block]
			if err := store.Take(ctx, charge, decisions); err != nil {
				b.Errorf("taking a charge: %v", err)
				return
			}
		}
	})
}

// address returns an IPv4 address as the key of client i.
func address(i int) string {
	return fmt.Sprintf("%d.%d.%d.%d", 10+i>>24&0x7f, i>>16&0xff, i>>8&0xff, i&0xff)
}
