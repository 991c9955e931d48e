// Package memcachedstore keeps buckets in Memcached, for sites that have Memcached and no Redis.
//
// Memcached decides nothing, so this process does: it reads buckets with gets, decides by
// [store.TakeAll], and writes them with cas. Calls that arrive while others are in flight share
// the next round trips. No call waits for a timer but one that has lost a bucket to another process.
//
// If another process has written a bucket in between, its writer loses: what it has poured into
// other buckets is given back, and all is decided anew. So nothing is admitted that the limits
// forbid, but a take that loses may have charged others for an instant, and one that loses too
// often fails.
//
// # What Memcached cannot promise
//
// The clock is that of each process, so their hosts need clocks that agree within a second: one that
// is ahead leaks buckets too early, by as much as it is ahead. A full server drops the buckets that
// were not used for longest, and a restart drops all. Buckets cannot be listed.
//
// # Names
//
// A bucket is one item named <prefix>:<zone>/<key>, and ~ in place of the colon for shadow
// charges. If Memcached would not take the name, it ends in a digest in place of zone and key.
// The value is "<level> <at> <leak> <blocked until> <step>", with instants in microseconds since
// 1970. It expires ten seconds after the bucket may be forgotten.
package memcachedstore

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/internal/coalesce"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// Options of a Store. The zero value is ready for use.
type Options struct {
	// Prefix begins the name of each item. It has at most 64 printable ASCII bytes and no blank.
	// If empty, it is "throttle". Stores with the same prefix share their buckets.
	Prefix string
}

const (
	longestName = 250 // that Memcached takes
	mostWeight  = 1000

	// timeout is how long [Open] waits for a server.
	timeout = 500 * time.Millisecond

	// connections is how many of each server stay open, and how many buckets are written at once.
	connections = 16
)

var prefixForm = regexp.MustCompile(`^[!-~]{1,64}$`)

// A Store keeps buckets in Memcached. It is safe for concurrent use.
type Store struct {
	client *memcache.Client
	prefix string
	lanes  *coalesce.Lanes[struct{}, *call] // a single one
	close  func()

	held atomic.Int64 // the clock that tests hold; 0 while the process's runs
}

// New returns a store that uses a client, which [Store.Close] leaves open. Give it MaxIdleConns
// of 16, since that many buckets are written at once.
func New(client *memcache.Client, o Options) (*Store, error) {
	o.Prefix = cmp.Or(o.Prefix, "throttle")
	if !prefixForm.MatchString(o.Prefix) {
		return nil, fmt.Errorf("invalid prefix %.100q: want at most 64 printable ASCII characters and no blank", o.Prefix)
	}
	s := &Store{client: client, prefix: o.Prefix, close: func() {}}
	s.lanes = coalesce.New(coalesce.Options{MaxWeight: mostWeight}, s.send)
	return s, nil
}

// Open returns a store for servers, such as "127.0.0.1:11211" or "a:11211,b:11211", or the path
// of a Unix socket. All processes must name the same servers in the same order. It does not
// connect.
func Open(servers string, o Options) (*Store, error) {
	all := strings.Split(servers, ",")
	if slices.Contains(all, "") {
		return nil, fmt.Errorf("invalid servers %q: want <host>:<port>, with commas between several", servers)
	}
	list := make(serverList, len(all))
	for i, text := range all {
		if list[i] = (server{"unix", text}); !strings.Contains(text, "/") {
			list[i].network = "tcp"
			if _, _, err := net.SplitHostPort(text); err != nil {
				return nil, fmt.Errorf("invalid servers %q: %w", servers, err)
			}
		}
	}
	client := memcache.NewFromSelector(list)
	client.Timeout, client.MaxIdleConns = timeout, connections
	s, err := New(client, o)
	if err != nil {
		return nil, err
	}
	s.close = func() { _ = client.Close() }
	return s, nil
}

// A serverList picks servers as [memcache.ServerList] does. That one would look up their names
// once for all, and not begin without them.
type serverList []server

// PickServer implements [memcache.ServerSelector].
func (l serverList) PickServer(key string) (net.Addr, error) {
	return l[crc32.ChecksumIEEE([]byte(key))%uint32(len(l))], nil
}

// Each implements [memcache.ServerSelector].
func (l serverList) Each(f func(net.Addr) error) error {
	for _, one := range l {
		if err := f(one); err != nil {
			return err
		}
	}
	return nil
}

// A server is a [net.Addr] by its name.
type server struct{ network, address string }

func (s server) Network() string { return s.network }
func (s server) String() string  { return s.address }

// Close fails the calls that wait, and returns when those under way are done and the connections
// that [Open] made are closed. Later calls fail.
func (s *Store) Close() {
	s.lanes.Close()
	s.close()
}

// Take implements [leakybucket.Store].
func (s *Store) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	c := &call{charges: slices.Clone(charges), decisions: make([]leakybucket.Decision, len(charges))}
	for i := range charges {
		c.names = append(c.names, s.name(&charges[i]))
	}
	if err := s.do(ctx, c); err != nil {
		return err
	}
	copy(decisions, c.decisions)
	return nil
}

// Settle implements [leakybucket.Store].
func (s *Store) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	c := new(call)
	for _, of := range settlements {
		c.settlements = append(c.settlements, settlement{s.name(&of.Charge), of})
	}
	return s.do(ctx, c)
}

func (s *Store) do(ctx context.Context, c *call) error {
	if c.buckets() == 0 && c.reset == "" {
		return nil
	}
	c.done = make(chan struct{})
	err := s.lanes.Do(ctx, struct{}{}, c, c.buckets())
	if err == nil {
		select {
		case <-c.done:
			return c.err
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return fmt.Errorf("waiting for memcached: %w", err)
}

// Reset implements [store.Resetter].
func (s *Store) Reset(ctx context.Context, zone, key string, shadow bool) error {
	return s.do(ctx, &call{reset: s.name(&leakybucket.Charge{Zone: zone, Key: key, Shadow: shadow})})
}

// name returns the name of a bucket's item. No zone has a slash and a digest has none either, so
// that no two buckets share one.
func (s *Store) name(c *leakybucket.Charge) string {
	sign := ":"
	if c.Shadow {
		sign = "~"
	}
	name := c.Zone + "/" + c.Key
	endsWord := func(r rune) bool { return r <= ' ' || r == 0x7f } // in Memcached's protocol
	if len(s.prefix)+len(sign)+len(name) > longestName || strings.ContainsFunc(name, endsWord) {
		return string(key.DigestOf(name).Append([]byte(s.prefix + sign)))
	}
	return s.prefix + sign + name
}

func (s *Store) now() leakybucket.Instant {
	if held := s.held.Load(); held != 0 {
		return leakybucket.Instant(held)
	}
	return leakybucket.Instant(time.Now().UnixMicro())
}

// Interface guards
var (
	_ leakybucket.Store = (*Store)(nil)
	_ store.Resetter    = (*Store)(nil)
)
