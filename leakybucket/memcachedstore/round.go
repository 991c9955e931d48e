package memcachedstore

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const (
	// mostRounds is how often a call may lose to other processes.
	mostRounds = 10

	// longestPause is the longest pause after the first lost round; after each, it doubles.
	longestPause = 500 * time.Microsecond

	keptLonger = 10 * time.Second

	// longestRelative is the longest expiry that Memcached takes for a duration.
	longestRelative = 30 * 24 * time.Hour
)

var errContended = errors.New("memcached: other processes write these buckets all the time; nothing was charged")

// A call takes charges together, or settles some. names are those of their buckets.
type call struct {
	charges     []leakybucket.Charge
	decisions   []leakybucket.Decision
	settlements []leakybucket.Settlement
	names       []string
	err         error

	// undo gives back what a lost round has poured.
	undo      []leakybucket.Settlement
	undoNames []string
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

// send answers calls.
func (s *Store) send(_ struct{}, calls []*call, _ func()) {
	if calls = s.rounds(calls); len(calls) == 0 {
		return
	}
	for _, c := range calls {
		c.err = errContended
		c.charges, c.settlements, c.names = nil, nil, nil
	}
	s.rounds(calls) // which only give back
}

// rounds returns the calls that have lost every round.
func (s *Store) rounds(calls []*call) []*call {
	pause := longestPause
	for range mostRounds {
		if calls = s.round(calls); len(calls) == 0 {
			break
		}
		<-time.After(rand.N(pause)) // so that two processes do not meet again
		pause *= 2
	}
	return calls
}

// round reads all buckets, decides, and writes. It returns the calls that lost a bucket.
func (s *Store) round(calls []*call) (again []*call) {
	buckets, err := s.read(calls)
	if err != nil {
		for _, c := range calls {
			c.err = errors.Join(c.err, err)
		}
		return nil
	}
	now := s.now()
	for _, c := range calls {
		c.apply(buckets, now)
	}
	s.write(buckets, now)
	for _, c := range calls {
		if c.ended(buckets) {
			again = append(again, c)
		}
	}
	return again
}

func (s *Store) read(calls []*call) (map[string]*bucket, error) {
	buckets := make(map[string]*bucket)
	var names []string
	for _, c := range calls {
		for _, some := range [][]string{c.names, c.undoNames} {
			for _, name := range some {
				if buckets[name] == nil {
					buckets[name] = &bucket{name: name}
					names = append(names, name)
				}
			}
		}
	}
	items, err := s.client.GetMulti(names)
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

// apply gives back what a lost round has poured, and decides the call.
func (c *call) apply(buckets map[string]*bucket, now leakybucket.Instant) {
	for i := range c.undo {
		buckets[c.undoNames[i]].settle(&c.undo[i], now)
	}
	for _, name := range c.names {
		if err := buckets[name].err; err != nil {
			c.err = err
			return
		}
	}
	for i := range c.settlements {
		buckets[c.names[i]].settle(&c.settlements[i], now)
	}
	if len(c.charges) == 0 {
		return
	}
	states := make([]leakybucket.State, len(c.charges))
	for i, name := range c.names {
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

// ended takes in how the round ended for the call, and reports whether another is needed. With
// an error it is not: a write that was not answered may have been executed.
func (c *call) ended(buckets map[string]*bucket) (again bool) {
	undo, undoNames := c.undo, c.undoNames
	c.undo, c.undoNames = nil, nil
	for i, name := range undoNames {
		if buckets[name].lost {
			c.undo, c.undoNames = append(c.undo, undo[i]), append(c.undoNames, name)
		}
	}
	if len(c.names) == 0 {
		return len(c.undo) > 0
	}
	for _, name := range c.names {
		if err := buckets[name].err; err != nil {
			c.err = err
		}
		again = again || buckets[name].lost
	}
	if c.err != nil || !again {
		return false
	}
	if len(c.settlements) > 0 {
		c.unsettled(buckets)
		return true
	}
	for i, d := range c.decisions {
		if name := c.names[i]; d.Poured && !buckets[name].lost {
			c.undo = append(c.undo, leakybucket.Settlement{Charge: c.charges[i], Was: d, Diff: -c.charges[i].Cost})
			c.undoNames = append(c.undoNames, name)
		}
	}
	return true
}

// unsettled leaves the call with what was not settled.
func (c *call) unsettled(buckets map[string]*bucket) {
	settlements, names := c.settlements, c.names
	c.settlements, c.names = nil, nil
	for i, name := range names {
		if buckets[name].lost {
			c.settlements, c.names = append(c.settlements, settlements[i]), append(c.names, name)
		}
	}
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

func format(s *leakybucket.State) []byte {
	text := strconv.AppendFloat(make([]byte, 0, 80), s.Level, 'g', -1, 64)
	text = strconv.AppendInt(append(text, ' '), int64(s.At), 10)
	text = strconv.AppendFloat(append(text, ' '), s.Leak, 'g', -1, 64)
	text = strconv.AppendInt(append(text, ' '), int64(s.BlockedUntil), 10)
	return strconv.AppendUint(append(text, ' '), uint64(s.Step), 10)
}

func parse(item *memcache.Item) (s leakybucket.State, err error) {
	words := strings.Split(string(item.Value), " ")
	if len(words) != 5 {
		words = make([]string, 5)
	}
	level, errLevel := strconv.ParseFloat(words[0], 64)
	at, errAt := strconv.ParseInt(words[1], 10, 64)
	leak, errLeak := strconv.ParseFloat(words[2], 64)
	until, errUntil := strconv.ParseInt(words[3], 10, 64)
	step, errStep := strconv.ParseUint(words[4], 10, 8)
	if errors.Join(errLevel, errAt, errLeak, errUntil, errStep) != nil || !(0 <= level && level <= math.MaxFloat64) || !(0 <= leak && leak <= math.MaxFloat64) {
		return s, fmt.Errorf("reading %.80q: %.80q: %w: delete it, or use another prefix", item.Key, item.Value, store.ErrBadBucket)
	}
	return leakybucket.State{Level: level, At: leakybucket.Instant(at), Leak: leak, BlockedUntil: leakybucket.Instant(until), Step: uint8(step)}, nil
}
