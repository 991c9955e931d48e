// Package redisstore keeps buckets in Redis or Valkey, so that many processes
// share one limit.
//
// A take is one script call and one round trip for any number of buckets, and
// uses the server's clock. Takes that arrive while a call is in flight share the
// next call, and are still decided one by one. No take waits for a timer. A call
// that may have been executed is never repeated: after an error the charges may
// or may not have been poured.
//
// # Keys
//
// A bucket is one string under the key
//
//	<prefix><zone>/<key>     throttle:login/192.0.2.7
//	<prefix>~<zone>/<key>    for shadow charges
//
// In a zone's name %, ~ and / are percent-encoded, so that no two buckets share a
// key. The string holds "<level> <at> <leak>", and once the bucket was blocked
// "<level> <at> <leak> <blocked until> <step>", with instants in microseconds
// since 1970. It expires ten seconds after the bucket may be forgotten. A bucket
// that a settlement empties is deleted at once.
//
// A server that evicts keys before they expire forgets whom it limited. Set its
// maxmemory-policy to noeviction or volatile-ttl; see [Store.Check].
//
// # Redis Cluster
//
// In a cluster the prefix has a {tag}, and all buckets are in one slot: on one server, which
// decides each take in one atomic step, as outside of a cluster. What a cluster adds is another
// server that takes over, not speed.
//
// # Failover
//
// Redis replicates after it has answered. A failing master loses the writes that
// it did not replicate yet, and those charges may be admitted again: at most one
// capacity for each bucket and failover.
package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/internal/coalesce"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const (
	defaultPrefix        = "throttle:"
	defaultClusterPrefix = "{throttle}:"
)

// Options of a Store. The zero value is ready for use. All but Prefix are for [Open]: a client
// that is given to [New] has its own.
type Options struct {
	// Prefix begins the name of each key. If empty, it is "throttle:", or "{throttle}:" in a
	// cluster, where it must have a {tag}. Stores with the same prefix share their buckets.
	Prefix string

	// Username and Password replace those in the URL, unless they are empty. If
	// neither names a user, it is "default".
	Username, Password string

	// SentinelUsername and SentinelPassword log in to the sentinels. If empty,
	// no login is sent.
	SentinelUsername, SentinelPassword string

	// TLS configures connections to rediss URLs. If nil, the system's
	// certificate authorities are trusted. If it names no server, the host of
	// the address is the name. With any other URL it is an error.
	TLS *tls.Config
}

// A Store keeps buckets in Redis. It is a [leakybucket.Store] and safe for
// concurrent use.
type Store struct {
	prefix     string
	connection *connection
	lanes      *coalesce.Lanes[*rueidis.Lua, *request]
	serials    atomic.Uint64 // of calls

	held atomic.Int64 // the clock that tests hold; 0 while the server's runs
}

// New returns a store that uses a client. The client must be as rueidis.NewClient makes it, or
// with more of its options: no call is repeated that may have been executed. [Store.Close]
// leaves it open. Calls that share one call of the client end when that does, so give the
// client a ConnWriteTimeout of a few seconds.
func New(client rueidis.Client, o Options) (*Store, error) {
	if o.Username != "" || o.Password != "" || o.SentinelUsername != "" || o.SentinelPassword != "" || o.TLS != nil {
		return nil, errors.New("got users, passwords or a TLS config beside a client: give them to the client, or call Open")
	}
	return newStore(connectionOf(client), o)
}

// Open returns a store for the servers of a URL. Its forms are
//
//	redis://user:password@host:6379/0
//	unix://user:password@/run/redis.sock
//	redis+sentinel://host1:26379,host2:26379/mymaster/0
//	redis+cluster://host1:6379,host2:6379
//
// User, password, port and database are optional. Write a percent sign in user or password as
// %25. User and password are those of the servers, not of the sentinels. With rediss in place of
// redis, connections use TLS.
//
// It fails only for what can never work, and does not connect: the first call does.
func Open(url string, o Options) (*Store, error) {
	connection, err := newConnection(url, &o)
	if err != nil {
		return nil, err
	}
	return newStore(connection, o)
}

func newStore(connection *connection, o Options) (*Store, error) {
	s := &Store{prefix: cmp.Or(o.Prefix, defaultPrefix), connection: connection}
	if connection.target.mode == cluster {
		s.prefix = cmp.Or(o.Prefix, defaultClusterPrefix)
		if !tagged.MatchString(s.prefix) {
			return nil, fmt.Errorf("invalid prefix %q for a cluster: want {shop}: or another {tag} in it", o.Prefix)
		}
	}
	s.lanes = coalesce.New(batching, s.sendBatch)
	return s, nil
}

// tagged is what a key begins with if a tag decides its slot in a cluster.
var tagged = regexp.MustCompile(`^[^{]*\{[^}]+\}`)

// Take implements [leakybucket.Store]. The first call waits for the first attempt
// to connect. Later ones fail at once while there is no connection. One take may
// have at most 1000 charges.
func (s *Store) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	return s.connection.explain("taking charges", s.take(ctx, charges, decisions))
}

func (s *Store) take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	r := s.takeRequest(charges)
	if err := s.run(ctx, takeScript, r); err != nil {
		return err
	}
	return parseDecisions(r.reply, decisions)
}

// Settle implements [leakybucket.Store]. A bucket that cannot be used does not keep others
// from being settled. One call may have at most 1000 settlements.
func (s *Store) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	return s.connection.explain("settling charges", s.run(ctx, settleScript, s.settleRequest(settlements)))
}

// run lets a script answer a request.
func (s *Store) run(ctx context.Context, script *rueidis.Lua, r *request) error {
	if len(r.keys) == 0 {
		return nil
	}
	if err := r.check(); err != nil {
		return err
	}
	if _, err := s.connection.ready(ctx); err != nil {
		return err
	}
	switch err := s.lanes.Do(ctx, script, r, len(r.keys)); {
	case errors.Is(err, coalesce.ErrClosed):
		return errClosed
	case err != nil:
		return fmt.Errorf("waiting for redis: %w", err)
	case r.reply.err != nil:
		return r.reply.err
	}
	return r.fault()
}

// ask runs a script by itself, on one key. It is one round trip, or two when the server has
// forgotten the script.
func (s *Store) ask(ctx context.Context, script *rueidis.Lua, key string, args ...string) ([]string, error) {
	return ask(ctx, s.connection, func(c rueidis.Client) ([]string, error) {
		return script.Exec(context.Background(), c, []string{key}, args).AsStrSlice()
	})
}

// Reset implements [store.Resetter].
func (s *Store) Reset(ctx context.Context, zone, key string, shadow bool) error {
	_, err := ask(ctx, s.connection, func(c rueidis.Client) (int64, error) {
		return c.Do(context.Background(), c.B().Del().Key(s.name(zone, key, shadow)).Build()).ToInt64()
	})
	return s.connection.explain("resetting a bucket", err)
}

// Close ends the connections that [Open] made, and returns once they are closed. Later calls
// fail. A server that does not answer can delay it by about a second.
func (s *Store) Close() {
	s.connection.close()
	s.lanes.Close()
}

// String returns where the store's servers are, without a password.
func (s *Store) String() string { return s.connection.target.String() }

// now returns the time for the scripts, which is empty unless a test holds the
// clock.
func (s *Store) now() string {
	if held := s.held.Load(); held != 0 {
		return strconv.FormatInt(held, 10)
	}
	return ""
}

// Interface guards
var (
	_ leakybucket.Store = (*Store)(nil)
	_ store.Resetter    = (*Store)(nil)
	_ store.Lister      = (*Store)(nil)
)
