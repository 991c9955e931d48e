package stores

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/pgstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// storeServer is a Redis or a PostgreSQL for the buckets of Caddys. A test may do
// anything to it.
type storeServer struct {
	name    string
	address string
	url     func(address string) string // through a proxy, perhaps

	kill   func() // by SIGKILL, with all its children
	run    func() // again, and until it answers
	freeze func() (thaw func())

	connections func() int                // of clients, this one excepted
	level       func(zone string) float64 // of the key everybody, when it was last written
	reset       func(zone, key string)
}

// mostConnections is how many connections a busy Caddy opens.
const mostConnections = 2

// directive is the store for the global options of a Caddyfile.
func (s *storeServer) directive() string { return s.through(s.address) }

func (s *storeServer) through(address string) string {
	return "store " + s.name + " " + s.url(address)
}

var storeServers = []struct {
	name  string
	start func(*testing.T) *storeServer
}{
	{"redis", startRedis},
	{"postgres", startPostgres},
}

// eachStore runs a test beside all others, with a server of each kind.
func eachStore(t *testing.T, f func(t *testing.T, s *storeServer)) {
	for _, kind := range storeServers {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			f(t, kind.start(t))
		})
	}
}

func startRedis(t *testing.T) *storeServer { return redisServer(t, servertest.StartRedis(t)) }

func redisServer(t *testing.T, server *servertest.Redis) *storeServer {
	number := func(text string) float64 {
		v, _ := strconv.ParseFloat(text, 64)
		return v
	}
	return &storeServer{
		name:    "redis",
		address: server.Addr,
		url:     func(address string) string { return "redis://" + address },
		kill:    server.Kill,
		run:     server.Start,
		freeze: func() func() {
			server.Pause()
			return server.Resume
		},
		connections: func() int { return int(number(server.Info("connected_clients"))) - 1 },
		level: func(zone string) float64 {
			text, _, _ := strings.Cut(server.Do("get", "throttle:"+zone+"/everybody"), " ")
			return number(text)
		},
		reset: func(zone, key string) {
			store, err := redisstore.Open("redis://"+server.Addr, redisstore.Options{})
			resetIn(t, store, err, zone, key)
		},
	}
}

func startPostgres(t *testing.T) *storeServer { return postgresServer(t, servertest.StartPostgres(t)) }

func postgresServer(t *testing.T, server *servertest.Postgres) *storeServer {
	return &storeServer{
		name:    "postgres",
		address: fmt.Sprintf("127.0.0.1:%d", server.Port),
		url: func(address string) string {
			return strings.Replace(server.URL(), fmt.Sprintf("127.0.0.1:%d", server.Port), address, 1)
		},
		kill: server.Kill,
		run: func() {
			check.NoError(t, server.Run())
		},
		freeze: server.Freeze,
		connections: func() int {
			return int(server.Float(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'throttle'"))
		},
		level: func(zone string) float64 {
			return server.Float(t, "SELECT coalesce(max(level), 0) FROM throttle_buckets WHERE name = ':"+zone+"/everybody'")
		},
		reset: func(zone, key string) {
			store, err := pgstore.Open(server.URL(), pgstore.Options{})
			resetIn(t, store, err, zone, key)
		},
	}
}

type resetter interface {
	store.Resetter
	Close()
}

// resetIn empties a bucket from outside of the Caddys, as an administrator would.
func resetIn(t *testing.T, store resetter, err error, zone, key string) {
	t.Helper()
	check.OK(t, err)
	defer store.Close()
	ctx, cancel := context.WithTimeout(t.Context(), system.StartTime)
	defer cancel()
	check.OK(t, store.Reset(ctx, zone, key, false), "resetting a bucket")
}

// fault is a way in which a store that answers can be wrong.
type fault struct {
	name  string
	begin func() (end func())
	says  string // in Caddy's log
}

// TestARedisWithAFaultIsNoOutageOfTheSite, and the log says what is wrong with
// it.
func TestARedisWithAFaultIsNoOutageOfTheSite(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	set := func(name, to, back string) func() func() {
		return func() func() {
			server.Do("config", "set", name, to)
			return func() { server.Do("config", "set", name, back) }
		}
	}
	testFaults(t, redisServer(t, server), []fault{
		{"keys of another kind", func() func() {
			for _, zone := range outageRoutes[:3] {
				server.Do("eval", "redis.call('del', KEYS[1]) redis.call('lpush', KEYS[1], 'x')", "1", "throttle:"+zone+"/everybody")
			}
			return func() {
				for _, zone := range outageRoutes[:3] {
					server.Do("del", "throttle:"+zone+"/everybody")
				}
			}
		}, "not a bucket"},
		{"no memory", set("maxmemory", "1", "0"), "raise its maxmemory"},
		{"no replica", set("min-replicas-to-write", "1", "0"), "bring its replicas back"},
		{"a replica", func() func() {
			server.Do("replicaof", "127.0.0.1", "1")
			return func() { server.Do("replicaof", "no", "one") }
		}, "it is a replica"},
		{"another password", func() func() {
			server.Do("config", "set", "requirepass", "another")
			server.Do("-a", "another", "client", "kill", "type", "normal", "skipme", "yes")
			return func() { server.Do("-a", "another", "config", "set", "requirepass", "") }
		}, "want a password"},
	})
}

// TestAPostgreSQLWithAFaultIsNoOutageOfTheSite does the same.
func TestAPostgreSQLWithAFaultIsNoOutageOfTheSite(t *testing.T) {
	t.Parallel()
	server := servertest.StartPostgres(t)
	server.Exec(t, "CREATE ROLE app LOGIN PASSWORD 'of-the-app'", "GRANT CREATE, USAGE ON SCHEMA public TO app")
	s := postgresServer(t, server)
	s.url = func(string) string { return server.URLOf("app", "of-the-app", "postgres") }
	do := func(begin, end string) func() func() {
		const leave = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'"
		return func() func() {
			server.Exec(t, begin, leave)
			return func() { server.Exec(t, end) }
		}
	}
	testFaults(t, s, []fault{
		{"no privilege", do("ALTER TABLE throttle_buckets OWNER TO postgres", "ALTER TABLE throttle_buckets OWNER TO app"), "want GRANT SELECT"},
		{"another password", do("ALTER ROLE app PASSWORD 'another'", "ALTER ROLE app PASSWORD 'of-the-app'"), "want the password of role"},
		{"another table", do("ALTER TABLE throttle_buckets RENAME level TO height", "ALTER TABLE throttle_buckets RENAME height TO level"), "has no column level"},
		{"a stop", func() func() {
			server.Stop()
			return s.run
		}, "asking the store"},
	})
}

func testFaults(t *testing.T, s *storeServer, faults []fault) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			port := servertest.FreePort(t)
			// Faults are answered at once. What a busy store needs for other answers is no fault.
			c := system.StartCaddy(t, system.Config{Throttle: s.directive() + "\nstore_timeout 1s", Sites: outageSite(port)})
			l := startLoad(t, port)
			o := l.outageUntil(t, 500*time.Millisecond, f.begin, func() {
				system.Eventually(t, fmt.Sprintf("a line in the log that says %q", f.says), func() bool { return len(c.LogLines(f.says)) > 0 })
			})
			shots := l.stop()
			wantPolicies(t, shots)
			o.wantWithout(t, f.name, shots)
		})
	}
}

// TestRepliesThatAreLostAreChargedAtMostOnce: answered calls are charged,
// unanswered ones may be, and none twice.
func TestRepliesThatAreLostAreChargedAtMostOnce(t *testing.T) {
	t.Parallel()
	want, most := check.OrShort(500, 150), 3*system.StartTime
	if system.Long() {
		want, most = 10_000, 10*time.Minute
	}
	eachStore(t, func(t *testing.T, s *storeServer) {
		var losing atomic.Bool
		proxy := servertest.StartProxy(t, s.address, func([]byte) bool { return losing.Load() && rand.IntN(10) == 0 })
		port := servertest.FreePort(t)
		// The breaker would keep most requests from a store like this.
		c := system.StartCaddy(t, system.Config{Throttle: s.through(proxy.Addr) + "\nstore_timeout 1s\non_store_error deny", Sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone once {
			key text everybody
			limit 100000000 0.2/s
		}
	}
	respond ok
}`, port)})
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		start := time.Now()
		system.NewVisitor(t, "h1").Get(t, url)
		losing.Store(true)
		var sent, admitted atomic.Int64
		var enough atomic.Bool
		var crowd sync.WaitGroup
		v := system.NewVisitor(t, "h2")
		for range 400 {
			crowd.Go(func() {
				for !enough.Load() {
					a, err := v.Try("GET", url)
					sent.Add(1)
					switch {
					case err == nil && a.Status == 200:
						admitted.Add(1)
					case err == nil && a.Status == 503:
						time.Sleep(100 * time.Millisecond) // the breaker is open
					default:
						t.Errorf("got %d, %v, want 200 or 503", a.Status, err)
						return
					}
				}
			})
		}
		failed := 0.0
		for began := time.Now(); failed < float64(want) && time.Since(began) < most; time.Sleep(100 * time.Millisecond) {
			failed = c.Metric(t, "caddy_throttle_store_errors_total")
		}
		enough.Store(true)
		crowd.Wait()
		losing.Store(false)
		// Each failed request may have been charged.
		failed = c.Metric(t, "caddy_throttle_store_errors_total")
		level, answered := s.level("once"), float64(admitted.Load())
		t.Logf("%d requests, %v admitted, %v whose reply was lost, of which %v were charged", sent.Load(), answered, failed, level-answered-1)
		check.That(t, failed >= 100, "got %v replies lost, want some", failed)
		least := answered - 0.2*time.Since(start).Seconds()
		check.That(t, level >= least && level <= answered+failed+1, "got a level of %v, want %v to %v", level, least, answered+failed+1)
	})
}
