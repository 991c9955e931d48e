package servertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// masterName is the name under which the Sentinel knows its master.
const masterName = "mymaster"

// A RedisSentinel is a master with a replica, and a Sentinel that watches them.
type RedisSentinel struct {
	Servers  [2]*Redis
	Sentinel *Redis

	tb testing.TB
}

// StartRedisSentinel starts all three, and waits until the Sentinel knows the
// replica.
func StartRedisSentinel(tb testing.TB) *RedisSentinel {
	tb.Helper()
	need(tb, "redis-sentinel")
	w := &RedisSentinel{tb: tb}
	fast := []string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}
	w.Servers[0] = StartRedis(tb, fast...)
	w.Servers[1] = StartRedis(tb, append(fast, "--replicaof", fmt.Sprintf("127.0.0.1 %d", w.Servers[0].Port))...)
	port := FreePort(tb)
	config := filepath.Join(tb.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 1\n"+
		"sentinel down-after-milliseconds %[1]s 500\nsentinel failover-timeout %[1]s 1500\n", masterName, w.Servers[0].Port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	w.Sentinel = &Redis{Addr: fmt.Sprintf("127.0.0.1:%d", port), Port: port, Dir: filepath.Dir(config), tb: tb}
	w.Sentinel.args = []string{config, "--sentinel", "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--logfile", filepath.Join(w.Sentinel.Dir, "log")}
	tb.Cleanup(w.Sentinel.Kill)
	w.Sentinel.Start()
	w.Settled()
	return w
}

// URL returns the URL of the master by its Sentinel, as redisstore wants it.
func (w *RedisSentinel) URL() string { return "redis+sentinel://" + w.Sentinel.Addr + "/" + masterName }

// Master returns the server that the Sentinel holds for the master: another one
// only once a failover has ended, and everybody was told.
func (w *RedisSentinel) Master() *Redis {
	w.tb.Helper()
	out := w.Sentinel.Do("sentinel", "master", masterName)
	for _, s := range w.Servers {
		if strings.Contains(out, fmt.Sprintf("\nport\n%d\n", s.Port)) {
			return s
		}
	}
	w.tb.Fatalf("sentinel: got master %q, want one of ours", out)
	return nil
}

// Settled waits until the Sentinel knows a replica of the master that is in step.
func (w *RedisSentinel) Settled() {
	w.tb.Helper()
	Eventually(w.tb, "the sentinel sees a master and a replica in step", func() error {
		out, err := w.Sentinel.Try("sentinel", "replicas", masterName)
		if err != nil {
			return err
		}
		if !strings.Contains(out, "master-link-status\nok") || strings.Contains(out, "s_down") {
			return fmt.Errorf("got replicas %q", out)
		}
		master := w.Master()
		replication, err := master.Try("info", "replication")
		if err != nil {
			return err
		}
		if !strings.Contains(replication, "role:master") || !strings.Contains(replication, "state=online") {
			return fmt.Errorf("got master %s: %s", master.Addr, replication)
		}
		return nil
	})
}

// Failover makes the replica the master, and returns once it is: by force, as
// when the master dies, or by the Sentinel's own decision, which leaves the old
// master and its connections alive. The old master becomes a replica later; see
// Settled.
func (w *RedisSentinel) Failover(force bool) *Redis {
	w.tb.Helper()
	old := w.Master()
	if force {
		old.Kill()
	} else {
		w.Sentinel.Do("sentinel", "failover", masterName)
	}
	Eventually(w.tb, "the sentinel has another master", func() error {
		if master := w.Master(); master == old || !strings.HasPrefix(master.Do("role"), "master") {
			return fmt.Errorf("got %s still", master.Addr)
		}
		return nil
	})
	if force {
		old.Start()
	}
	return w.Master()
}
