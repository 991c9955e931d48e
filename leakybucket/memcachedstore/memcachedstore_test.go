package memcachedstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

var prefixes atomic.Int64

func open(tb testing.TB, server *servertest.Memcached, prefix string) *Store {
	tb.Helper()
	s := check.Must(Open(server.Addr, Options{Prefix: prefix}))(tb)
	tb.Cleanup(s.Close)
	return s
}

func TestStoreKeepsTheContract(t *testing.T) {
	server := servertest.StartMemcached(t)
	storetest.Run(t, func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		s := open(tb, server, fmt.Sprint("case", prefixes.Add(1)))
		return s, func(at leakybucket.Instant) { s.held.Store(int64(at)) }
	})
}

// TestSeveralProcesses: each is a store of its own. What they admit together keeps the limit of
// each bucket, and all that is given back after a race is found again.
func TestSeveralProcesses(t *testing.T) {
	server := servertest.StartMemcached(t)
	var stores []*Store
	for range 3 {
		stores = append(stores, open(t, server, "several"))
	}
	small, large := leakybucket.Limit{Capacity: 100, Leak: 1e-9}, leakybucket.Limit{Capacity: 1000, Leak: 1e-9}
	var admitted, failed atomic.Int64
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			for j := range 40 {
				charges := []leakybucket.Charge{
					{Zone: "z", Key: "all", Limit: small, Cost: 1},
					{Zone: "z", Key: fmt.Sprint((i + j) % 3), Limit: large, Cost: 1},
				}
				decisions := make([]leakybucket.Decision, 2)
				switch err := stores[i%3].Take(t.Context(), charges, decisions); {
				case errors.Is(err, errContended):
					failed.Add(1)
				case err != nil:
					t.Error(err)
				case decisions[0].Poured:
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	level := 0.0
	for k := range 3 {
		d := make([]leakybucket.Decision, 1)
		check.OK(t, stores[0].Take(t.Context(), []leakybucket.Charge{{Zone: "z", Key: fmt.Sprint(k), Limit: large, Probe: true}}, d))
		level += d[0].Level
	}
	got := float64(admitted.Load())
	t.Logf("%v admitted, %d failed, level %v", got, failed.Load(), level)
	if got > 100 || got < 50 && failed.Load() == 0 || level < got-1e-3 || failed.Load() == 0 && level > got+1e-3 {
		t.Errorf("got %v admitted of 100, %d failed, and a level of %v, want what was admitted", got, failed.Load(), level)
	}
}

func TestWhatIsNoBucket(t *testing.T) {
	server := servertest.StartMemcached(t)
	s := open(t, server, "p")
	c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, Cost: 1}
	for _, text := range []string{"", "junk", "NaN 1 1 0 0", "-1 1 1 0 0", "1 1 1 0", "1 1 1 0 256", "1 x 1 0 0", "1 -9223372036854775808 1 0 0", "1 1 1 9223372036854775807 0"} {
		check.OK(t, s.client.Set(&memcache.Item{Key: s.name(&c), Value: []byte(text)}))
		check.Is(t, s.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1)), store.ErrBadBucket, "%q", text)
		other := c
		other.Key = "other " + text
		err := s.Take(t.Context(), []leakybucket.Charge{other}, make([]leakybucket.Decision, 1))
		check.NoError(t, err, "another bucket")
	}
	check.NoError(t, s.Reset(t.Context(), "z", "k", false))
	check.NoError(t, s.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1)), "after a reset")
	s.Close()
	check.That(t, s.Reset(t.Context(), "z", "k", false) != nil, "a reset after Close: got no error")
}

func TestAServerThatIsGone(t *testing.T) {
	server := servertest.StartMemcached(t)
	s := open(t, server, "p")
	c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, Cost: 1}
	server.Kill()
	err := s.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1))
	check.That(t, err != nil && strings.Contains(err.Error(), "memcached"), "got %v, want an error", err)
	s.Close()
	check.That(t, s.Settle(context.Background(), []leakybucket.Settlement{{Charge: c}}) != nil, "settling after Close: got no error")
}

// TestARestart of the server leaves many idle connections that it has closed: no take fails by them.
func TestARestart(t *testing.T) {
	server := servertest.StartMemcached(t)
	s := open(t, server, "p")
	s.client.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Addr)
	}
	take := func() error {
		charges := make([]leakybucket.Charge, connections)
		for i := range charges {
			charges[i] = leakybucket.Charge{Zone: "z", Key: fmt.Sprint(i), Limit: leakybucket.Limit{Capacity: 10, Leak: 1}, Cost: 1}
		}
		return s.Take(t.Context(), charges, make([]leakybucket.Decision, len(charges)))
	}
	check.OK(t, take())
	server.Kill()
	server = servertest.StartMemcached(t)
	check.NoError(t, take(), "after the restart")
}

// TestNamesAreLookedUpByEachConnection: their server may move, and may not be known yet at the start.
func TestNamesAreLookedUpByEachConnection(t *testing.T) {
	s := check.Must(Open("cache.invalid:11211,/run/cache.sock", Options{}))(t)
	defer s.Close()
	var dialed sync.Map
	s.client.DialContext = func(_ context.Context, network, address string) (net.Conn, error) {
		dialed.Store(network+" "+address, true)
		return nil, errors.New("refused")
	}
	for key := range 20 {
		_ = s.Reset(t.Context(), "z", fmt.Sprint(key), false)
	}
	for _, want := range []string{"tcp cache.invalid:11211", "unix /run/cache.sock"} {
		_, found := dialed.Load(want)
		check.That(t, found, "%s was not dialed", want)
	}
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for _, test := range []struct{ servers, prefix string }{{"", ""}, {"127.0.0.1:1,", ""}, {"127.0.0.1:1", "a b"}, {"127.0.0.1:1", "ä"}, {"127.0.0.1:1", strings.Repeat("x", 65)}, {"127.0.0.1", ""}} {
		s, err := Open(test.servers, Options{Prefix: test.prefix})
		check.That(t, err != nil && s == nil, "%+v: got %v, %v, want nil and an error", test, s, err)
	}
}

// TestAnItemThatNobodyAskedFor is skipped: it must not end the process.
func TestAnItemThatNobodyAskedFor(t *testing.T) {
	l := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = bufio.NewReader(conn).ReadString('\n')
		_, _ = io.WriteString(conn, "VALUE other 0 1 1\r\nx\r\nEND\r\n")
		_, _ = io.Copy(io.Discard, conn)
	}()
	s := check.Must(Open(l.Addr().String(), Options{}))(t)
	defer s.Close()
	decisions := make([]leakybucket.Decision, 1)
	err := s.Take(t.Context(), []leakybucket.Charge{{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, Cost: 1, Probe: true}}, decisions)
	check.That(t, err == nil && decisions[0].Fits && decisions[0].Level == 0, "got %+v and error %v, want an empty bucket", decisions[0], err)
}

// TestABucketThatIsLost: its takes come again, while those of other buckets wait for none of their pauses.
func TestABucketThatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := memcache.New("127.0.0.1:1")
		client.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, servers := net.Pipe()
			go func() {
				for in := bufio.NewReader(servers); ; {
					line, err := in.ReadString('\n')
					answer := "END\r\n" // no bucket is kept
					if strings.HasPrefix(line, "add") {
						_, _ = in.ReadString('\n')
						if answer = "STORED\r\n"; strings.Contains(line, "lost") {
							answer = "NOT_STORED\r\n"
						}
					}
					if err != nil {
						return
					}
					_, _ = io.WriteString(servers, answer)
				}
			}()
			return ours, nil
		}
		s := check.Must(New(client, Options{}))(t)
		defer client.Close()
		defer s.Close()
		take := func(keys ...string) error {
			var charges []leakybucket.Charge
			for _, key := range keys {
				charges = append(charges, leakybucket.Charge{Zone: "z", Key: key, Limit: leakybucket.Limit{Capacity: 1, Leak: 1}, Cost: 1})
			}
			return s.Take(t.Context(), charges, make([]leakybucket.Decision, len(keys)))
		}
		began := time.Now()
		var all sync.WaitGroup
		all.Go(func() {
			check.Is(t, take("lost", "beside"), errContended, "a bucket that is always lost")
			check.That(t, time.Now().After(began), "got no pause between the rounds")
		})
		for range 3 {
			synctest.Wait()
			check.NoError(t, take("other"))
		}
		check.Equal(t, time.Since(began), 0)
		all.Wait()
	})
}

// TestAResetOfAServerThatHangs: it ends with its context, as all calls do.
func TestAResetOfAServerThatHangs(t *testing.T) {
	listener := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	client := memcache.New(listener.Addr().String())
	client.Timeout = time.Minute
	s := check.Must(New(client, Options{}))(t)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		conn, err := listener.Accept()
		leave()
		if err == nil {
			_, _ = io.Copy(io.Discard, conn) // until the test has ended
		}
	}()
	check.Is(t, s.Reset(ctx, "z", "k", false), context.Canceled)
}
