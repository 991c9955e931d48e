package board

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A server keeps a board, as Redis does.
type server struct {
	mu     sync.Mutex
	posts  map[string]leakybucket.Post
	beats  map[string]leakybucket.Beat
	at     map[string]time.Time
	latest int64
}

func newServer() *server {
	return &server{posts: make(map[string]leakybucket.Post), beats: make(map[string]leakybucket.Beat), at: make(map[string]time.Time)}
}

// with calls f while nobody else uses the server.
func (s *server) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) count() (posts int) {
	s.with(func() { posts = len(s.posts) })
	return posts
}

// A link leads to a server, unless it is cut.
type link struct {
	*server
	cut      bool
	deaf     bool // calls are executed, and their answers lost
	busy     bool // others write before each call
	name     string
	followed int // calls
	lag      time.Duration
}

var errCut = errors.New("connection refused")

func (l *link) BoardName() string { return l.name }

func (l *link) Exchange(ctx context.Context, call leakybucket.BoardCall) (answer leakybucket.BoardAnswer, err error) {
	if l.lag > 0 {
		select {
		case <-ctx.Done():
			return answer, ctx.Err()
		case <-time.After(l.lag):
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followed++
	if l.cut {
		return answer, errCut
	}
	if l.busy {
		l.latest = max(l.latest, time.Now().UnixMicro()) + int64(time.Hour/time.Microsecond)
	}
	for _, p := range call.Posts {
		if p.Version <= l.latest || l.posts[p.Name].Version != p.Was {
			continue
		}
		if l.latest = p.Version; p.Text == "" {
			delete(l.posts, p.Name)
			continue
		}
		p.Was = 0
		l.posts[p.Name] = p
	}
	for node, beat := range l.beats {
		if beat.Age = time.Since(l.at[node]); beat.Age <= time.Minute && node != call.Node {
			answer.Beats = append(answer.Beats, beat)
		}
	}
	l.beats[call.Node], l.at[call.Node] = leakybucket.Beat{Node: call.Node, Text: call.Beat}, time.Now()
	for p := range maps.Values(l.posts) {
		if p.Version > call.After {
			answer.Posts = append(answer.Posts, p)
		}
	}
	answer.Latest = l.latest
	if l.deaf {
		return leakybucket.BoardAnswer{}, errCut
	}
	return answer, nil
}

func (l *link) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

func (l *link) set(cut, deaf bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.deaf = cut, deaf
}

func (l *link) setBusy(busy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = busy
}

// A node is a board with its way to the server.
type node struct {
	*Replica
	link *link
	t    *testing.T
	path string
	stop chan struct{}
	key  string
}

func start(t *testing.T, s *server, path, key string) *node {
	n := &node{Replica: New(func(question string) json.RawMessage {
		if question == "code of "+path {
			return json.RawMessage(`"refused"`)
		}
		return nil
	}), link: &link{server: s, name: "shop:"}, t: t, path: path, stop: make(chan struct{}), key: key}
	n.Use(&Signed{Board: n.link, Keys: signer.Fixed(key)}, path, zap.NewNop())
	go n.Run(n.stop)
	return n
}

// kill ends a node, whatever it was doing.
func (n *node) kill() {
	close(n.stop)
	synctest.Wait()
	n.disk.close()
}

func (n *node) restart() *node {
	n.kill()
	return start(n.t, n.link.server, n.path, n.key)
}

// run runs a test with nodes that share a server.
func run(t *testing.T, nodes int, test func(t *testing.T, s *server, n []*node)) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := newServer(), t.TempDir()
		all := make([]*node, nodes)
		for i := range all {
			all[i] = start(t, s, filepath.Join(dir, fmt.Sprint("node", i)), "secret")
		}
		time.Sleep(2 * time.Second)
		test(t, s, all)
		for _, n := range all {
			n.kill()
		}
	})
}

func banOf(network string, d time.Duration, by string) override.Entry {
	now := time.Now()
	e, err := override.NewBan(netip.MustParsePrefix(network), override.Span{Since: now, Until: now.Add(d), By: by})
	if err != nil {
		panic(err)
	}
	return e
}

func unban(network string) override.Entry {
	e := banOf(network, 0, "")
	e.Ended = true
	return e
}

const robber = "203.0.113.0/24"

func (n *node) change(e override.Entry, replace bool) *Told {
	n.t.Helper()
	told, _, err := n.Change(n.t.Context(), e, "test", replace, true)
	if err != nil {
		n.t.Fatalf("%v: got error %v, want none", e, err)
	}
	return told
}

func (n *node) by() string {
	if ban := n.Table.Load().Banned(netip.MustParseAddr("203.0.113.7"), time.Now()); ban != nil {
		return ban.By
	}
	return "nobody"
}

// want wants the same ban on all nodes.
func want(t *testing.T, nodes []*node, by string) {
	t.Helper()
	for i, n := range nodes {
		if got := n.by(); got != by {
			t.Errorf("node %d: banned by %s, want by %s", i, got, by)
		}
	}
}

func TestEveryNodeFollowsWithinTwoSeconds(t *testing.T) {
	run(t, 3, func(t *testing.T, _ *server, n []*node) {
		began := time.Now()
		if told := n[0].change(banOf(robber, time.Hour, "alice"), false); told.Nodes != 3 || told.Holding != 3 || told.Error != "" {
			t.Errorf("got %+v, want it to hold on 3 of 3", told)
		}
		want(t, n, "alice")
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v, want at most 2 s", took)
		}
		_, _, err := n[1].Change(t.Context(), banOf(robber, time.Minute, "bob"), "test", false, true)
		var conflict *Conflict
		if !errors.As(err, &conflict) || conflict.By != "alice" {
			t.Errorf("a second ban: got error %v, want a conflict with alice's", err)
		}
		n[1].change(banOf(robber, time.Minute, "bob"), true)
		want(t, n, "bob")
		n[2].change(unban(robber), false)
		want(t, n, "nobody")
		if _, _, err := n[0].Change(t.Context(), unban(robber), "test", false, true); !errors.Is(err, ErrNothing) {
			t.Errorf("a second end: got error %v, want ErrNothing", err)
		}
		if got := n[0].Journal(); len(got) != 3 || got[0].Action != "unban" || got[1].By != "bob" || got[1].Via != n[1].self.Host || got[2].Via != "test" {
			t.Errorf("journal of the first node: got %+v, want what the others have changed", got)
		}
	})
}

func TestTwoWhoBanAtOneInstant(t *testing.T) {
	run(t, 3, func(t *testing.T, _ *server, n []*node) {
		errs := make([]error, 3)
		var all sync.WaitGroup
		for i, by := range []string{"alice", "bob", "carol"} {
			all.Go(func() { _, _, errs[i] = n[i].Change(t.Context(), banOf(robber, time.Hour, by), "test", false, true) })
		}
		all.Wait()
		won := 0
		for _, err := range errs {
			var conflict *Conflict
			if err == nil {
				won++
			} else if !errors.As(err, &conflict) {
				t.Errorf("got error %v, want a conflict", err)
			}
		}
		if won != 1 {
			t.Errorf("got %d who banned, want one", won)
		}
		time.Sleep(2 * time.Second)
		want(t, n, n[0].by())
	})
}

func TestANodeThatRestartsBeginsWithItsCopy(t *testing.T) {
	run(t, 2, func(t *testing.T, _ *server, n []*node) {
		n[0].change(banOf(robber, time.Hour, "alice"), false)
		n[1].link.set(true, false)
		n[1].kill()
		alone := &node{Replica: New(nil), t: t}
		alone.Use(nil, n[1].path, zap.NewNop())
		if alone.by() != "alice" || len(alone.Journal()) != 1 {
			t.Errorf("without the store: banned by %s, journal %+v, want its copy of both", alone.by(), alone.Journal())
		}
		alone.disk.close()
		n[0].change(unban(robber), false)
		n[1] = start(t, n[0].link.server, n[1].path, "secret")
		time.Sleep(2 * time.Second)
		want(t, n, "nobody")
	})
}

func TestANodeWithoutACopyReadsTheBoardBeforeItServes(t *testing.T) {
	run(t, 1, func(t *testing.T, s *server, n []*node) {
		n[0].change(banOf(robber, time.Hour, "alice"), false)
		fresh := start(t, s, filepath.Join(t.TempDir(), "fresh"), "secret")
		want(t, []*node{fresh}, "alice")
		fresh.kill()
		cut := &node{Replica: New(nil), link: &link{server: s, name: "shop:", cut: true}, t: t}
		began := time.Now()
		cut.Use(&Signed{Board: cut.link, Keys: signer.Fixed("secret")}, "", zap.NewNop())
		if took := time.Since(began); took > 2200*time.Millisecond {
			t.Errorf("without the store it waited for %v, want 2 s", took)
		}
	})
}

func TestWhatIsChangedInAnOutageIsToldAfterIt(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		run(t, 2, func(t *testing.T, s *server, n []*node) {
			for _, one := range n {
				one.link.set(!deaf, deaf)
			}
			if told := n[0].change(banOf(robber, time.Hour, "alice"), false); told.Error == "" {
				t.Error("got no error, want it said that the others do not know")
			}
			want(t, n[:1], "alice")
			want(t, n[1:], "nobody")
			n[1].change(banOf(robber, 2*time.Hour, "bob"), false) // neither knows of the other
			n[1].change(banOf("198.51.100.0/24", time.Hour, "bob"), false)
			time.Sleep(time.Millisecond)
			n[1].change(unban("198.51.100.0/24"), false)
			for _, one := range n {
				one.link.set(false, false)
			}
			time.Sleep(4 * time.Second)
			want(t, n, "bob") // whose ends later
			var lost []string
			for _, c := range append(n[0].Journal(), n[1].Journal()...) {
				if c.Of == robber && strings.HasPrefix(c.Note, "gave way") {
					lost = append(lost, c.By)
				}
			}
			for i, one := range n {
				if one.Table.Load().Banned(netip.MustParseAddr("198.51.100.1"), time.Now()) != nil {
					t.Errorf("node %d: got a ban that was ended in the outage", i)
				}
			}
			if !slices.Equal(lost, []string{"alice"}) {
				t.Errorf("got %v noted as those who gave way, want alice", lost)
			}
		})
	}
}

// TestACutOffNodeBringsNothingBack: what was lifted meanwhile stays lifted.
func TestACutOffNodeBringsNothingBack(t *testing.T) {
	run(t, 3, func(t *testing.T, s *server, n []*node) {
		n[0].change(banOf(robber, 20*time.Hour, "alice"), false)
		n[2].link.set(true, false)
		n[1].change(unban(robber), false)
		time.Sleep(19 * time.Hour)
		want(t, n[:2], "nobody")
		want(t, n[2:], "alice")
		n[2].link.set(false, false)
		n[2] = n[2].restart()
		time.Sleep(2 * time.Second)
		want(t, n, "nobody")
		time.Sleep(26 * time.Hour)
		for i, one := range n {
			if len(one.records) != 0 || s.count() != 0 {
				t.Errorf("node %d keeps %d changes a day after their end, and the board %d, want none", i, len(one.records), s.count())
			}
		}
	})
}

// TestAReplacedBanStaysReplaced: a short ban in the place of a long one is known for as long as
// a Caddy that was cut off may still have the long one.
func TestAReplacedBanStaysReplaced(t *testing.T) {
	run(t, 2, func(t *testing.T, s *server, n []*node) {
		n[0].change(banOf(robber, 26*time.Hour, "alice"), false)
		n[1].link.set(true, false)
		n[0].change(banOf(robber, time.Minute, "bob"), true)
		time.Sleep(25 * time.Hour)
		want(t, n[1:], "alice")
		n[1].link.set(false, false)
		time.Sleep(40 * time.Second)
		want(t, n, "nobody")
	})
}

// TestAChangeHoldsHereIfNobodyLetsItBeTold: others that write all the time keep a change from
// the board, not from holding.
func TestAChangeHoldsHereIfNobodyLetsItBeTold(t *testing.T) {
	run(t, 2, func(t *testing.T, s *server, n []*node) {
		n[0].link.setBusy(true)
		if told := n[0].change(banOf(robber, time.Hour, "alice"), false); told.Holding != 1 || told.Nodes != 2 {
			t.Errorf("got %+v, want it to hold on 1 of 2", told)
		}
		want(t, n[:1], "alice")
		n[0].link.setBusy(false)
		time.Sleep(3 * time.Second)
		want(t, n, "alice")
	})
}

// TestAChangeSaysWhetherARestartEndsIt: also if the disk is full.
func TestAChangeSaysWhetherARestartEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "folder", "changes")
		n := &node{Replica: New(nil), t: t}
		n.Use(nil, path, zap.NewNop())
		if told := n.change(banOf(robber, time.Hour, "alice"), false); !told.Kept {
			t.Errorf("got %+v, want it kept in the file", told)
		}
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		if told := n.change(unban(robber), false); told.Kept {
			t.Errorf("without a folder: got %+v, want it said that a restart undoes it", told)
		}
		n.disk.close()
	})
	run(t, 1, func(t *testing.T, s *server, _ []*node) {
		n := start(t, s, "", "secret")
		if told := n.change(banOf(robber, time.Hour, "alice"), false); !told.Kept {
			t.Errorf("without a file: got %+v, want it kept on the board", told)
		}
		n.link.set(true, false)
		if told := n.change(unban(robber), false); told.Kept {
			t.Errorf("without a file and the store: got %+v, want it said that a restart undoes it", told)
		}
		n.kill()
	})
}

func TestAFlushLosesNothing(t *testing.T) {
	run(t, 2, func(t *testing.T, s *server, n []*node) {
		n[0].change(banOf(robber, time.Hour, "alice"), false)
		n[0].change(banOf("198.51.100.0/24", time.Hour, "alice"), false)
		n[0].change(unban("198.51.100.0/24"), false)
		var old map[string]leakybucket.Post
		s.with(func() {
			old = maps.Clone(s.posts)
			clear(s.posts)
			s.latest = 0
		})
		time.Sleep(4 * time.Second)
		want(t, n, "alice")
		if s.count() != 2 {
			t.Errorf("got %d posts on the board, want both again", s.count())
		}
		n[1].change(unban(robber), false)
		s.with(func() { s.posts, s.latest = old, s.latest+1 }) // as a replica that was behind
		time.Sleep(40 * time.Second)
		want(t, n, "nobody")
		fresh := start(t, s, "", "secret")
		want(t, []*node{fresh}, "nobody")
		fresh.kill()
	})
}

// TestWhatOthersWriteIsIgnored: whoever may write to the store is not thereby master of every
// Caddy.
func TestWhatOthersWriteIsIgnored(t *testing.T) {
	run(t, 2, func(t *testing.T, s *server, n []*node) {
		n[0].change(banOf(robber, time.Hour, "alice"), false)
		name := postName(banOf(robber, 0, "").Name)
		var genuine leakybucket.Post
		s.with(func() { genuine = s.posts[name] })
		n[0].change(unban(robber), false)
		other := &Signed{Board: &link{name: "shop:"}, Keys: signer.Fixed("another secret")}
		elsewhere := &Signed{Board: &link{name: "staging:"}, Keys: signer.Fixed("secret")}
		forge := func(by *Signed, e override.Entry, called string) leakybucket.Post {
			s.mu.Lock()
			defer s.mu.Unlock()
			p, _ := by.post(&record{Entry: e, Version: s.latest + 1, Last: e.Until})
			p.Name, p.Was = called, s.posts[called].Version
			return p
		}
		evil, above := banOf(robber, time.Hour, "eve"), time.Now().Add(time.Hour).UnixMicro()
		for what, p := range map[string]leakybucket.Post{
			"another key":            forge(other, evil, name),
			"another board":          forge(elsewhere, evil, name),
			"no token":               {Name: name, Version: above, Text: `{"kind":"ban"}`},
			"nothing":                {Name: name, Version: above, Text: "x"},
			"an old one again":       {Name: name, Version: above, Text: genuine.Text},
			"an old one as it was":   genuine,
			"one by another name":    {Name: "ban//192.0.2.0%2F24", Version: above, Text: genuine.Text},
			"a name with everything": {Name: "\x00'\"", Version: above, Text: "\x00"},
		} {
			var before leakybucket.Post
			s.with(func() {
				before = s.posts[p.Name]
				s.posts[p.Name], s.latest = p, max(s.latest, p.Version)
			})
			time.Sleep(35 * time.Second)
			want(t, n, "nobody")
			if state := n[1].State(); (state.Foreign != 1 || len(state.ForeignNames) != 1) && p != genuine {
				t.Errorf("%s: got %q named as foreign, want it", what, state.ForeignNames)
			}
			s.with(func() {
				if s.posts[p.Name] = before; before.Text == "" {
					delete(s.posts, p.Name)
				}
			})
			time.Sleep(35 * time.Second)
		}
		s.with(func() { // many, above all versions that a writer may take
			for i := range 1000 {
				name := fmt.Sprint("junk", i)
				s.posts[name] = leakybucket.Post{Name: name, Version: 1<<62 + int64(i), Text: "x"}
			}
			s.latest++
		})
		time.Sleep(2 * time.Second)
		if state := n[0].State(); state.Foreign != 1000 || len(state.ForeignNames) > 10 {
			t.Errorf("got %d foreign entries, %d of them named, want 1000 and up to 10", state.Foreign, len(state.ForeignNames))
		}
		if told := n[0].change(banOf(robber, time.Hour, "alice"), false); told.Holding != 2 {
			t.Errorf("got %+v, want a change in spite of them", told)
		}
		n[0].change(unban(robber), false)
		evilNode := start(t, s, "", "another secret")
		time.Sleep(2 * time.Second)
		if state := n[0].State(); state.Strangers != 1 || len(state.Nodes) != 2 {
			t.Errorf("got %d strangers and %d nodes, want one of each", state.Strangers, len(state.Nodes)-1)
		}
		forged := forge(other, evil, name)
		s.with(func() {
			s.posts[name] = forged
			s.latest++
		})
		time.Sleep(2 * time.Second)
		n[0].change(banOf(robber, time.Hour, "alice"), false) // in its place
		want(t, n, "alice")
		evilNode.kill()
	})
}

// TestANewerCaddyMayTellWhatThisOneDoesNotKnow: it changes nothing here, and is nobody's forgery.
func TestANewerCaddyMayTellWhatThisOneDoesNotKnow(t *testing.T) {
	run(t, 2, func(t *testing.T, s *server, n []*node) {
		newer := &Signed{Board: n[0].link, Keys: signer.Fixed("secret")}
		s.with(func() {
			name := postName(override.Name{Kind: "quota", Zone: "pages", Key: "203.0.113.7"})
			s.latest++
			text, _ := newer.sign(ofPost, name, map[string]any{
				"kind": "quota", "zone": "pages", "key": "203.0.113.7", "of": []int{1, 2}, "until": time.Now().Add(time.Hour), "last": time.Now().Add(time.Hour), "version": s.latest,
			})
			s.posts[name] = leakybucket.Post{Name: name, Version: s.latest, Text: text}
		})
		time.Sleep(35 * time.Second)
		n[0].change(banOf(robber, time.Hour, "alice"), false)
		want(t, n, "alice")
		for i, one := range n {
			if state := one.State(); state.Foreign != 0 || state.Error != "" || len(one.records) != 2 {
				t.Errorf("node %d: got %+v, want both kept", i, state)
			}
			if held := one.Table.List(time.Now()); len(held) != 1 || held[0].Kind != override.OfBan {
				t.Errorf("node %d: got %+v, want the ban alone", i, held)
			}
		}
	})
}

func TestOthersAreAsked(t *testing.T) {
	run(t, 3, func(t *testing.T, _ *server, n []*node) {
		began := time.Now()
		answer, from := n[0].Ask(t.Context(), "code of "+n[2].path)
		if string(answer) != `"refused"` || from.ID != n[2].self.ID || time.Since(began) > 2*time.Second {
			t.Errorf("got %s of %s after %v, want the answer of node 2 within 2 s", answer, from.ID, time.Since(began))
		}
		began = time.Now()
		if answer, _ := n[0].Ask(t.Context(), "code of nobody"); answer != nil || time.Since(began) > 1500*time.Millisecond {
			t.Errorf("got %s after %v, want no answer as soon as all have said so", answer, time.Since(began))
		}
		n[0].link.set(true, false)
		if answer, _ := n[0].Ask(t.Context(), "code of "+n[1].path); answer != nil {
			t.Errorf("in an outage: got %s, want no answer", answer)
		}
	})
}

// TestNewKeysSignAllAgain: Caddys get a new key one after the other, and what they change
// meanwhile is not undone.
func TestNewKeysSignAllAgain(t *testing.T) {
	run(t, 2, func(t *testing.T, s *server, n []*node) {
		const other = "198.51.100.0/24"
		n[0].change(banOf(robber, time.Hour, "alice"), false)
		n[0].change(banOf(other, time.Hour, "alice"), false)
		renew := func(one *node) {
			one.Use(&Signed{Board: one.link, Keys: signer.Fixed("new")}, one.path, zap.NewNop())
			time.Sleep(70 * time.Second)
		}
		renew(n[0])
		if state := n[0].State(); state.Foreign != 0 || state.Strangers != 1 {
			t.Errorf("got %d foreign entries and %d strangers, want the own ones signed again, and one stranger", state.Foreign, state.Strangers)
		}
		n[1].change(unban(other), false)
		renew(n[1])
		fresh := start(t, s, "", "new")
		want(t, append(n, fresh), "alice")
		for i, one := range append(n, fresh) {
			if one.Table.Load().Banned(netip.MustParsePrefix(other).Addr(), time.Now()) != nil {
				t.Errorf("node %d: got a ban that a Caddy with the old key has ended", i)
			}
		}
		fresh.kill()
	})
}

func TestAnotherStoreIsToldAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{Replica: New(nil), t: t}
		n.Use(nil, "", zap.NewNop())
		if told := n.change(banOf(robber, time.Hour, "alice"), false); told.Nodes != 1 || told.Holding != 1 {
			t.Errorf("without a shared store: got %+v, want it to hold here", told)
		}
		for _, s := range []*server{newServer(), newServer()} {
			shared := &Signed{Board: &link{server: s, name: fmt.Sprintf("%p", s)}, Keys: signer.Fixed("secret")}
			n.Use(shared, "", zap.NewNop())
			n.poll()
			n.poll()
			if s.count() != 1 {
				t.Errorf("got %d posts in the new store, want one", s.count())
			}
		}
	})
}

// TestNodesAgree: whatever is changed, cut off, flushed and restarted, all agree in the end,
// and on what the journal of one of them says was wanted.
func TestNodesAgree(t *testing.T) {
	for seed := range uint64(60) {
		run(t, 3, func(t *testing.T, s *server, n []*node) {
			r := rand.New(rand.NewPCG(seed, 1))
			networks := []string{robber, "198.51.100.0/24", "192.0.2.0/24"}
			for range 60 {
				one := n[r.IntN(3)]
				network := networks[r.IntN(3)]
				switch r.IntN(8) {
				case 0, 1:
					_, _, _ = one.Change(t.Context(), banOf(network, time.Duration(1+r.IntN(600))*time.Minute, fmt.Sprint(r.IntN(1000))), "test", r.IntN(2) == 0, true)
				case 2:
					_, _, _ = one.Change(t.Context(), unban(network), "test", false, true)
				case 3:
					one.link.set(!one.link.isCut(), false)
				case 4:
					one.link.set(false, true)
				case 5:
					if r.IntN(4) == 0 {
						s.with(func() {
							clear(s.posts)
							s.latest = 0
						})
					}
				case 6:
					i := r.IntN(3)
					cut := n[i].link.isCut()
					n[i] = n[i].restart()
					n[i].link.set(cut, false)
				}
				time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
			}
			for _, one := range n {
				one.link.set(false, false)
			}
			first := n[0].link
			time.Sleep(70 * time.Second)
			for _, network := range networks {
				addr := netip.MustParsePrefix(network).Addr()
				var got []string
				for _, one := range n {
					by := "nobody"
					if ban := one.Table.Load().Banned(addr, time.Now()); ban != nil {
						by = ban.By + ban.Until.Format(time.RFC3339Nano)
					}
					got = append(got, by)
				}
				if got[0] != got[1] || got[0] != got[2] {
					t.Errorf("seed %d, %s: got bans %v, want all to agree", seed, network, got)
				}
			}
			for i, one := range n {
				if state := one.State(); state.Untold != 0 || state.Error != "" || state.Foreign != 0 {
					t.Errorf("seed %d: node %d has %d untold, error %v, foreign %v, want none", seed, i, state.Untold, state.Error, state.ForeignNames)
				}
			}
			calls := func() (n int) {
				s.with(func() { n = first.followed })
				return n
			}
			before := calls()
			time.Sleep(time.Minute)
			if more := calls() - before; more > 62 {
				t.Errorf("seed %d: got %d calls in a quiet minute, want one a second", seed, more)
			}
		})
	}
}

func TestAFileThatIsWrongIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes")
	synctest.Test(t, func(t *testing.T) {
		n := &node{Replica: New(nil), t: t}
		n.Use(nil, path, zap.NewNop())
		n.change(banOf(robber, time.Hour, "alice"), false)
		second := &node{Replica: New(nil), t: t}
		second.Use(nil, path, zap.NewNop()) // another process
		want(t, []*node{second}, "nobody")
		second.change(banOf(robber, time.Hour, "bob"), false)
		n.disk.close()
		again := &node{Replica: New(nil), t: t}
		again.Use(nil, path, zap.NewNop())
		want(t, []*node{again}, "alice")
		if err := again.disk.file.Write(func(w io.Writer) error {
			_, err := w.Write([]byte(`{"changes":[{`))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		again.disk.close()
		last := &node{Replica: New(nil), t: t}
		last.Use(nil, path, zap.NewNop())
		want(t, []*node{last}, "nobody")
		last.change(banOf(robber, time.Hour, "carol"), false)
		last.disk.close()
		if matches, _ := filepath.Glob(path + ".bad"); len(matches) != 1 {
			t.Error("got no file set aside")
		}
	})
}

func TestTheJournalKeepsTheLastChanges(t *testing.T) {
	b := New(nil)
	for i := range journaled + 5 {
		b.Note(override.Change{Of: fmt.Sprint(i)})
	}
	got := b.Journal()
	if len(got) != journaled || got[0].Of != fmt.Sprint(journaled+4) || got[journaled-1].Of != "5" {
		t.Errorf("got %d from %v to %v, want %d, the last first", len(got), got[0].Of, got[len(got)-1].Of, journaled)
	}
}

func TestTheBoardIsBounded(t *testing.T) {
	b := New(nil)
	for i := range most {
		b.records[fmt.Sprint(i)] = &record{Last: time.Now()}
	}
	if _, _, err := b.Change(t.Context(), banOf(robber, time.Hour, "x"), "test", false, true); err == nil {
		t.Error("one more than fit: got no error, want one")
	}
}

// TestAForgottenChangeMakesRoom: also without a board.
func TestAForgottenChangeMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{Replica: New(nil), t: t, stop: make(chan struct{})}
		go n.Run(n.stop)
		n.change(banOf(robber, time.Minute, "alice"), false)
		time.Sleep(26 * time.Hour)
		if got := len(n.records); got != 0 {
			t.Errorf("got %d records a day after the end of the change, want none", got)
		}
		n.kill()
	})
}

// TestASlowBoardIsNoOutage: whoever waits for other nodes gives up in the midst of an exchange,
// or leaves, and the board is as well as before.
func TestASlowBoardIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		follow := func() *node {
			n := &node{Replica: New(nil), link: &link{server: server, name: "shop:"}, t: t}
			n.Use(&Signed{Board: n.link, Keys: signer.Fixed("secret")}, "", zap.NewNop())
			return n
		}
		n := follow()
		follow() // and reads no more
		n.link.lag = 700 * time.Millisecond
		if told := n.change(banOf(robber, time.Hour, "alice"), false); told.Error != "" || told.Holding != 1 || told.Nodes != 2 {
			t.Errorf("got %+v, want it to hold on 1 of 2", told)
		}
		if err := n.State().Error; err != "" {
			t.Errorf("after the wait: got error %v, want none", err)
		}
		ctx, leave := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer leave()
		if _, _, err := n.Change(ctx, unban(robber), "test", false, true); err != nil {
			t.Errorf("the change of one who leaves: got error %v, want none", err)
		}
		if err := n.State().Error; err != "" {
			t.Errorf("after somebody has left: got error %v, want none", err)
		}
	})
}

// TestANodeThatStopsIsNotCounted: one that is killed is, for a minute.
func TestANodeThatStopsIsNotCounted(t *testing.T) {
	run(t, 3, func(t *testing.T, s *server, n []*node) {
		n[1].kill()
		n[2].Use(nil, "", zap.NewNop()) // as when Caddy stops
		n[2].kill()
		if told := n[0].change(banOf(robber, time.Hour, "alice"), false); told.Nodes != 2 || told.Holding != 1 {
			t.Errorf("got %+v, want it to hold on 1 of 2", told)
		}
		if nodes := n[0].State().Nodes; len(nodes) != 2 || nodes[1].ID != n[1].self.ID {
			t.Errorf("got %+v, want the one that was killed", nodes)
		}
		n[1], n[2] = start(t, s, n[1].path, "secret"), start(t, s, n[2].path, "secret")
		time.Sleep(2 * time.Second)
		want(t, n, "alice")
		if nodes := n[0].State().Nodes; len(nodes) != 3 {
			t.Errorf("after both have come back: got %+v, want this one and two", nodes)
		}
	})
}

// TestAnOutageAgesTheNodes: nobody is said to have been heard lately while nothing is heard.
func TestAnOutageAgesTheNodes(t *testing.T) {
	run(t, 2, func(t *testing.T, _ *server, n []*node) {
		n[0].link.set(true, false)
		time.Sleep(40 * time.Second)
		if nodes := n[0].State().Nodes; len(nodes) != 2 || nodes[1].Age < 39 {
			t.Errorf("got %+v, want a node that was heard 40 s ago", nodes)
		}
	})
}
