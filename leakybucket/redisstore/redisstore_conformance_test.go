package redisstore

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, opener("redis://"+servertest.StartRedis(t).Addr, "test%d:"))
}

func TestStoreKeepsTheContractInACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: the same as on one server; run without -short")
	}
	storetest.Run(t, opener(servertest.StartRedisCluster(t).URL(), "{test%d}:"))
}

// BenchmarkTake runs as BenchmarkTake/store=redis/keys=1/result=allowed and the
// like.
func BenchmarkTake(b *testing.B) {
	server := servertest.StartRedis(b)
	b.Run("store=redis", func(b *testing.B) { storetest.Benchmark(b, opener("redis://"+server.Addr, "test%d:")) })
}

var prefixes atomic.Int64

// opener opens stores that share a server, each with a prefix of its own.
func opener(url, prefix string) storetest.Open {
	return func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		s := open(tb, url, Options{Prefix: fmt.Sprintf(prefix, prefixes.Add(1))})
		return s, func(at leakybucket.Instant) { s.held.Store(int64(at)) }
	}
}

func open(tb testing.TB, url string, o Options) *Store {
	tb.Helper()
	s, err := Open(url, o)
	check.OK(tb, err, "opening a store")
	tb.Cleanup(s.Close)
	return s
}

// documented returns the words of the command in docs/several-caddys.md that begins
// with redis-cli and these words, without redis-cli.
func documented(t *testing.T, words string) []string {
	t.Helper()
	page := check.Must(os.ReadFile("../../docs/several-caddys.md"))(t)
	found := regexp.MustCompile(`(?m)^ *redis-cli (` + words + `.*)$`).FindStringSubmatch(string(page))
	check.Assume(t, found != nil, "the page has no command redis-cli %s", words)
	return strings.Fields(strings.ReplaceAll(found[1], "'", ""))
}

func TestTheDocumentedUserMayDoEverythingThatTheStoreDoes(t *testing.T) {
	server := servertest.StartRedis(t)
	check.Need(t, server.Do(documented(t, "ACL")...), "OK", "from the server")
	s := open(t, "redis://"+server.Addr, Options{Prefix: "shop:", Username: "throttle", Password: "a-long-password"})
	if warnings, err := s.Check(t.Context()); err != nil || len(warnings) > 0 {
		t.Errorf("got %q, %v from Check", warnings, err)
	}
	c := charge("203.0.113.7", leakybucket.Limit{Capacity: 10, Leak: 0.5}, 2)
	d := mustTake(t, s, c)
	if err := s.Settle(t.Context(), []leakybucket.Settlement{{Charge: c, Was: d, Diff: 1}}); err != nil {
		t.Errorf("got %v from Settle", err)
	}
	if some, _, err := s.List(t.Context(), store.Filter{Zone: c.Zone, Scan: 1000}, ""); err != nil || len(some) != 1 {
		t.Errorf("got %+v, %v from List", some, err)
	}
	if err := s.Reset(t.Context(), c.Zone, c.Key, false); err != nil {
		t.Errorf("got %v from Reset", err)
	}
	text := store.Text{Name: "name", Number: 1, End: leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro()), Text: "text"}
	if _, _, err := s.PutTexts(t.Context(), []store.Text{text}); err != nil {
		t.Errorf("got %v from PutTexts", err)
	}
	if all, err := s.Texts(t.Context(), -1); err != nil || len(all.Texts) != 1 {
		t.Errorf("got %+v, %v from Texts", all, err)
	}
	server.Do("hset", "shop:@changes", "ended", "1 1 text") // which is deleted
	if all, err := s.Texts(t.Context(), -1); err != nil || len(all.Texts) != 1 {
		t.Errorf("got %+v, %v from Texts", all, err)
	}
}

func TestTheDocumentedUserMayUseACluster(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	for _, node := range c.Nodes {
		for _, words := range []string{"ACL SETUSER throttle on", "ACL SETUSER throttle '~{"} {
			check.Need(t, node.Do(documented(t, words)...), "OK", "from the server")
		}
	}
	s := open(t, c.URL(), Options{Prefix: "{shop}:", Username: "throttle", Password: "a-long-password"})
	all := []leakybucket.Charge{charge("203.0.113.7", frozen, 1), charge("203.0.113.8", frozen, 1), charge("203.0.113.9", frozen, 1)}
	err := s.Take(t.Context(), all, make([]leakybucket.Decision, len(all)))
	check.That(t, err == nil, "got %v from Take", err)
}

func TestTheDocumentedCommandFreesABlockedClient(t *testing.T) {
	server := servertest.StartRedis(t)
	s := open(t, "redis://"+server.Addr, Options{Prefix: "shop:"})
	c := charge("203.0.113.7", leakybucket.Limit{Capacity: 10, Leak: 0.5}, 9)
	c.Zone, c.Block = "login", &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
	mustTake(t, s, c)
	if d := mustTake(t, s, c); d.Fits || d.BlockedUntil == 0 {
		t.Fatalf("got %+v, want a blocked bucket", d)
	}
	check.Need(t, server.Do(documented(t, "DEL")...), "1", "deleted keys")
	if d := mustTake(t, s, c); !d.Poured || d.Level != 0 {
		t.Errorf("got %+v, want an empty bucket", d)
	}
}
