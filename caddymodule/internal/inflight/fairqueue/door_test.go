package fairqueue

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// A door is what a caller does with a queue: a lock, a channel for each request that
// waits, and a timer.
type door struct {
	mu    sync.Mutex
	queue Queue
	slots int

	// Requests with a slot, counted apart from the queue, and by how many they were
	// more than the slots when one was given.
	serving, most int
}

var errRefused = errors.New("refused")

// through serves a request, which waits for its slot before.
func (d *door) through(ctx context.Context, r *Request, serve func()) error {
	granted := make(chan error, 1)
	r.Owner = granted
	d.mu.Lock()
	decision := d.queue.Arrive(r)
	limit := d.queue.limits.MaxWait
	if decision.Displaced != nil {
		decision.Displaced.Owner.(chan error) <- errRefused
	}
	if decision.Outcome == Served {
		d.grant()
	}
	d.mu.Unlock()

	switch decision.Outcome {
	case Served:
	case Waiting:
		timer := time.NewTimer(limit)
		defer timer.Stop()
		var err error
		select {
		case err = <-granted:
		case <-timer.C:
			err = d.leave(r, granted)
		case <-ctx.Done():
			err = d.leave(r, granted)
		}
		if err != nil {
			return err
		}
	default:
		return errRefused
	}
	began := time.Now()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.serving--
		d.queue.Release(r, time.Since(began))
		d.advance()
	}()
	serve()
	return nil
}

// leave gives a request's place up, unless it has lost or left it meanwhile.
func (d *door) leave(r *Request, granted chan error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue.Leave(r) {
		return errRefused
	}
	return <-granted
}

// advance gives the free slots away. The caller holds the lock.
func (d *door) advance() {
	for r := d.queue.Next(); r != nil; r = d.queue.Next() {
		d.grant()
		r.Owner.(chan error) <- nil
	}
}

func (d *door) grant() {
	d.serving++
	d.most = max(d.most, d.serving-d.slots)
}

// setSlots changes the number of slots, as a reload does.
func (d *door) setSlots(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slots = n
	d.queue.SetLimits(Limits{InFlight: n, MaxWait: 5 * time.Second, MaxWaiting: 40})
	d.advance()
}

func TestNoSlotIsLostOrGivenTwice(t *testing.T) {
	seed := testseed.Of(t)
	t.Log("seed:", seed)
	for round := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, round))
			upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
			d := &door{queue: Queue{Common: new(Common)}}
			d.setSlots(5)
			served, refused, panicked := 0, 0, 0
			var count sync.Mutex
			for range 500 {
				time.Sleep(upTo(100 * time.Millisecond))
				if random.IntN(50) == 0 {
					d.setSlots(3 + random.IntN(5)) // those that are lowered drain
				}
				r := &Request{Claim: &Claim{Rank: Rank(random.IntN(Ranks)), Keys: [2]string{strconv.Itoa(random.IntN(40))}}}
				ctx, cancel := context.WithCancel(context.Background())
				if random.IntN(5) == 0 {
					time.AfterFunc(upTo(time.Second), cancel)
				}
				lasts, panics := upTo(time.Second), random.IntN(10) == 0
				go func() {
					defer cancel()
					defer func() {
						if recover() != nil {
							count.Lock()
							panicked++
							count.Unlock()
						}
					}()
					err := d.through(ctx, r, func() {
						time.Sleep(lasts)
						if panics {
							panic("the handler")
						}
					})
					count.Lock()
					defer count.Unlock()
					if err != nil {
						refused++
					} else {
						served++
					}
				}()
				synctest.Wait()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if d.most > 0 {
				t.Errorf("got %d requests served beyond the slots", d.most)
			}
			if served+refused+panicked != 500 || refused == 0 || panicked == 0 {
				t.Errorf("got %d served, %d refused, %d panicked of 500", served, refused, panicked)
			}
			if q := &d.queue; q.running != 0 || q.waiting != 0 || len(q.keys) != 0 {
				t.Errorf("got %d running, %d waiting, %d keys, want none", q.running, q.waiting, len(q.keys))
			}
			d.setSlots(5)
			for i := range 5 {
				come(t, &d.queue, Served, First, strconv.Itoa(i))
			}
			come(t, &d.queue, Waiting, First, "one more")
		})
	}
}
