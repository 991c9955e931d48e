package changes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A server is a store as Redis is one. It can be flushed, taken back and frozen.
type server struct {
	mu     sync.Mutex
	texts  map[string]store.Text
	last   int64
	skew   time.Duration // of its clock
	frozen bool          // calls are executed when it is thawed, and get no answer
	late   []func()
}

func newServer() *server { return &server{texts: make(map[string]store.Text)} }

// A backup is what a server had at some instant.
type backup struct {
	texts map[string]store.Text
	last  int64
}

func (s *server) backup() backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return backup{maps.Clone(s.texts), s.last}
}

func (s *server) restore(b backup, skew time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.texts, s.last, s.skew = maps.Clone(b.texts), b.last, skew
}

func (s *server) flush() { s.restore(backup{texts: map[string]store.Text{}}, s.skew) }

func (s *server) freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = true
}

func (s *server) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = false
	for _, call := range s.late {
		call()
	}
	s.late = nil
}

// expire drops what has ended by the server's clock, which it returns. mu is held.
func (s *server) expire() (now int64) {
	now = time.Now().Add(s.skew).UnixMicro()
	maps.DeleteFunc(s.texts, func(_ string, t store.Text) bool { return t.End != 0 && int64(t.End) <= now })
	return now
}

// put is PutTexts. mu is held.
func (s *server) put(texts []store.Text) (before, last int64) {
	before = s.last
	now := s.expire()
	for _, t := range texts {
		if t.Number > s.texts[t.Name].Number && int64(t.End) > now {
			s.texts[t.Name] = t
			s.last = 1 + rand.Int64N(store.MostNumber-1)
		}
	}
	return before, s.last
}

// A link leads to a server, unless it is cut.
type link struct {
	*server
	cut   bool
	deaf  bool // calls are executed, and their answers lost
	calls int
	reads atomic.Int64 // of all texts
}

var errCut = errors.New("connection refused")

func (l *link) set(cut, deaf bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.deaf = cut, deaf
}

// call executes a call, or will when the server is thawed.
func (l *link) call(ctx context.Context, execute func()) error {
	l.mu.Lock()
	l.calls++
	frozen := l.frozen
	switch {
	case l.cut:
		l.mu.Unlock()
		return errCut
	case frozen:
		l.late = append(l.late, execute)
	default:
		execute()
	}
	deaf := l.deaf
	l.mu.Unlock()
	if frozen {
		<-ctx.Done()
		return ctx.Err()
	}
	if deaf {
		return errCut
	}
	return nil
}

func (l *link) Texts(ctx context.Context, seen int64) (store.Texts, error) {
	var all store.Texts
	err := l.call(ctx, func() {
		l.expire()
		if all.Last = l.last; seen != l.last {
			l.reads.Add(1)
			all.Texts, all.Count = slices.Collect(maps.Values(l.texts)), len(l.texts)
			all.Texts = all.Texts[:min(all.Count, store.MostTexts)]
		}
	})
	if err != nil {
		return store.Texts{}, err
	}
	return all, nil
}

func (l *link) PutTexts(ctx context.Context, texts []store.Text) (before, last int64, err error) {
	texts = slices.Clone(texts)
	if err := l.call(ctx, func() { before, last = l.put(texts) }); err != nil {
		return 0, 0, err
	}
	return before, last, nil
}

// A node is a copy with its way to a server.
type node struct {
	*Copy
	link *link
	t    testing.TB
	path string
	stop chan struct{}
}

func start(t testing.TB, s *server, path string) *node {
	n := &node{Copy: New(), link: &link{server: s}, t: t, path: path, stop: make(chan struct{})}
	n.Use(n.link, path, zap.NewNop(), nil)
	go n.Run(n.stop)
	return n
}

// kill ends a node as kill -9 does.
func (n *node) kill() {
	close(n.stop)
	defer n.talk()() // a poll may be under way
	n.Close()
}

func (n *node) restart() *node {
	n.kill()
	return start(n.t, n.link.server, n.path)
}

// run runs a test in virtual time with nodes that share a server.
func run(t *testing.T, nodes int, test func(t *testing.T, s *server, n []*node)) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := newServer(), t.TempDir()
		all := make([]*node, nodes)
		for i := range all {
			all[i] = start(t, s, filepath.Join(dir, fmt.Sprint("node", i)))
		}
		time.Sleep(time.Second)
		test(t, s, all)
		for _, n := range all {
			n.kill()
		}
	})
}

const robber, other = "203.0.113.0/24", "198.51.100.0/24"

func banOf(network string, d time.Duration, by string) override.Entry {
	now := time.Now()
	return override.Entry{Name: override.Name{Kind: override.OfBan, Key: network}, Span: override.Span{Since: now, Until: now.Add(d), By: by}}
}

func unban(network string) override.Entry {
	e := banOf(network, time.Hour, "")
	e.Ended = true
	return e
}

func (n *node) change(e override.Entry, replace bool) Sync {
	n.t.Helper()
	told, _, err := n.Change(e, "test", replace)
	check.OK(n.t, err, "%v", e)
	return told
}

// by returns who has banned a network on a node.
func (n *node) by(network string) string {
	if ban := n.Table.Load().Banned(netip.MustParsePrefix(network).Addr(), time.Now()); ban != nil {
		return ban.By
	}
	return "nobody"
}

// want wants the same ban on all nodes.
func want(t *testing.T, nodes []*node, network, by string) {
	t.Helper()
	for i, n := range nodes {
		check.Equal(t, n.by(network), by, "node %d: who has banned %s", i, network)
	}
}

// agreed is two polls, and a little for what happens at the instant of the second.
const agreed = 2*time.Second + 10*time.Millisecond

func TestFollow(t *testing.T) {
	run(t, 3, func(t *testing.T, _ *server, n []*node) {
		told := n[0].change(banOf(robber, time.Hour, "alice"), false)
		check.That(t, told.Shared && told.Kept && told.Error == "", "got %+v, want it shared and kept", told)
		time.Sleep(agreed)
		want(t, n, robber, "alice")
		var conflict *Conflict
		_, _, err := n[1].Change(banOf(robber, time.Minute, "bob"), "test", false)
		check.That(t, errors.As(err, &conflict) && conflict.By == "alice", "a second ban: got error %v, want a conflict with alice's", err)
		n[1].change(banOf(robber, time.Minute, "bob"), true)
		_, _, err = n[0].Change(banOf(robber, time.Minute, "alice"), "test", false)
		check.That(t, errors.As(err, &conflict) && conflict.By == "bob", "at once after it: got error %v, want a conflict with bob's", err)
		time.Sleep(agreed)
		want(t, n, robber, "bob")
		n[2].change(unban(robber), false)
		time.Sleep(agreed)
		want(t, n, robber, "nobody")
		_, _, err = n[0].Change(unban(robber), "test", false)
		check.That(t, errors.Is(err, ErrNothing), "a second end: got error %v, want ErrNothing", err)
		got := n[0].Journal()
		check.That(t, len(got) == 3 && got[0].Action == "unban" && got[1].By == "bob" && got[1].Via == n[1].host && got[2].Via == "test", "journal of the first node: got %+v, want also what it took over", got)
	})
}

// An overtaken link has another node write just before its own first write.
type overtaken struct {
	*link
	by func()
}

func (l *overtaken) PutTexts(ctx context.Context, texts []store.Text) (before, last int64, err error) {
	if by := l.by; by != nil {
		l.by = nil
		by()
	}
	return l.link.PutTexts(ctx, texts)
}

func TestOvertaken(t *testing.T) {
	run(t, 2, func(t *testing.T, _ *server, n []*node) {
		overtake := func(network string) {
			by := func() {
				time.Sleep(time.Millisecond) // so that its number is higher
				n[1].change(banOf(network, time.Hour, "bob"), false)
			}
			n[0].Use(&overtaken{n[0].link, by}, "", zap.NewNop(), nil)
			time.Sleep(time.Second)
		}
		overtake(other)
		n[0].change(banOf(robber, time.Hour, "alice"), false)
		time.Sleep(agreed)
		want(t, n, robber, "alice")
		want(t, n, other, "bob")
		overtake("192.0.2.0/24")
		var conflict *Conflict
		_, _, err := n[0].Change(banOf("192.0.2.0/24", time.Hour, "alice"), "test", false)
		check.That(t, errors.As(err, &conflict) && conflict.By == "bob", "got error %v, want a conflict with bob's", err)
	})
}

// TestLoss takes the store back. Nothing that holds is forgotten, nothing that was lifted comes
// back, and a node that knows of nothing writes before the others notice.
func TestLoss(t *testing.T) {
	for name, lose := range map[string]func(s *server, old backup){
		"flush":                  func(s *server, _ backup) { s.flush() },
		"failover/empty_replica": func(s *server, _ backup) { s.restore(backup{}, 0) },
		"failover/clock_behind":  func(s *server, old backup) { s.restore(old, -5*time.Minute) },
		"failover/clock_ahead":   func(s *server, old backup) { s.restore(old, 5*time.Minute) },
		"backup":                 func(s *server, old backup) { s.restore(old, 0) },
	} {
		for _, stranger := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stranger=%v", name, stranger), func(t *testing.T) {
				run(t, 2, func(t *testing.T, s *server, n []*node) {
					n[0].change(banOf(other, time.Hour, "alice"), false)
					old := s.backup()
					n[0].change(unban(other), false)
					n[1].change(banOf(robber, time.Hour, "bob"), false)
					time.Sleep(agreed)
					lose(s, old)
					s.mu.Lock()
					if s.texts == nil {
						s.texts = map[string]store.Text{}
					}
					s.mu.Unlock()
					if stranger {
						fresh := start(t, s, "")
						fresh.change(banOf("192.0.2.0/24", time.Hour, "carol"), false)
						n = append(n, fresh)
						defer fresh.kill()
					}
					time.Sleep(agreed)
					want(t, n, robber, "bob")
					want(t, n, other, "nobody")
					if stranger {
						want(t, n, "192.0.2.0/24", "carol")
					}
					late := start(t, s, "")
					time.Sleep(time.Millisecond)
					want(t, []*node{late}, robber, "bob")
					want(t, []*node{late}, other, "nobody")
					late.kill()
				})
			})
		}
	}
}

// TestClockAhead has a store by whose clock a ban ended long ago, so that it does not take it.
func TestClockAhead(t *testing.T) {
	run(t, 2, func(t *testing.T, s *server, n []*node) {
		s.restore(s.backup(), 3*time.Hour)
		told := n[0].change(banOf(robber, time.Hour, "alice"), false)
		check.That(t, told.Error != "", "got %+v, want it said that the others do not know", told)
		time.Sleep(agreed)
		want(t, n[1:], robber, "nobody")
		for i := range mostPut {
			n[0].change(banOf(fmt.Sprintf("10.%d.%d.0/24", i/250, i%250), time.Hour, "alice"), false)
		}
		n[0].change(banOf(other, 24*time.Hour, "alice"), false) // which is told before those that are not taken
		time.Sleep(agreed)
		want(t, n[1:], other, "alice")
		state := n[0].State()
		check.That(t, state.Pending == 1+mostPut && state.Error != "", "got %+v, want all others pending, and why", state)
		before := n[0].link.reads.Load()
		time.Sleep(time.Minute)
		check.Equal(t, n[0].link.reads.Load()-before, 0, "how often all texts were read in a minute without a change")
		s.restore(s.backup(), 0)
		time.Sleep(agreed)
		want(t, n, robber, "alice")
		s.restore(s.backup(), 50*time.Minute) // less than an hour ahead
		told = n[0].change(banOf("192.0.2.0/24", time.Minute, "carol"), false)
		check.That(t, told.Error == "", "got %+v, want a short ban taken", told)
	})
}

func TestOutage(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		run(t, 2, func(t *testing.T, s *server, n []*node) {
			n[0].change(banOf(other, time.Hour, "alice"), false)
			time.Sleep(agreed)
			for _, one := range n {
				one.link.set(!deaf, deaf)
			}
			check.That(t, n[0].change(banOf(robber, time.Hour, "alice"), false).Error != "", "got no error, want it said that the others do not know")
			n[0].change(unban(other), false)
			state := n[0].State()
			check.That(t, state.Pending == 2 && state.Error != "", "got %+v, want 2 changes pending, and why", state)
			want(t, n[:1], robber, "alice")
			want(t, n[1:], robber, "nobody")
			time.Sleep(time.Second)
			n[1].change(banOf(robber, 2*time.Hour, "bob"), false) // neither knows of the other
			n[1] = n[1].restart()
			n[0].link.set(false, false)
			time.Sleep(agreed)
			want(t, n, robber, "bob") // who came last
			want(t, n, other, "nobody")
			state = n[0].State()
			check.That(t, state.Pending == 0 && state.Error == "", "after the outage: got %+v, want all told", state)
		})
	}
}

// TestFrozen: many changes do not wait one by one for a store that hangs.
func TestFrozen(t *testing.T) {
	run(t, 2, func(t *testing.T, s *server, n []*node) {
		s.freeze()
		began := time.Now()
		for i := range 10 {
			n[0].change(banOf(fmt.Sprintf("10.0.%d.0/24", i), time.Hour, "alice"), false)
		}
		took := time.Since(began)
		check.That(t, took <= 2*patience, "10 changes took %v, want no more than a poll under way and one call", took)
		s.thaw()
		time.Sleep(agreed + patience) // calls that hang end
		want(t, n, "10.0.9.0/24", "alice")
	})
}

// TestCutOff: a node that was away brings back nothing that was lifted or replaced meanwhile.
func TestCutOff(t *testing.T) {
	run(t, 3, func(t *testing.T, s *server, n []*node) {
		n[0].change(banOf(robber, 20*time.Hour, "alice"), false)
		n[0].change(banOf(other, 26*time.Hour, "alice"), false)
		time.Sleep(agreed)
		n[2].link.set(true, false)
		n[1].change(unban(robber), false)
		n[1].change(banOf(other, time.Minute, "bob"), true)
		time.Sleep(19 * time.Hour)
		want(t, n[:2], robber, "nobody")
		want(t, n[:2], other, "nobody")
		want(t, n[2:], robber, "alice")
		n[2] = n[2].restart()
		time.Sleep(agreed)
		want(t, n, robber, "nobody")
		want(t, n, other, "nobody")
		time.Sleep(7*time.Hour + keptLonger/2)
		synctest.Wait()
		for i, one := range n {
			check.Equal(t, len(one.records), 1, "records that node %d keeps beyond their end, as a clock may be behind", i)
		}
		time.Sleep(keptLonger)
		synctest.Wait()
		for i, one := range n {
			check.Equal(t, len(one.records), 0, "records that node %d keeps after all ends", i)
		}
	})
}

// TestAgree does at random what can happen. Each node only ever replaces what it has by higher
// numbers, and two seconds after the last event all nodes have the highest of each name.
func TestAgree(t *testing.T) {
	for seed := range check.OrShort(60, 10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, 3, func(t *testing.T, s *server, n []*node) { agree(t, uint64(seed), s, n) })
		})
	}
}

func agree(t *testing.T, seed uint64, s *server, n []*node) {
	random := rand.New(rand.NewPCG(seed, 0))
	networks := []string{robber, other, "192.0.2.0/24", "10.0.0.0/8"}
	highest, known := make(map[string]int64), make(map[*node]map[string]int64)
	numberOf := func(one *node, network string) int64 {
		one.mu.Lock()
		defer one.mu.Unlock()
		if k := one.records[banOf(network, 0, "").Name]; k != nil {
			return k.Number
		}
		return 0
	}
	look := func() {
		for _, one := range n {
			if known[one] == nil {
				known[one] = make(map[string]int64)
			}
			for _, network := range networks {
				now := numberOf(one, network)
				check.That(t, now >= known[one][network], "seed %d, %s: a node fell from %d to %d", seed, network, known[one][network], now)
				known[one][network] = now
			}
		}
	}
	old := s.backup()
	for step := range 60 {
		time.Sleep(time.Duration(1+random.IntN(1000)) * time.Microsecond) // no failover takes less
		i := random.IntN(len(n))
		switch network := networks[random.IntN(len(networks))]; random.IntN(14) {
		case 0, 1, 2, 3:
			if _, _, err := n[i].Change(banOf(network, time.Hour, fmt.Sprint(step)), "test", true); err != nil && !errors.As(err, new(*Conflict)) {
				t.Errorf("seed %d: ban: got error %v", seed, err)
			}
			highest[network] = max(highest[network], numberOf(n[i], network))
		case 4, 5:
			if _, _, err := n[i].Change(unban(network), "test", false); err != nil && !errors.Is(err, ErrNothing) && !errors.As(err, new(*Conflict)) {
				t.Errorf("seed %d: unban: got error %v", seed, err)
			}
			highest[network] = max(highest[network], numberOf(n[i], network))
		case 6:
			n[i].link.set(random.IntN(3) > 0, random.IntN(3) == 0)
		case 7:
			n[i] = n[i].restart()
		case 8:
			s.flush()
		case 9:
			s.restore(old, time.Duration(random.IntN(11)-5)*time.Minute)
		case 10:
			old = s.backup()
		case 11:
			s.freeze()
		case 12:
			s.thaw()
		case 13:
			time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
		}
		look()
	}
	s.thaw()
	for _, one := range n {
		one.link.set(false, false)
	}
	time.Sleep(time.Second + patience) // calls that hang end
	fresh := start(t, s, "")
	time.Sleep(agreed)
	for i, one := range append(n, fresh) {
		for _, network := range networks {
			check.Equal(t, numberOf(one, network), highest[network], "seed %d, node %d, %s: the highest number", seed, i, network)
		}
		state := one.State()
		check.That(t, state.Pending == 0 && state.Error == "", "seed %d, node %d: got %+v, want all told", seed, i, state)
	}
	look()
	fresh.kill()
	before := n[0].link.count()
	time.Sleep(time.Minute)
	calls := n[0].link.count() - before
	check.That(t, calls <= 61, "seed %d: got %d calls in a quiet minute, want one a second", seed, calls)
}

func (l *link) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// TestMany: all that fits is back within two seconds of a flush, and one more does not fit.
func TestMany(t *testing.T) {
	run(t, 2, func(t *testing.T, s *server, n []*node) {
		var all []*record
		for i := range store.MostTexts {
			e := banOf(fmt.Sprintf("10.%d.%d.0/24", i/250, i%250), time.Hour, "alice")
			all = append(all, &record{Entry: e, Kept: e.Until, Number: int64(i + 1)})
		}
		n[0].mu.Lock()
		n[0].records.merge(all, nil)
		for _, k := range all {
			k.synced = false
		}
		n[0].mu.Unlock()
		time.Sleep(agreed)
		s.flush()
		before := n[0].link.count() + n[1].link.count()
		time.Sleep(agreed)
		check.Equal(t, len(s.backup().texts), len(all), "texts after a flush")
		calls := n[0].link.count() + n[1].link.count() - before
		check.That(t, calls <= 60, "got %d calls, want some for each %d texts", calls, mostPut)
		_, _, err := n[1].Change(banOf(robber, time.Hour, "x"), "test", false)
		check.That(t, err != nil, "one more than fits: got no error, want one")
		n[1].change(unban("10.0.0.0/24"), false) // which takes no room
	})
}

// TestRead: it is told once that the store was read, and not before.
func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{Copy: New(), link: &link{server: newServer(), cut: true}, t: t, stop: make(chan struct{})}
		told := 0
		wants := func(when string, want int) {
			t.Helper()
			time.Sleep(agreed)
			n.mu.Lock() // with which it is told
			defer n.mu.Unlock()
			check.Equal(t, told, want, "%s: how often it is told", when)
		}
		use := func(registry store.Registry) { n.Use(registry, "", zap.NewNop(), func() { told++ }) }
		go n.Run(n.stop)
		use(n.link)
		wants("while the store is down", 0)
		n.link.set(false, false)
		wants("after the first answer", 1)
		use(n.link)
		wants("after a reload with the same store", 1)
		other := &link{server: newServer(), cut: true}
		use(other)
		wants("after a reload with another store", 1)
		other.set(false, false)
		wants("after its first answer", 2)
		use(nil)
		wants("without a store", 2)
		close(n.stop)
	})
}

// TestKill kills a node directly after a change, with and without a store.
func TestKill(t *testing.T) {
	for name, shared := range map[string]bool{"memory": false, "store": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "folder", "changes.json")
				begin := func() *node {
					n := &node{Copy: New(), link: &link{server: newServer(), cut: true}, t: t, stop: make(chan struct{})}
					var registry store.Registry
					if shared {
						registry = n.link
					}
					n.Use(registry, path, zap.NewNop(), nil)
					return n
				}
				n, second := begin(), begin()
				told := n.change(banOf(robber, time.Hour, "alice"), false)
				check.That(t, told.Kept && told.Shared == shared, "got %+v, want it kept", told)
				told = second.change(banOf(other, time.Hour, "bob"), false)
				check.That(t, !told.Kept, "beside the process that has the file: got %+v, want it said", told)
				n.kill()
				second.kill()
				n = begin()
				want(t, []*node{n}, robber, "alice")
				check.That(t, len(n.Journal()) == 1, "got the journal %+v, want the ban that was kept", n.Journal())
				check.OK(t, os.Mkdir(path+".new", 0o700)) // where the file is written
				told = n.change(unban(robber), false)
				check.That(t, !told.Kept, "without a file: got %+v, want it said that a restart undoes it", told)
				n.kill()
			})
		})
	}
}

// TestAtOnce: what is changed while the file is being written is in it, too, when Change returns.
func TestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, all := New(), sync.WaitGroup{}
		c.Use(nil, filepath.Join(t.TempDir(), "changes.json"), zap.NewNop(), nil)
		for i := range 50 {
			all.Go(func() {
				told, _, err := c.Change(banOf(fmt.Sprintf("10.0.%d.0/24", i), time.Hour, "alice"), "", false)
				check.That(t, err == nil && told.Kept, "got %+v, %v, want it kept", told, err)
			})
		}
		all.Wait()
		c.Close()
	})
}

// logged returns a logger, and what it has logged.
func logged() (*zap.Logger, func() []string) {
	core, logs := observer.New(zap.InfoLevel)
	return zap.New(core), func() (lines []string) {
		for _, e := range logs.TakeAll() {
			lines = append(lines, fmt.Sprint(e.Level, " ", e.Message, " ", e.ContextMap()))
		}
		return lines
	}
}

// TestFileOfAnother: who begins while another process has the file has it after that, with its changes.
func TestFileOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, stop := filepath.Join(t.TempDir(), "changes.json"), make(chan struct{})
		logger, lines := logged()
		first, second := New(), New()
		first.Use(nil, path, zap.NewNop(), nil)
		second.Use(nil, path, logger, nil)
		go second.Run(stop)
		for i, c := range []*Copy{first, second} {
			_, _, err := c.Change(banOf([]string{robber, other}[i], time.Hour, "alice"), "", false)
			check.OK(t, err)
		}
		first.Close()
		time.Sleep(agreed)
		check.That(t, second.Table.Load().BannedAll(netip.MustParsePrefix(robber), time.Now()) != nil, "got no ban of the first process")
		check.Equal(t, len(second.Journal()), 2, "lines of the journal")
		close(stop)
		second.Close()
		kept, _ := os.ReadFile(path)
		check.That(t, strings.Contains(string(kept), robber) && strings.Contains(string(kept), other), "got %s kept, want both bans", kept)
		check.Equal(t, len(lines()), 2, "lines of the log")
	})
}

// TestFile reads what may be in the file.
func TestFile(t *testing.T) {
	ban := func(number int, more string) string {
		return fmt.Sprintf(`{"kind":"ban","key":"203.0.113.0/24","since":"2100-01-01T00:00:00Z","until":"2100-01-02T00:00:00Z","kept":"2100-01-02T00:00:00Z","number":%d%s}`, number, more)
	}
	for name, test := range map[string]struct {
		content string
		records int
		log     string // all of these words
		aside   bool
	}{
		"good":            {`{"format":1,"changes":[` + ban(1, "") + `],"journal":[{"at":"2100-01-01T00:00:00Z","action":"ban"}]}`, 1, "", false},
		"another_version": {`{"format":2,"changes":{"new":1},"journal":7}`, 0, "error|cannot be used|format 2, of another version", true},
		"no_format":       {`{"changes":[]}`, 0, "error|cannot be used|format 0", true},
		"null":            {`null`, 0, "error|cannot be used", true},
		"empty":           {``, 0, "error|cannot be used", true},
		"cut":             {`{"format":1,"changes":[{`, 0, "error|cannot be used", true},
		"list":            {`[]`, 0, "error|cannot be used", true},
		"null_change":     {`{"format":1,"changes":[null,` + ban(1, "") + `]}`, 1, "skipping|change 1|invalid duration 0s", false},
		"odd_change":      {`{"format":1,"changes":[` + ban(1, "") + `,` + ban(-1, "") + `,7,{}]}`, 1, "skipping|change 2|invalid number|count:3", false},
		"too_long":        {`{"format":1,"changes":[` + strings.Replace(ban(1, ""), `"until":"2100-01-02`, `"until":"2101-01-02`, 1) + `]}`, 0, "skipping|change 1", false},
		"kept_too_long":   {`{"format":1,"changes":[` + strings.Replace(ban(1, ""), `"kept":"2100`, `"kept":"2200`, 1) + `]}`, 0, "skipping|it is kept until", false},
		"no_changes":      {`{"format":1,"changes":null,"journal":null}`, 0, "", false},
		"wrong_fields":    {`{"format":1,"changes":7}`, 0, "error|cannot be used", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "changes.json")
			check.OK(t, os.WriteFile(path, []byte(test.content), 0o600))
			logger, lines := logged()
			c := New()
			c.Use(nil, path, logger, nil)
			defer c.Close()
			check.Equal(t, len(c.records), test.records, "records")
			got := strings.Join(lines(), "\n")
			for word := range strings.SplitSeq(test.log, "|") {
				check.Contains(t, got, word, "the log")
			}
			check.Equal(t, got == "", test.log == "", "the log is empty: %s", got)
			_, err := os.Stat(path + ".bad")
			check.That(t, (err == nil) == test.aside, "set aside: got %v, want %v", err == nil, test.aside)
			journal := map[string]int{"good": 1}
			check.Equal(t, len(c.Journal()), journal[name], "lines of the journal")
		})
	}
}

// TestFullDisk makes a change while the file cannot be written. It is written as soon as it can be.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "folder")
		logger, lines := logged()
		c, stop := New(), make(chan struct{})
		c.Use(nil, filepath.Join(dir, "changes.json"), logger, nil)
		defer c.Close()
		go c.Run(stop)
		defer close(stop)
		check.OK(t, os.RemoveAll(dir)) // which refuses writes to root, too
		synced, _, err := c.Change(banOf(robber, time.Hour, "alice"), "", false)
		check.That(t, err == nil && !synced.Kept, "got kept %v, error %v, want a ban that is not kept", synced.Kept, err)
		time.Sleep(time.Minute)
		check.OK(t, os.MkdirAll(dir, 0o700))
		time.Sleep(agreed)
		kept, _ := os.ReadFile(filepath.Join(dir, "changes.json"))
		check.Contains(t, string(kept), robber, "the file once there is room")
		check.Equal(t, len(lines()), 2, "lines of the log")
	})
}

// TestForeign puts into the store what no node has made. It is skipped and named once, and keeps
// nobody from changing anything.
func TestForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		logger, lines := logged()
		n := &node{Copy: New(), link: &link{server: s}, t: t, stop: make(chan struct{})}
		n.Use(n.link, "", logger, nil)
		go n.Run(n.stop)
		told := n.change(banOf(robber, time.Hour, "alice"), false)
		check.That(t, told.Kept && told.Shared, "got %+v, want it kept in the store, as there is no file", told)
		end := leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro())
		kept := s.texts["ban//"+robber]
		junk := map[string]store.Text{
			"ban//" + robber: {Text: "junk"}, // over one of ours
			"a":              {},
			"b":              {Number: 1 << 51, End: end, Text: "null"},
			"c":              {Number: 1, End: end, Text: strings.Replace(kept.Text, `"format":1`, `"format":2`, 1)},
			"d":              {Number: 1, End: end, Text: kept.Text}, // by another name
			"e":              {Number: store.MostNumber - 1, End: end, Text: kept.Text},
			"ban//0.0.0.0/0": {Number: 1, End: end, Text: strings.Replace(kept.Text, robber, "0.0.0.0/0", 1)},
			"\xff":           {Number: 1, End: end, Text: "\xff"},
		}
		s.mu.Lock()
		for name, text := range junk {
			text.Name = name
			s.texts[name] = text
		}
		s.last++
		s.mu.Unlock()
		time.Sleep(agreed)
		check.Equal(t, s.backup().texts["ban//"+robber], kept, "in the place of junk over one of ours")
		want(t, []*node{n}, robber, "alice")
		want(t, []*node{n}, other, "nobody")
		n.change(unban(robber), false)
		s.mu.Lock()
		s.last++ // as if another had written
		s.mu.Unlock()
		time.Sleep(time.Minute)
		got := lines()
		if len(got) != 2 || !strings.Contains(got[1], "skipping") || !strings.Contains(got[1], fmt.Sprint("count:", len(junk)-1)) { // with one of ours, and without
			t.Errorf("got the log %q, want two lines", got)
		}
		n.kill()
	})
}

// TestJournal: of too many changes the last ones are kept, also over a restart.
func TestJournal(t *testing.T) {
	path, began := filepath.Join(t.TempDir(), "changes.json"), time.Now()
	for range 2 {
		c := New()
		c.Use(nil, path, zap.NewNop(), nil)
		for i := range mostJournal + 10 {
			c.Note(override.Change{At: began.Add(time.Duration(i)), Of: fmt.Sprint(i)})
		}
		if got := c.Journal(); len(got) != mostJournal || got[0].Of != fmt.Sprint(mostJournal+9) || got[mostJournal-1].Of != "10" {
			t.Errorf("got %d from %v to %v, want %d down to 10", len(got), got[0].Of, got[len(got)-1].Of, mostJournal+9)
		}
		kept, _ := os.ReadFile(path) // as if killed now
		check.Contains(t, string(kept), fmt.Sprintf(`"of":"%d"`, mostJournal+9), "the file")
		c.Close()
	}
	c := New()
	c.Use(nil, path, zap.NewNop(), nil)
	check.Equal(t, len(c.Journal()), mostJournal, "restarted: entries of the journal")
	c.Close()
}

// TestClock sets the clock of a node an hour back or forth. Others can still replace what it
// has made, and it what they have.
func TestClock(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all := records{override.Name{Kind: override.OfShadow}: {Number: 7}}
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		number := all.number(now.Add(skew))
		check.That(t, number > 7 && number >= now.Add(skew).UnixMicro(), "clock %v: got number %d, want one above the clock and all that was seen", skew, number)
		all[override.Name{Kind: override.OfShadow}].Number = number
		again := all.number(now)
		check.That(t, again > number, "clock right again: got number %d, want one above %d", again, number)
	}
}

func FuzzText(f *testing.F) {
	e := banOf(robber, time.Hour, "alice")
	good := (&record{Entry: e, Kept: e.Until, Number: 1}).encode()
	f.Add(good.Name, good.Text, good.Number)
	f.Add("limit/z/k", strings.NewReplacer(`"ban"`, `"limit","zone":"z","limit":"x0.5"`, robber, "k").Replace(good.Text), int64(2))
	f.Fuzz(func(t *testing.T, name, text string, number int64) {
		k, err := decode(store.Text{Name: name, Text: text, Number: number})
		if err != nil {
			return
		}
		same, err := decode(k.encode())
		check.That(t, err == nil && same.same(k) && same.Name == k.Name && cmp.Compare(same.Number, k.Number) == 0, "got %+v, error %v, want %+v", same, err, k)
		c := New()
		c.apply([]*record{k}, k.Since)
		c.Table.List(k.Since)
	})
}
