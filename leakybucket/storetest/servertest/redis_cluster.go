package servertest

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// A RedisCluster is a cluster of six nodes: three masters with a replica each.
type RedisCluster struct {
	Nodes []*Redis

	tb testing.TB
}

// StartRedisCluster starts a cluster and waits until it takes writes.
func StartRedisCluster(tb testing.TB) *RedisCluster {
	tb.Helper()
	c := &RedisCluster{tb: tb}
	create := []string{"--cluster", "create"}
	for range 6 {
		node := StartRedis(tb, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0")
		c.Nodes = append(c.Nodes, node)
		create = append(create, node.Addr)
	}
	create = append(create, "--cluster-replicas", "1", "--cluster-yes")
	if out, err := exec.Command("redis-cli", create...).CombinedOutput(); err != nil {
		tb.Fatalf("creating a cluster: %v\n%s", err, out)
	}
	c.Settled()
	return c
}

// URL returns the URL of the cluster, as redisstore wants it.
func (c *RedisCluster) URL() string {
	var addresses []string
	for _, node := range c.Nodes {
		addresses = append(addresses, node.Addr)
	}
	return "redis+cluster://" + strings.Join(addresses, ",")
}

// Settled waits until every node sees the whole cluster and every replica is in
// step.
func (c *RedisCluster) Settled() {
	c.tb.Helper()
	Eventually(c.tb, "the cluster is whole", func() error {
		replicas := 0
		for _, node := range c.Nodes {
			info, err := node.Try("cluster", "info")
			if err != nil {
				return err
			}
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:6") {
				return fmt.Errorf("got %s: %s", node.Addr, info)
			}
			replication, err := node.Try("info", "replication")
			if err != nil {
				return err
			}
			if strings.Contains(replication, "role:slave") && strings.Contains(replication, "master_link_status:up") {
				replicas++
			}
		}
		if replicas != 3 {
			return fmt.Errorf("got %d replicas in step, want 3", replicas)
		}
		return nil
	})
}

// Owner returns the master that has the buckets of a store without a prefix of its own, and its
// replica.
func (c *RedisCluster) Owner() (master, replica *Redis) {
	c.tb.Helper()
	for _, node := range c.Nodes {
		if !strings.HasPrefix(node.Do("get", "{throttle}:"), "MOVED") {
			master = node
		}
	}
	for _, node := range c.Nodes {
		if role := node.Do("role"); master != nil && strings.HasPrefix(role, "slave") && strings.Contains(role, fmt.Sprint(master.Port)) {
			return master, node
		}
	}
	c.tb.Fatal("got no master with a replica for the buckets")
	return nil, nil
}

// Failover lets the replica of the buckets take over by force, and returns once it is a master.
func (c *RedisCluster) Failover() {
	c.tb.Helper()
	_, replica := c.Owner()
	replica.Do("cluster", "failover", "force")
	Eventually(c.tb, "a replica has taken over", func() error {
		if strings.HasPrefix(replica.Do("role"), "master") {
			return nil
		}
		return errors.New("it is a replica still")
	})
}
