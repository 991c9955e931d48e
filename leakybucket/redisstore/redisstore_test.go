package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func TestKeysCanBeReadWithRedisCli(t *testing.T) {
	server, s := start(t, Options{Prefix: "site:"})
	s.held.Store(1_700_000_000_000_000)
	c := charge("192.0.2.7", leakybucket.Limit{Capacity: 10, Leak: 0.5}, 2.5)
	mustTake(t, s, c)
	check.Equal(t, server.Do("get", "site:zone/192.0.2.7"), "2.5 1700000000000000 0.5", "key of a bucket")
	c.Shadow, c.Block = true, &leakybucket.Ladder{Steps: []time.Duration{time.Minute, time.Hour}}
	mustTake(t, s, c)
	c.Cost = 9
	mustTake(t, s, c)
	check.Equal(t, server.Do("get", "site:~zone/192.0.2.7"), "2.5 1700000000000000 0.5 1700000060000000 0", "key of a blocked shadow bucket")
}

// Nodes that agree about a leak pay for no write when they refuse.
func TestARefusalWritesForAnotherLeakOnly(t *testing.T) {
	server, s := start(t, Options{})
	slow, fast := leakybucket.Limit{Capacity: 10, Leak: 0.001}, leakybucket.Limit{Capacity: 10, Leak: 0.002}
	mustTake(t, s, charge("k", slow, 9))
	for _, test := range []struct {
		leaks  []leakybucket.Limit
		writes string
	}{
		{[]leakybucket.Limit{slow, slow}, "0"},
		{[]leakybucket.Limit{fast, slow}, "100"},
	} {
		server.Do("save") // begins the count anew
		for i := range 100 {
			d := mustTake(t, s, charge("k", test.leaks[i%2], 5))
			check.Assume(t, !d.Poured, "take %d: got it poured at level %v", i, d.Level)
		}
		check.Equal(t, server.Info("rdb_changes_since_last_save"), test.writes, "100 refusals by leaks of %v: writes", test.leaks)
	}
}

// As many settlements as one call may have are made with one call, and a bad bucket harms no other.
func TestManySettlementsAtOnceAreAllMade(t *testing.T) {
	server, s := start(t, Options{})
	settlements := make([]leakybucket.Settlement, mostKeys+1)
	for i := range settlements {
		settlements[i] = leakybucket.Settlement{Charge: charge(fmt.Sprint("k", i%500), frozen, 1), Diff: 1}
	}
	server.Do("lpush", "throttle:zone/k1", "x")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	check.Is(t, s.Settle(ctx, settlements[1:]), store.ErrBadBucket, "settlements, some of a key that is no bucket")
	for _, i := range []int{0, 2, 499} {
		got := levelOf(t, s, charge(fmt.Sprint("k", i), frozen, 1))
		check.That(t, math.Abs(got-mostKeys/500) <= leaked, "level of k%d: got %v, want %d", i, got, mostKeys/500)
	}
	for what, err := range map[string]error{
		"settlements": s.Settle(ctx, settlements),
		"charges":     s.Take(ctx, make([]leakybucket.Charge, mostKeys+1), make([]leakybucket.Decision, mostKeys+1)),
	} {
		check.That(t, errors.Is(err, store.ErrBadBucket) && strings.Contains(err.Error(), fmt.Sprint(mostKeys)), "too many %s: got %v, want an error of the call, not of the store, that says how many are allowed", what, err)
	}
}

// A bucket expires ten seconds after the instant that store.Expiry tells.
func TestBucketsExpireOnceTheyMayBeForgotten(t *testing.T) {
	server, s := start(t, Options{Prefix: "p:"})
	expect := func(key string, want time.Duration) {
		t.Helper()
		ms := check.Must(strconv.Atoi(server.Do("pttl", "p:zone/"+key)))(t)
		left := time.Duration(ms) * time.Millisecond
		check.That(t, left <= want+10*time.Second && left >= want+5*time.Second, "time left to %s: got %v, want 10 s after %v", key, left, want)
	}
	l := leakybucket.Limit{Capacity: 10, Leak: 0.5}
	first := charge("k", l, 5)
	was := mustTake(t, s, first)
	expect("k", 10*time.Second)
	mustTake(t, s, charge("k", l, 20)) // refused, and nothing is written
	expect("k", 10*time.Second)
	slow := charge("slow", leakybucket.Limit{Capacity: 1e9, Leak: 2}, 1e9)
	mustTake(t, s, slow)
	expect("slow", 5e8*time.Second)
	blocked := charge("blocked", l, 10)
	blocked.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Minute, time.Hour}}
	mustTake(t, s, blocked)
	mustTake(t, s, blocked)
	expect("blocked", 2*time.Minute)

	settlement := leakybucket.Settlement{Charge: first, Was: was, Cancel: true}
	check.OK(t, s.Settle(context.Background(), []leakybucket.Settlement{settlement}))
	check.Equal(t, server.Do("exists", "p:zone/k"), "0", "bucket that was emptied")
	for _, c := range []leakybucket.Charge{charge("refused", l, 11), charge("nothing", l, 0)} {
		mustTake(t, s, c)
		check.Equal(t, server.Do("exists", "p:zone/"+c.Key), "0", "%s: keys of an empty bucket", c.Key)
	}
}

// TestThreeStoresAreOne has three stores, which Redis cannot tell from three
// processes. They send no time, so their clocks do not matter.
func TestThreeStoresAreOne(t *testing.T) {
	server := servertest.StartRedis(t)
	var stores [3]*Store
	for i := range stores {
		stores[i] = open(t, "redis://"+server.Addr, Options{})
		check.Need(t, stores[i].now(), "", "what a store says of the time")
	}
	limit := leakybucket.Limit{Capacity: 100, Leak: 1e-4}
	var poured [3]int
	var wg sync.WaitGroup
	for i, s := range stores {
		wg.Go(func() {
			for range 100 {
				d, err := takeWithin(s, charge("k", limit, 1), patience)
				if err != nil {
					t.Error(err)
					return
				}
				if d.Poured {
					poured[i]++
				}
			}
		})
	}
	wg.Wait()
	sum := poured[0] + poured[1] + poured[2]
	check.That(t, sum == 100, "poured by three stores into a bucket of 100: got %v, want 100 in all", poured)
	d := mustTake(t, stores[0], charge("k", limit, 1))
	seconds, _, _ := strings.Cut(server.Do("time"), "\n")
	want, err := strconv.ParseInt(seconds, 10, 64)
	check.That(t, err == nil && math.Abs(float64(d.At)/1e6-float64(want)) <= 5, "instant of a decision: got %d, want the server's time %s", d.At, seconds)
}

// TestConcurrentTakesShareCalls has callers share calls without a timer.
func TestConcurrentTakesShareCalls(t *testing.T) {
	server, s := start(t, Options{})
	mustTake(t, s, charge("k", frozen, 1))
	const callers, takes = 64, 50
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range takes {
				if _, err := takeWithin(s, charge("k", frozen, 1), patience); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	got := levelOf(t, s, charge("k", frozen, 1))
	check.That(t, math.Abs(got-callers*takes-1) <= leaked, "level: got %v, want %d, what was poured", got, callers*takes+1)
	stats := server.Do("info", "commandstats")
	_, rest, _ := strings.Cut(stats, "cmdstat_evalsha:calls=")
	calls, _, _ := strings.Cut(rest, ",")
	n, err := strconv.Atoi(calls)
	check.That(t, err == nil && n <= callers*takes/2, "calls for %d takes: got %q, want many takes to share one", callers*takes, calls)
}

func TestAKeyThatIsTooLongIsAnError(t *testing.T) {
	s := open(t, "redis://127.0.0.1:1", Options{})
	long := charge(strings.Repeat("x", longestKey), frozen, 1)
	_, err := take(s, long)
	check.That(t, err != nil && strings.Contains(err.Error(), fmt.Sprint(longestKey)), "take: got %.200v, want an error that tells the longest", err)
	check.Is(t, err, store.ErrBadBucket, "take, want no breaker to count it: clients choose keys")
	check.That(t, s.Settle(context.Background(), []leakybucket.Settlement{{Charge: long}}) != nil, "settlement: got no error")
}

func TestCheckWarnsOfAServerThatForgets(t *testing.T) {
	for policy, want := range map[string]string{"noeviction": "", "volatile-ttl": "", "allkeys-lru": "allkeys-lru"} {
		server := servertest.StartRedis(t, "--maxmemory-policy", policy)
		warnings, err := open(t, "redis://"+server.Addr, Options{}).Check(context.Background())
		check.That(t, err == nil && (len(warnings) > 0) == (want != "") && strings.Contains(strings.Join(warnings, ""), want), "%s: got warnings %q, %v, want %q", policy, warnings, err, want)
	}
	server := servertest.StartRedis(t, "--user", "app", "on", ">pw", "~*", "+get", "+ping")
	warnings, err := open(t, "redis://app:pw@"+server.Addr, Options{}).Check(context.Background())
	check.That(t, err == nil && len(warnings) == 1 && strings.Contains(warnings[0], "cannot see"), "user that may not ask: got %q, %v, want a warning", warnings, err)
}

// TestRegistryJunk writes what is none of ours into the hash. Texts are written and read all the
// same, and the junk is returned with the number 0.
func TestRegistryJunk(t *testing.T) {
	server := servertest.StartRedis(t)
	end := leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro())
	for field, junk := range map[string][]string{
		"":     {"", "junk", "-1", "1e300", "99999999999999999999", "9007199254740993", "4503599627370496", "1125899906842624 and more"},
		"name": {"", "junk", "-1", "1e300", "1", "1 2", "1 x text", "99999999999999999999 9 text", "4503599627370496 9999999999999999 text", "0 9999999999999999 text"},
	} {
		for i, value := range junk {
			s := open(t, "redis://"+server.Addr, Options{Prefix: fmt.Sprint("junk", i, field, ":")})
			server.Do("hset", s.registryKey(), field, value)
			server.Do("hset", s.registryKey(), "other", "junk")
			all, err := s.Texts(t.Context(), -1)
			check.Assume(t, err == nil && all.Count == len(all.Texts) && all.Count != 0, "%q %q: got %+v, error %v, want the junk counted", field, value, all, err)
			for _, text := range all.Texts {
				check.That(t, text.Number == 0 && text.Text == "", "%q %q: got %+v, want the number 0", field, value, text)
			}
			want := store.Text{Name: "name", Number: 2, End: end, Text: "ours"}
			before, last, err := s.PutTexts(t.Context(), []store.Text{want})
			check.Assume(t, err == nil && last != before, "%q %q: got numbers %d and %d, error %v, want it written", field, value, before, last, err)
			if all, err = s.Texts(t.Context(), before); err != nil || all.Last != last || len(all.Texts) != 2 || all.Texts[0] != want && all.Texts[1] != want {
				t.Errorf("%q %q: got %+v, error %v, want ours and one junk", field, value, all, err)
			}
		}
	}
}

// TestRegistryFlood: more short fields of others than a reply may have are no error, and what is
// written stands.
func TestRegistryFlood(t *testing.T) {
	const flood = 70_000
	server, s := start(t, Options{})
	for from := 0; from < flood; from += 1000 {
		args := []string{"hset", s.registryKey()}
		for i := range 1000 {
			args = append(args, fmt.Sprint("=a", from+i), "1000000000000001 x")
		}
		server.Do(args...)
	}
	end := leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro())
	before, last, err := s.PutTexts(t.Context(), []store.Text{{Name: "name", Number: 2, End: end, Text: "ours"}})
	check.Assume(t, err == nil && last != before, "got marks %d and %d, error %v, want it written", before, last, err)
	all, err := s.Texts(t.Context(), before)
	if err != nil || all.Last != last || all.Count != flood+1 || len(all.Texts) != store.MostTexts {
		t.Errorf("got %d of %d texts, last write %d, error %v, want %d of %d and %d", len(all.Texts), all.Count, all.Last, err, store.MostTexts, flood+1, last)
	}
}

// TestAFullRegistryIsRead: it may have as many texts as long as these.
func TestAFullRegistryIsRead(t *testing.T) {
	_, s := start(t, Options{})
	end := leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro())
	for from := 0; from < store.MostTexts; from += 500 {
		var some []store.Text
		for i := range 500 {
			some = append(some, store.Text{Name: fmt.Sprint("name", from+i), Number: 1, End: end, Text: strings.Repeat("x", store.LongestText-20)})
		}
		_, _, err := s.PutTexts(t.Context(), some)
		check.NoError(t, err)
	}
	all, err := s.Texts(t.Context(), -1)
	check.That(t, err == nil && len(all.Texts) == store.MostTexts, "got %d texts, error %v", len(all.Texts), err)
}

// TestRegistryOfAnotherType names the key, so that its owner can delete it.
func TestRegistryOfAnotherType(t *testing.T) {
	server, s := start(t, Options{Prefix: "shop:"})
	server.Do("lpush", "shop:@changes", "junk")
	_, err := s.Texts(t.Context(), -1)
	check.That(t, err != nil && strings.Contains(err.Error(), "shop:@changes") && strings.Contains(err.Error(), "delete it"), "got error %v, want the key and what to do", err)
}

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

// start starts a server and opens a store of it.
func start(t *testing.T, o Options, args ...string) (*servertest.Redis, *Store) {
	t.Helper()
	server := servertest.StartRedis(t, args...)
	return server, open(t, "redis://"+server.Addr, o)
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
	for _, words := range []string{"ACL", "CONFIG"} {
		check.Need(t, server.Do(documented(t, words)...), "OK", "from the server")
	}
	server.Kill()
	server.Start() // which forgets users that are in memory only
	s := open(t, "redis://"+server.Addr+"/1", Options{Prefix: "shop:", Username: "throttle", Password: "a-long-password"})
	warnings, err := s.Check(t.Context())
	check.That(t, err == nil && len(warnings) == 0, "got %q, %v from Check", warnings, err)
	c := charge("203.0.113.7", leakybucket.Limit{Capacity: 10, Leak: 0.5}, 2)
	d := mustTake(t, s, c)
	check.NoError(t, s.Settle(t.Context(), []leakybucket.Settlement{{Charge: c, Was: d, Diff: 1}}), "Settle")
	some, _, err := s.List(t.Context(), store.Filter{Zone: c.Zone, Scan: 1000}, "")
	check.That(t, err == nil && len(some) == 1, "got %+v, %v from List", some, err)
	check.NoError(t, s.Reset(t.Context(), c.Zone, c.Key, false), "Reset")
	text := store.Text{Name: "name", Number: 1, End: leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro()), Text: "text"}
	_, _, err = s.PutTexts(t.Context(), []store.Text{text})
	check.That(t, err == nil, "got %v from PutTexts", err)
	all, err := s.Texts(t.Context(), -1)
	check.That(t, err == nil && len(all.Texts) == 1, "got %+v, %v from Texts", all, err)
	server.Do("-n", "1", "hset", "shop:@changes", "ended", "1 1 text") // which is deleted
	all, err = s.Texts(t.Context(), -1)
	check.That(t, err == nil && len(all.Texts) == 1, "got %+v, %v from Texts", all, err)
}

// A user who may not read is no fault of the bucket: the store cannot be used, and says why.
func TestAUserWhoMayNotReadIsAClearError(t *testing.T) {
	server := servertest.StartRedis(t)
	server.Do("ACL", "SETUSER", "blind", "on", "nopass", "~*", "+@all", "-get")
	s := open(t, "redis://blind:secret@"+server.Addr, Options{})
	_, err := take(s, charge("k", frozen, 1))
	check.That(t, err != nil && !errors.Is(err, store.ErrBadBucket) && strings.Contains(err.Error(), rights), "got %v, want an error that says what the user needs", err)
}

func TestTheDocumentedUserMayUseSentinels(t *testing.T) {
	w := servertest.StartRedisSentinel(t)
	for _, server := range w.Servers {
		check.Need(t, server.Do(documented(t, "ACL")...), "OK", "from the server")
	}
	mustTake(t, open(t, w.URL(), Options{Prefix: "shop:", Username: "throttle", Password: "a-long-password"}), charge("203.0.113.7", frozen, 1))
}
