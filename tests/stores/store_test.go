package stores

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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

	connections func() int // of clients, this one excepted
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
		connections: func() int {
			n, _ := strconv.Atoi(server.Info("connected_clients"))
			return n - 1
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
