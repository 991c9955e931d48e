package stores

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// farAway returns the address of a proxy that passes nothing on in the first while of a
// connection, as a store behind TLS and another site needs to connect.
func farAway(t *testing.T, address string, after time.Duration) string {
	t.Helper()
	listener := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				time.Sleep(after)
				server, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer server.Close()
				go func() {
					_, _ = io.Copy(server, client)
					_ = server.Close()
				}()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	return listener.Addr().String()
}

// TestRestarts: a start of Caddy gives nobody a new capacity, and lifts no block, however long
// the store takes to connect, within the timeout of its calls and beyond. After a restart in which a
// busy machine has missed that, there is another one.
func TestRestarts(t *testing.T) {
	t.Parallel()
	far := func(start func(*testing.T) *storeServer, after time.Duration) func(*testing.T) string {
		return func(t *testing.T) string {
			s := start(t)
			return s.through(farAway(t, s.address, after))
		}
	}
	type restart struct {
		name  string
		store func(*testing.T) string
		kill  bool
		block string
		nodes int
	}
	restarts := []restart{
		{"redis, SIGTERM", far(startRedis, 0), false, "", 1},
		{"redis 150 ms, SIGKILL", far(startRedis, 150*time.Millisecond), true, "", 1},
		{"redis 150 ms, SIGTERM, block", far(startRedis, 150*time.Millisecond), false, "block 1h", 1},
		{"redis 1500 ms, SIGKILL, block", far(startRedis, 1500*time.Millisecond), true, "block 1h", 1},
		{"redis 1500 ms, SIGTERM, 3 nodes", far(startRedis, 1500*time.Millisecond), false, "", 3},
		{"postgres, SIGTERM, block", far(startPostgres, 0), false, "block 1h", 1},
		{"postgres, SIGKILL", far(startPostgres, 0), true, "", 1},
		{"postgres, SIGKILL, 3 nodes", far(startPostgres, 0), true, "", 3},
		{"sentinel, SIGKILL", func(t *testing.T) string { return "store redis " + servertest.StartRedisSentinel(t).URL() }, true, "", 1},
		{"cluster, SIGKILL, block", func(t *testing.T) string { return "store redis " + servertest.StartRedisCluster(t).URL() }, true, "block 1h", 1},
	}
	if system.Long() { // all others, too, and one after the other
		for name, store := range map[string]func(*testing.T) string{
			"redis": far(startRedis, 0), "redis 150 ms": far(startRedis, 150*time.Millisecond),
			"redis 1500 ms": far(startRedis, 1500*time.Millisecond), "postgres": far(startPostgres, 0),
		} {
			for _, nodes := range []int{1, 3} {
				for _, block := range []string{"", "block 1h"} {
					for _, kill := range []bool{false, true} {
						restarts = append(restarts, restart{fmt.Sprintf("%s, kill %v, %s, %d nodes", name, kill, block, nodes), store, kill, block, nodes})
					}
				}
			}
		}
	}
	for _, test := range restarts {
		t.Run(test.name, func(t *testing.T) {
			if !system.Long() {
				t.Parallel()
			}
			store := test.store(t)
			fleet := startFleet(t, test.nodes, fmt.Sprintf("%s\nnodes %d\nstore_timeout 1s", store, test.nodes), func(port int) string {
				return fmt.Sprintf("http://:%d {\nthrottle {\nzone pages {\nlimit 20 1/h\n%s\n}\n}\nrespond ok\n}", port, test.block)
			})
			v := system.NewVisitor(t, "h1")
			admitted := func() (sum int, failed float64) {
				for _, n := range fleet {
					sum += v.CountAdmitted(t, 25, n.url)
					failed += n.Metric(t, "caddy_throttle_store_errors_total") + n.Metric(t, "caddy_throttle_store_outages_total")
				}
				return sum, failed
			}
			first, failed := admitted()
			check.That(t, first == 20 || failed > 0, "got %d admitted at first, want 20", first)
			told := 0 // restarts without a failed call, which tell how many the store admits
			for restarts := 0; told < 4 && restarts < 8; restarts++ {
				for _, n := range fleet {
					if test.kill {
						n.kill()
					} else if err := n.ShutDown(); err != nil {
						t.Error(err)
					}
					n.start()
				}
				if again, failed := admitted(); failed > 0 {
					t.Logf("%d admitted after a restart, %v calls failed or outages began", again, failed)
				} else if told++; again > 0 {
					t.Errorf("got %d admitted after a restart, want none", again)
				}
			}
			check.That(t, told > 0, "got calls that fail after each restart")
		})
	}
}
