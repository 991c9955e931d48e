package tests

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/pgstore/pgtest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore/redistest"
)

// storeServer is a Redis or a PostgreSQL that Caddys keep their buckets in, and
// that a test may do anything to.
type storeServer struct {
	name    string
	address string
	url     func(address string) string // through a proxy, perhaps

	kill   func() // by SIGKILL, with all its children
	run    func() // again, and until it answers
	freeze func() (thaw func())

	connections func() int     // of clients, this one excepted
	asked       func() float64 // how often, by requests and probes
	level       func(zone string) float64
}

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

func startRedis(t *testing.T) *storeServer { return redisServer(redistest.Start(t)) }

func redisServer(server *redistest.Server) *storeServer {
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
		asked: func() (calls float64) {
			for line := range strings.Lines(server.Do("info", "commandstats")) {
				if name, stats, _ := strings.Cut(line, ":calls="); name == "cmdstat_evalsha" || name == "cmdstat_eval" {
					count, _, _ := strings.Cut(stats, ",")
					calls += number(count)
				}
			}
			return calls
		},
		level: func(zone string) float64 {
			text, _, _ := strings.Cut(server.Do("get", "throttle:"+zone+"/everybody"), " ")
			return number(text)
		},
	}
}

func startPostgres(t *testing.T) *storeServer {
	// Each batch is a commit, which these tests count.
	server := pgtest.Start(t, "stats_fetch_consistency=none")
	return &storeServer{
		name:    "postgres",
		address: fmt.Sprintf("127.0.0.1:%d", server.Port),
		url: func(address string) string {
			return strings.Replace(server.URL(), fmt.Sprintf("127.0.0.1:%d", server.Port), address, 1)
		},
		kill: server.Kill,
		run: func() {
			if err := server.Run(); err != nil {
				t.Error(err)
			}
		},
		freeze: server.Freeze,
		connections: func() int {
			return int(server.Float(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'throttle'"))
		},
		asked: func() float64 {
			return server.Float(t, "SELECT n_tup_ins + n_tup_upd FROM pg_stat_user_tables WHERE relname = 'throttle_buckets'")
		},
		level: func(zone string) float64 {
			return server.Float(t, "SELECT coalesce(max(level), 0) FROM throttle_buckets WHERE name = '"+zone+"/everybody'")
		},
	}
}
