package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Handlers panic, clients leave, connections become tunnels, and shadows outlast
// them: whatever happens, no more are served than may be, and no slot is lost.
func TestARaceForSlotsLosesNone(t *testing.T) {
	const n, keys, each = 3, 4, 300
	zones, shadow := [2]*Zone{{Name: "a"}, {Name: "b"}}, new(Zone)
	gate := new(Gate)
	var served [2][keys]atomic.Int32
	var told, simulated atomic.Int32
	visit := func(random *rand.Rand) {
		defer func() { _ = recover() }()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if random.IntN(3) == 0 {
			time.AfterFunc(time.Duration(random.IntN(50))*time.Microsecond, cancel)
		}
		key := random.IntN(keys)
		var entries []Entry
		for i, z := range zones {
			if i == 0 || random.IntN(2) == 0 {
				entries = append(entries, Entry{
					Zone: z, Key: fmt.Sprint(key), InFlight: n, MaxWaiting: 20,
					Delay:   time.Duration(random.IntN(3)*random.IntN(40)) * time.Microsecond,
					MaxWait: time.Duration(random.IntN(2)*random.IntN(300)) * time.Microsecond,
				})
			}
		}
		simulated.Add(1)
		e := entries[0]
		e.Zone = shadow
		s := Simulate(time.Now(), []Entry{e}, func(Result) { told.Add(1) })
		defer s.Release()
		p, result := gate.Admit(ctx, time.Now(), entries, nil)
		defer p.Release()
		if (p != nil) != (result.Why == Admitted) {
			t.Errorf("got %v with %v", p, result)
		}
		if p == nil {
			return
		}
		s.Begin()
		for _, e := range entries {
			i := 0
			if e.Zone == zones[1] {
				i = 1
			}
			if got := served[i][key].Add(1); got > n {
				t.Errorf("got %d served at once, want at most %d", got, n)
			}
			defer served[i][key].Add(-1)
		}
		switch random.IntN(3) {
		case 0:
			panic("handler")
		case 1:
			time.Sleep(time.Duration(random.IntN(100)) * time.Microsecond)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		for g := range 64 {
			goroutines.Go(func() {
				random := rand.New(rand.NewPCG(uint64(g), 0))
				for range each {
					visit(random)
				}
			})
		}
		goroutines.Wait()
		pass(time.Hour)
	})
	if told.Load() != simulated.Load() {
		t.Errorf("got %d results of %d simulations", told.Load(), simulated.Load())
	}
	wantEmpty(t, zones[0], zones[1], shadow)
}

// FuzzNoSlotIsLost reads what requests do from bytes, four for each.
func FuzzNoSlotIsLost(f *testing.F) {
	f.Add([]byte{0, 10, 0, 5, 1, 3, 9, 0, 2, 0, 0, 7})
	f.Add([]byte("any text is a list of requests, some of which leave, break off or wait"))
	random := rand.New(rand.NewPCG(1, 5))
	for range 20 {
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), 4000)]
		synctest.Test(t, func(t *testing.T) {
			zones := []*Zone{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "shadow"}}
			gate := new(Gate)
			told, simulated := new(atomic.Int32), int32(0)
			for ; len(data) >= 4; data = data[4:] {
				what, when, delay, wait := data[0], data[1], data[2], data[3]
				entry := Entry{
					Key: string('a' + rune(what&1)), InFlight: int(what>>1) & 3, MaxWaiting: 5,
					Delay:   time.Duration(delay&15) * time.Millisecond,
					MaxWait: time.Duration(wait&31) * time.Millisecond,
				}
				service := time.Duration(delay>>4) * time.Millisecond
				leave := time.Duration(wait>>5) * 3 * time.Millisecond
				entry.Zone = zones[3]
				simulated++
				s := Simulate(time.Now(), []Entry{entry}, func(Result) { told.Add(1) })
				var outer, inner []Entry
				for i, z := range zones[:3] {
					if what>>(3+i)&1 == 0 {
						continue
					}
					entry.Zone = z
					if what>>6 == byte(i) {
						inner = append(inner, entry)
					} else {
						outer = append(outer, entry)
					}
				}
				go func() {
					defer func() { _ = recover() }()
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					if leave > 0 {
						time.AfterFunc(leave, cancel)
					}
					defer s.Release()
					p, _ := gate.Admit(ctx, time.Now(), outer, nil)
					defer p.Release()
					if p == nil {
						return
					}
					q, _ := gate.Admit(ctx, time.Now(), inner, nil)
					defer q.Release()
					if q == nil {
						return
					}
					s.Begin()
					time.Sleep(service)
					switch wait >> 5 {
					case 1:
						p.Release()
						time.Sleep(time.Second)
					case 2:
						s.Release()
						q.Release()
						time.Sleep(time.Second)
					case 3:
						panic("handler")
					}
				}()
				time.Sleep(time.Duration(when&7) * time.Millisecond)
				for _, z := range zones {
					z.mu.Lock()
					for _, k := range z.keys {
						if n := k.slots.Running(); n > 3 {
							t.Errorf("zone %s: got %d slots taken, want at most 3", z.Name, n)
						}
					}
					z.mu.Unlock()
				}
			}
			pass(time.Hour)
			wantEmpty(t, zones...)
			if told.Load() != simulated {
				t.Errorf("got %d results of %d simulations", told.Load(), simulated)
			}
		})
	})
}
