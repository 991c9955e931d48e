package stores

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

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
