package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// startFake starts a server that answers what it reads, as says tells.
func startFake(t *testing.T, says func(addr, read string) string) (addr string) {
	t.Helper()
	listener := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = listener.Close() })
	addr = listener.Addr().String()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					if _, err := io.WriteString(conn, says(addr, string(buf[:n]))); err != nil {
						return
					}
				}
			}()
		}
	}()
	return addr
}

// hello answers what rueidis asks of a new connection.
const hello = "%1\r\n$5\r\nproto\r\n:3\r\n+OK\r\n+OK\r\n"

// The server may not be a Redis. Without the guard, some of these answers make
// rueidis panic in its own goroutine.
func TestGarbageIsAnErrorAndNoPanic(t *testing.T) {
	var wg sync.WaitGroup // of stores that wait for the rest of an answer
	defer wg.Wait()
	for _, text := range []string{
		"", "\r\n", "\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "+OK\r\n", "-ERR no\r\n", ":1\r\n",
		"$-1\r\n", "$-5\r\n", "*-5\r\n", "%-1\r\n", "$99999999999999999999\r\n", "*1000000000\r\n", "*15\n", "$3\r\nabcdefgh",
		strings.Repeat("+OK\r\n", 100), strings.Repeat("*1\r\n", 100), ">2\r\n+subscribe\r\n+x\r\n", "|1\r\n+a\r\n+b\r\n+OK\r\n",
		hello, hello + hello, hello + "$3\r\nabc\r\n", hello + ">2\r\n+message\r\n+x\r\n", hello + "*-5\r\n",
		"_\r\n", "_abc\r\n", "#t\r\n", "#true\r\n", "\x16\x03\x01\x00\x01", strings.Repeat("x", 1<<20),
	} {
		s := open(t, "redis://"+startFake(t, func(string, string) string { return text }), Options{})
		wg.Go(func() {
			for range 3 {
				d, err := takeWithin(s, charge("k", frozen, 1), patience)
				check.That(t, err != nil, "server that answers %.40q: got %+v, want an error", text, d)
			}
		})
	}
}

// A script's reply is read as strictly as its frame.
func TestAReplyThatMakesNoSenseIsAnError(t *testing.T) {
	r := &request{keys: []string{"k"}}
	for _, line := range []string{
		"", "1", "1 2", "2048 2 0", "-1 2 0", "1 NaN 0", "1 Inf 0", "1 -2 0", "1 2 -3", "0 2 9223372036854775807", "1 2 x", "1 2 0 3", "x 2 0", "!", "!x", "!0 why", "!2 why",
	} {
		r.reply = reply{at: 1, line: line}
		err := r.fault()
		if err == nil {
			err = parseDecisions(r.reply, make([]leakybucket.Decision, 1))
		}
		check.Is(t, err, errGarbage, "line %q, want an error", line)
	}
	for _, head := range []string{"", "7", "7 ", "7 x", "7 0", "7 -5", "7 9223372036854775807", "8 1700000000000000"} {
		_, err := parseHead([]string{head, "line"}, "7", 1)
		check.That(t, err != nil, "head %q of call 7: got no error", head)
	}
	_, err := parseHead([]string{"7 1"}, "7", 1)
	check.That(t, err != nil, "reply without a line for its request: got no error")
}

func TestAKeyThatIsNoBucketFailsForItselfOnly(t *testing.T) {
	server, s := start(t, Options{Prefix: "p:"})
	server.Do("lpush", "p:zone/list", "x")
	for i, value := range []string{"", "x", "1", "1 2 x", "1 2 -3", "1 2 nan", "1 2 1e999", "1 2 3 x", "1 2 3 4 x", "1 2 3 4 5 6", "1 2 3 4 256", "nan 1", "nan 1 1", "-1 5", "1e999 5", "1 -5", strings.Repeat("9", 10_000)} {
		server.Do("set", fmt.Sprint("p:zone/text", i), value)
		checkFaulty(t, s, fmt.Sprint("text", i))
	}
	checkFaulty(t, s, "list")
	server.Do("set", "p:zone/text", "inf 1 1")
	some, _, err := s.List(t.Context(), store.Filter{Zone: "zone", Scan: 1000}, "")
	check.That(t, err == nil && len(some) == 0, "list: got %+v, %v, want it empty", some, err)
	server.Do("set", "p:zone/far", strings.ReplaceAll("0.5 X 1 X 0", "X", strings.Repeat("9", 22))) // no int64
	some, _, err = s.List(t.Context(), store.Filter{Zone: "zone", Scan: 1000}, "")
	check.That(t, err == nil && len(some) == 1 && frozen.Level(some[0].State, some[0].Now) == 0.5 && some[0].State.BlockedUntil.Sub(some[0].Now) > 0, "list: got %+v, %v, want the level that a take finds, and a block to come", some, err)
	check.Equal(t, levelOf(t, s, charge("far", frozen, 1)), 0.5, "bucket of the far future: level")
	check.Equal(t, server.Do("lrange", "p:zone/list", "0", "-1"), "x", "list under a bucket's key, want it as it was")
	check.Equal(t, levelOf(t, s, charge("sound", frozen, 1)), 0, "bucket beside those: level, want nothing poured")
	check.OK(t, s.Reset(context.Background(), "zone", "list", false))
	mustTake(t, s, charge("list", frozen, 1))
}

func checkFaulty(t *testing.T, s *Store, key string) {
	t.Helper()
	all := []leakybucket.Charge{charge("sound", frozen, 1), charge(key, frozen, 1)}
	err := s.Take(context.Background(), all, make([]leakybucket.Decision, 2))
	if !errors.Is(err, store.ErrBadBucket) || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("take of %s: got %v, want an error that names the key and says what to do", key, err)
	}
	was := leakybucket.Decision{Fits: true, Poured: true, At: 1}
	check.That(t, s.Settle(context.Background(), []leakybucket.Settlement{{Charge: all[1], Was: was, Diff: 1}}) != nil, "settlement of %s: got no error", key)
}

func TestAServerThatCannotWriteIsAClearError(t *testing.T) {
	master := servertest.StartRedis(t)
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"full", []string{"--maxmemory", "100kb", "--maxmemory-policy", "noeviction"}, []string{"OOM", "raise its maxmemory"}},
		{"replica", []string{"--replicaof", fmt.Sprintf("127.0.0.1 %d", master.Port)}, []string{"READONLY", "want the master's address"}},
		{"stale replica", []string{"--replicaof", "127.0.0.1 1", "--replica-serve-stale-data", "no"}, []string{"replica", "want the master"}},
		{"cluster", []string{"--cluster-enabled", "yes"}, []string{"CLUSTERDOWN", "cluster"}},
		{"no replica", []string{"--min-replicas-to-write", "1"}, []string{"NOREPLICAS", "bring its replicas back"}},
		{"renamed", []string{"--rename-command", "EVALSHA", ""}, []string{"unknown command 'EVALSHA'", "Redis 6.2"}},
		{"password", []string{"--requirepass", "hunter2"}, []string{"NOAUTH", "want a password"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server, s := start(t, Options{}, test.args...)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			d := make([]leakybucket.Decision, 1)
			errTake := s.Take(ctx, []leakybucket.Charge{charge("k", frozen, 1)}, d)
			errReset := s.Reset(ctx, "zone", "k", false)
			if errReset == nil { // it needs less
				errReset = errTake
			}
			for what, err := range map[string]error{"take": errTake, "reset": errReset} {
				if err != nil && strings.Contains(err.Error(), "zone/") {
					t.Errorf("%s: got %v, want no key in it", what, err)
				}
				for _, want := range append(test.want, server.Addr) {
					check.That(t, err != nil && strings.Contains(err.Error(), want), "%s: got %v, want an error with %q", what, err, want)
				}
			}
		})
	}
}

// TestAHungServerKeepsNoCallerBeyondItsDeadline stops the process. Its
// kernel still accepts connections.
func TestAHungServerKeepsNoCallerBeyondItsDeadline(t *testing.T) {
	server, s := start(t, Options{})
	mustTake(t, s, charge("k", frozen, 1))
	before := runtime.NumGoroutine()
	server.Pause()
	const budget = 50 * time.Millisecond
	longest := time.Duration(0)
	for range 60 {
		asked := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		err := s.Take(ctx, []leakybucket.Charge{charge("k", frozen, 1)}, make([]leakybucket.Decision, 1))
		cancel()
		took := time.Since(asked)
		longest = max(longest, took)
		check.That(t, took <= 10*budget+heart.Lost(asked), "take: got an answer after %v with a deadline of %v", took, budget)
		check.That(t, err != nil, "take of a server that is stopped: got no error")
	}
	server.Resume()
	resumed := time.Now()
	servertest.Eventually(t, "the server answers again", func() error {
		_, err := take(s, charge("k", frozen, 1))
		return err
	})
	if back := time.Since(resumed); long() && back > 3*time.Second+heart.Lost(resumed) {
		t.Errorf("first answer after the server went on: got it after %v, want it soon", back)
	}
	servertest.Eventually(t, "no goroutine is left waiting", func() error {
		if n := runtime.NumGoroutine(); n > before+5 {
			return fmt.Errorf("got %d, want about %d", n, before)
		}
		return nil
	})
	t.Logf("longest take %v", longest)
}

// The password may also be a word of our own text, such as "reading".
func TestABadKeyIsAFaultOfItsBucketWhateverThePassword(t *testing.T) {
	server := servertest.StartRedis(t, "--requirepass", "reading")
	s := open(t, "redis://:reading@"+server.Addr, Options{Prefix: "p:"})
	mustTake(t, s, charge("sound", frozen, 1))
	if out, err := server.Try("-a", "reading", "set", "p:zone/bad", "no bucket"); err != nil {
		t.Fatal(out, err)
	}
	_, err := takeWithin(s, charge("bad", frozen, 1), patience)
	errSettle := s.Settle(context.Background(), []leakybucket.Settlement{{Charge: charge("bad", frozen, 1), Diff: 1}})
	for _, err := range []error{err, errSettle} {
		check.Is(t, err, store.ErrBadBucket, "want ErrBadBucket in its tree")
		if err != nil && strings.Contains(err.Error(), "reading") {
			t.Errorf("got %v, want no password in it", err)
		}
	}
}

func TestRedactionKeepsTheTreeOfAnError(t *testing.T) {
	const quoted = "s3\"cret"
	c := &connection{secrets: []string{"hunter2", quoted}}
	dial := &net.OpError{Op: "dial", Err: fmt.Errorf("hunter2 at %w", io.ErrUnexpectedEOF)}
	for _, err := range []error{
		fmt.Errorf("connecting with hunter2: %w", dial),
		errors.Join(errors.New("hunter2"), fmt.Errorf("asking %q: %w", quoted, dial)),
		fmt.Errorf("nothing to hide: %w", errors.Join(dial)),
	} {
		shown := fmt.Errorf("taking: %w", c.redact(err))
		var op *net.OpError
		check.That(t, errors.Is(shown, io.ErrUnexpectedEOF) && errors.As(shown, &op) && op == dial, "%v: got a tree without its errors", shown)
		check.That(t, !errors.Is(shown, io.EOF), "%v: got io.EOF in its tree", shown)
		for _, text := range texts(shown) {
			check.That(t, !strings.Contains(text, "hunter2") && !strings.Contains(text, "cret"), "got %q, want no password", text)
		}
	}
	err := errors.New("plain")
	check.That(t, c.redact(err) == err, "error without a secret: got another one")
}

// texts returns everything that can be printed of an error and of those it
// unwraps to.
func texts(err error) []string {
	all := []string{err.Error(), fmt.Sprintf("%v", err), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err), fmt.Sprintf("%q", err)}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			all = append(all, texts(inner)...)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, texts(inner)...)
		}
	}
	return all
}
