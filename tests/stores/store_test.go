package stores

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
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
	}
}
