// Package redisstore keeps buckets in Redis or Valkey, so that many processes
// share one limit.
//
// A take is one script and one round trip for any number of buckets, on the
// server's own clock. Takes that arrive while one is in flight share the next
// one, each still judged in its turn, so that a busy bucket costs less, and
// nobody waits for a timer. A call that may have been executed is never
// repeated: an error says that the charges may or may not have been poured.
//
// # Keys
//
// A bucket is one string under the key
//
//	<prefix><zone>/<key>     throttle:login/192.0.2.7
//	<prefix>~<zone>/<key>    for shadow charges
//
// which holds "<level> <at>", and once it was blocked "<level> <at>
// <blocked until> <step>", instants in microseconds since 1970. It expires ten
// seconds after the bucket may be forgotten; what is emptied at once is deleted.
// A server that evicts keys before they expire forgets who was limited: its
// maxmemory-policy should be noeviction or volatile-ttl, see [Store.Check].
//
// # Several buckets
//
// All or none of the buckets of one take are poured, in one atomic step. In a
// Cluster this holds for buckets in one slot only. Those of several slots are
// taken one slot after the other, and what was poured is given back if a later
// slot refuses: for that moment others may find less room than there is, and if
// the process dies in it, what was poured stays poured until it has leaked.
//
// In a Cluster, {} stands after the prefix, so that nothing in a key is taken for
// a hash tag. A prefix with a {tag} of its own puts all buckets into one slot: on
// one server, and all or none.
//
// # Failover
//
// Redis replicates after it has answered. What a master has acknowledged and
// not replicated when it fails is forgotten, and may be admitted again: at most
// one capacity for each bucket and failover.
package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// DefaultPrefix is the prefix of keys if none is given.
const DefaultPrefix = "throttle:"

// longestName is as much of a key as is sent to the server, in bytes.
const longestName = 32 << 10

// Options of a Store.
type Options struct {
	// URL says where the servers are. Required. One of
	//
	//	redis://user:password@host:6379/0
	//	unix://user:password@/run/redis.sock
	//	redis+sentinel://host1:26379,host2:26379/mymaster/0
	//	redis+cluster://host1:6379,host2:6379
	//
	// User, password, port and database may be left out. A percent sign in user
	// or password is written %25. The user and password are those of the
	// servers, not of the sentinels. With rediss in place of redis the
	// connections use TLS.
	URL string

	// Username and Password take the place of those in the URL, if they are not
	// empty. The user is "default" unless given.
	Username, Password string

	// SentinelUsername and SentinelPassword are for the sentinels.
	SentinelUsername, SentinelPassword string

	// Database takes the place of that in the URL, if it is not 0.
	Database int

	// TLS is used with rediss only. The server's name is that of its address
	// unless given.
	TLS *tls.Config

	// Prefix stands before the name of each key; DefaultPrefix if it is empty.
	// Stores with one prefix share their buckets.
	Prefix string
}

// A Store keeps buckets in Redis. It is a [leakybucket.Store] that is safe for
// concurrent use.
type Store struct {
	prefix string
	link   *link
	lanes  lanes

	held atomic.Int64 // where tests hold the clock; 0 while the server's runs
}

// New returns a store for the servers of the URL. It connects in the
// background, also to servers that are down, and fails only for options that can
// never work.
func New(o Options) (*Store, error) {
	link, err := newLink(&o)
	if err != nil {
		return nil, err
	}
	s := &Store{prefix: o.Prefix, link: link}
	if s.prefix == "" {
		s.prefix = DefaultPrefix
	}
	if link.target.mode == cluster && !strings.Contains(s.prefix, "{") {
		// With an empty tag first, the whole key says the slot. Otherwise who
		// sends keys could gather them on one server.
		s.prefix += "{}"
	}
	s.lanes.call, s.lanes.now = link.run, s.now
	return s, nil
}

// Take implements [leakybucket.Store]. Until the first attempt to connect has
// ended it waits for that, then it fails at once while there is no connection.
func (s *Store) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if err := s.take(ctx, charges, decisions); err != nil {
		return fmt.Errorf("taking charges: %w", s.link.explain(err))
	}
	return nil
}

func (s *Store) take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if len(charges) == 0 {
		return nil
	}
	for i := range charges {
		if err := checkName(&charges[i]); err != nil {
			return err
		}
	}
	if s.link.target.mode == cluster {
		return s.takeBySlot(ctx, charges, decisions)
	}
	return s.takeTogether(ctx, 0, charges, decisions)
}

// takeTogether takes charges whose buckets are in one slot.
func (s *Store) takeTogether(ctx context.Context, slot uint16, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	r := s.takeRequest(charges)
	if err := s.ask(ctx, lane{takeScript, slot}, r); err != nil {
		return err
	}
	return parseDecisions(r.reply, decisions)
}

// Settle implements [leakybucket.Store].
func (s *Store) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	if err := s.settle(ctx, settlements); err != nil {
		return fmt.Errorf("settling charges: %w", s.link.explain(err))
	}
	return nil
}

func (s *Store) settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	if len(settlements) == 0 {
		return nil
	}
	for i := range settlements {
		if err := checkName(&settlements[i].Charge); err != nil {
			return err
		}
	}
	if s.link.target.mode == cluster {
		return s.settleBySlot(ctx, settlements)
	}
	return s.settleTogether(ctx, 0, settlements)
}

// settleTogether settles charges whose buckets are in one slot.
func (s *Store) settleTogether(ctx context.Context, slot uint16, settlements []leakybucket.Settlement) error {
	return s.ask(ctx, lane{settleScript, slot}, s.settleRequest(settlements))
}

// ask lets a script run for a request.
func (s *Store) ask(ctx context.Context, l lane, r *request) error {
	if err := s.link.ready(ctx); err != nil {
		return err
	}
	if err := s.lanes.run(ctx, l, r); err != nil {
		return err
	}
	return r.fault()
}

// Reset implements [leakybucket.Resetter].
func (s *Store) Reset(ctx context.Context, zone, key string, shadow bool) error {
	err := s.link.do(ctx, func(c rueidis.Client) error {
		return c.Do(context.Background(), c.B().Del().Key(s.name(zone, key, shadow)).Build()).Error()
	})
	if err != nil {
		return fmt.Errorf("resetting a bucket: %w", s.link.explain(err))
	}
	return nil
}

// Ping implements [leakybucket.Pinger]. It writes a key that no bucket has. In a
// Cluster it is the server of that key who answers.
func (s *Store) Ping(ctx context.Context) error {
	err := s.link.do(ctx, func(c rueidis.Client) error {
		return c.Do(context.Background(), c.B().Set().Key(s.prefix+"ping").Value("1").PxMilliseconds(1000).Build()).Error()
	})
	if err != nil {
		return fmt.Errorf("pinging: %w", s.link.explain(err))
	}
	return nil
}

// Close ends the connections. What is asked after it fails.
func (s *Store) Close() { s.link.close() }

// String returns where the store's servers are.
func (s *Store) String() string { return s.link.target.String() }

// now returns what the scripts are told about the time.
func (s *Store) now() string {
	if held := s.held.Load(); held != 0 {
		return strconv.FormatInt(held, 10)
	}
	return ""
}

func checkName(c *leakybucket.Charge) error {
	if len(c.Zone)+len(c.Key) > longestName {
		return fmt.Errorf("zone %.40q: got a key of %d bytes, want at most %d", c.Zone, len(c.Key), longestName)
	}
	return nil
}

// errClosed says that a store was closed.
var errClosed = errors.New("the store is closed")

// Interface guards
var (
	_ leakybucket.Store    = (*Store)(nil)
	_ leakybucket.Pinger   = (*Store)(nil)
	_ leakybucket.Resetter = (*Store)(nil)
)
