package memcachedstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const (
	// mostRounds is how often a call may lose to other processes, and again as often to give back.
	mostRounds = 10

	// longestPause is the longest pause after the first lost round; after each, it doubles.
	longestPause = 500 * time.Microsecond

	keptLonger = 10 * time.Second

	// longestRelative is the longest expiry that Memcached takes for a duration.
	longestRelative = 30 * 24 * time.Hour
)

var errContended = errors.New("memcached: other processes write these buckets all the time; nothing was charged")

// A call takes charges together, or settles some, or resets a bucket.
type call struct {
	reset     string // the name of the bucket
	charges   []leakybucket.Charge
	names     []string // of their buckets
	decisions []leakybucket.Decision
	// settlements of a call that takes charges give back what a lost round has poured.
	settlements []settlement
	lost        int           // rounds
	done        chan struct{} // closed at the end
	err         error
}

func (c *call) buckets() int { return len(c.names) + len(c.settlements) }

func (c *call) end(err error) {
	c.err = errors.Join(c.err, err)
	close(c.done)
}

// A settlement is that of the bucket with a name.
type settlement struct {
	name string
	leakybucket.Settlement
}

// A bucket is one item, as a round has read it and leaves it.
type bucket struct {
	name  string
	item  *memcache.Item // nil if there is none
	state leakybucket.State
	owner *leakybucket.Charge // the last that wrote it; nil if nothing did
	lost  bool                // another process has written it since it was read
	err   error
}

// send answers calls. No call waits for one that has lost a bucket, which comes again later.
func (s *Store) send(_ struct{}, calls []*call) {
	buckets, err := s.read(calls)
	if err != nil {
		for _, c := range calls {
			c.end(err)
		}
		return
	}
	now := s.now()
	for _, c := range calls {
		c.apply(buckets, now)
		if c.reset != "" {
			c.err = s.delete(c.reset)
		}
	}
	s.write(buckets, now)
	for _, c := range calls {
		if c.ended(buckets) {
			s.sendAgain(c)
		} else {
			c.end(nil)
		}
	}
}

// sendAgain sends a call again that has lost a bucket. One that has lost too often only gives back.
func (s *Store) sendAgain(c *call) {
	if c.lost++; c.lost == mostRounds && len(c.charges) > 0 {
		c.charges, c.names, c.err = nil, nil, errContended
	}
	if c.lost == 2*mostRounds || c.buckets() == 0 {
		c.err = errContended
		c.end(nil)
		return
	}
	time.AfterFunc(rand.N(longestPause<<((c.lost-1)%mostRounds)), func() { // so that two processes do not meet again
		if err := s.lanes.Do(context.Background(), struct{}{}, c, c.buckets()); err != nil {
			c.end(err)
		}
	})
}

func (s *Store) read(calls []*call) (map[string]*bucket, error) {
	buckets := make(map[string]*bucket)
	for _, c := range calls {
		for _, name := range c.names {
			buckets[name] = &bucket{name: name}
		}
		for _, of := range c.settlements {
			buckets[of.name] = &bucket{name: of.name}
		}
	}
	names := slices.Collect(maps.Keys(buckets))
	items, err := s.client.GetMulti(names)
	for range connections { // a server that has restarted has closed those that are idle
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			items, err = s.client.GetMulti(names)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading from memcached: %w", err)
	}
	for name, b := range buckets { // a server may answer what nobody has asked for
		if b.item = items[name]; b.item != nil {
			b.state, b.err = parse(b.item)
		}
	}
	return buckets, nil
}

// apply settles, and then decides the charges.
func (c *call) apply(buckets map[string]*bucket, now leakybucket.Instant) {
	for i := range c.settlements {
		of := &c.settlements[i]
		buckets[of.name].settle(&of.Settlement, now)
	}
	states := make([]leakybucket.State, len(c.charges))
	for i, name := range c.names {
		if c.err = buckets[name].err; c.err != nil {
			return
		}
		states[i] = buckets[name].state
	}
	store.TakeAll(c.charges, states, now, c.decisions)
	for i, name := range c.names { // the last charge of a bucket has its final state
		b := buckets[name]
		if states[i] != b.state {
			b.state, b.owner = states[i], &c.charges[i]
		}
	}
}

func (b *bucket) settle(of *leakybucket.Settlement, now leakybucket.Instant) {
	if b.err == nil && (b.item != nil || b.owner != nil || of.Creates()) {
		if state := of.Apply(b.state, now); state != b.state {
			b.state, b.owner = state, &of.Charge
		}
	}
}

// write writes the buckets that have changed, many at once.
func (s *Store) write(buckets map[string]*bucket, now leakybucket.Instant) {
	var all sync.WaitGroup
	places := make(chan struct{}, connections)
	for _, b := range buckets {
		if b.owner == nil {
			continue
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			b.write(s.client, now)
		})
	}
	all.Wait()
}

func (s *Store) delete(name string) error {
	if err := s.client.Delete(name); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
		return fmt.Errorf("resetting a bucket in memcached: %w", err)
	}
	return nil
}

func (b *bucket) write(client *memcache.Client, now leakybucket.Instant) {
	kept := max(0, store.Expiry(b.owner, &b.state).Sub(now)) + keptLonger
	if b.item == nil {
		b.err = client.Add(&memcache.Item{Key: b.name, Value: format(&b.state), Expiration: expiration(kept)})
	} else {
		b.item.Value, b.item.Expiration = format(&b.state), expiration(kept)
		b.err = client.CompareAndSwap(b.item)
	}
	switch {
	case errors.Is(b.err, memcache.ErrCASConflict), errors.Is(b.err, memcache.ErrNotStored), errors.Is(b.err, memcache.ErrCacheMiss):
		b.lost, b.err = true, nil
	case b.err != nil:
		b.err = fmt.Errorf("writing to memcached: %w", b.err)
	}
}

// ended takes in how the round ended for the call, and reports whether another is needed. What
// got an error is not repeated: a write that was not answered may have been executed.
func (c *call) ended(buckets map[string]*bucket) (again bool) {
	if len(c.charges) == 0 {
		for _, of := range c.settlements {
			c.err = cmp.Or(c.err, buckets[of.name].err)
		}
	}
	c.settlements = slices.DeleteFunc(c.settlements, func(of settlement) bool { return !buckets[of.name].lost })
	if len(c.charges) == 0 {
		return len(c.settlements) > 0
	}
	for _, name := range c.names {
		c.err = cmp.Or(c.err, buckets[name].err)
		again = again || buckets[name].lost
	}
	if c.err != nil || !again {
		return false
	}
	for i, d := range c.decisions {
		if name := c.names[i]; d.Poured && !buckets[name].lost {
			c.settlements = append(c.settlements, settlement{name, leakybucket.Settlement{Charge: c.charges[i], Was: d, Diff: -c.charges[i].Cost}})
		}
	}
	return true
}

// expiration returns what Memcached is told: seconds, or an instant if that is far away, or 0
// for no end where it counts in 32 bits.
func expiration(kept time.Duration) int32 {
	seconds := int64(math.Ceil(kept.Seconds()))
	if kept > longestRelative {
		seconds += time.Now().Unix()
	}
	if seconds > math.MaxInt32 {
		return 0
	}
	return int32(seconds)
}

const form = "%g %d %g %d %d"

func format(s *leakybucket.State) []byte {
	return fmt.Appendf(nil, form, s.Level, s.At, s.Leak, s.BlockedUntil, s.Step)
}

// parse takes only what format writes.
func parse(item *memcache.Item) (s leakybucket.State, err error) {
	_, err = fmt.Sscanf(string(item.Value), form, &s.Level, &s.At, &s.Leak, &s.BlockedUntil, &s.Step)
	if err != nil || !bytes.Equal(format(&s), item.Value) || !(0 <= s.Level && s.Level <= math.MaxFloat64) || !(0 <= s.Leak && s.Leak <= math.MaxFloat64) ||
		uint64(s.At|s.BlockedUntil) >= 1<<53 { // their differences would not fit a time.Duration
		return s, fmt.Errorf("reading %.80q: %.80q: %w: delete it, or use another prefix", item.Key, item.Value, store.ErrBadBucket)
	}
	return s, nil
}
