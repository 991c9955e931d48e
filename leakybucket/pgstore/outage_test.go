package pgstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// budget is what a store may cost a request, and grace what a busy machine may
// add until the caller runs again.
const (
	budget = 60 * time.Millisecond
	grace  = 400 * time.Millisecond
)

func long() bool { return os.Getenv("TEST_LONG") == "1" }

// takeInBudget takes within the budget, and fails the test if that took longer.
func takeInBudget(t *testing.T, s *Store, c leakybucket.Charge) (leakybucket.Decision, error) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	d, err := take(ctx, s, c)
	took := time.Since(began)
	check.That(t, took <= budget+grace+heart.Lost(began), "take within %v: got an answer after %v", budget, took)
	return d, err
}

// load takes from one bucket all the time, until stop is called, which returns
// how much was poured for certain, and how much at most.
func load(t *testing.T, s *Store, key string, callers int) (stop func() (certain, most float64)) {
	t.Helper()
	var certain, unsure atomic.Int64
	ended := make(chan struct{})
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(5 * time.Millisecond):
				}
				switch d, err := takeInBudget(t, s, charge(key, 0.01)); {
				case err != nil:
					unsure.Add(1)
				case d.Poured:
					certain.Add(1)
				}
			}
		})
	}
	return func() (float64, float64) {
		close(ended)
		wg.Wait()
		return float64(certain.Load()) / 100, float64(certain.Load()+unsure.Load()) / 100
	}
}

// backWithin waits until the store answers again. A long test fails if that is late.
func backWithin(t *testing.T, s *Store, within time.Duration) {
	t.Helper()
	began := time.Now()
	eventually(t, "the store answers again", func() bool {
		_, err := takeInBudget(t, s, charge("back", 0))
		return err == nil
	})
	if took := time.Since(began); long() && took > within+heart.Lost(began) { // the server is as busy as the machine
		t.Errorf("the store answered again after %v, want at most %v", took, within)
	}
}

func TestSurvivesRestartsAndFreezesOfPostgreSQL(t *testing.T) {
	server := servertest.StartPostgres(t)
	s := openStore(t, server.URL(), Options{Logged: true})
	eventually(t, "the store answers", func() bool { return ping(s) == nil })
	cycles := 1
	if long() {
		cycles = 20
	}
	for cycle := range cycles {
		for name, outage := range map[string]func() (end func()){
			"killed":  func() func() { server.Kill(); return func() { run(t, server) } },
			"stopped": func() func() { server.Stop(); return func() { run(t, server) } },
			"frozen":  server.Freeze,
		} {
			key := fmt.Sprint(name, cycle)
			stop := load(t, s, key, 16)
			pause(context.Background(), 200*time.Millisecond)
			written := levelOf(t, s, key)
			log := server.Text(t, "SELECT pg_current_wal_insert_lsn()")
			eventually(t, "it is on the disk", func() bool {
				return server.Text(t, "SELECT pg_current_wal_flush_lsn() >= '"+log+"'") == "t"
			})
			end := outage()
			eventually(t, "the outage shows", func() bool {
				_, err := takeInBudget(t, s, charge("probe", 0))
				return err != nil
			})
			pause(context.Background(), 700*time.Millisecond)
			end()
			backWithin(t, s, time.Second+grace)
			certain, most := stop()
			if name == "killed" {
				certain = written
			}
			got := levelOf(t, s, key)
			check.That(t, got >= certain-0.001 && got <= most+0.001, "level after PostgreSQL was %s: got %v, want from %v, which was acknowledged, to %v", name, got, certain, most)
		}
	}
}

func run(t *testing.T, server *servertest.Postgres) {
	t.Helper()
	check.OK(t, server.Run())
}

func TestBeginsWithoutPostgreSQLAndFindsItLater(t *testing.T) {
	server := servertest.StartPostgres(t)
	server.Stop()
	var reported atomic.Int64
	s := openStore(t, server.URL(), Options{OnError: func(error) { reported.Add(1) }})
	_, err := takeInBudget(t, s, charge("k", 1))
	check.That(t, err != nil, "take without PostgreSQL: got no error")
	err = ping(s)
	check.That(t, err != nil && strings.Contains(err.Error(), "connecting to PostgreSQL"), "ping without PostgreSQL: got %v, want one that says connecting", err)
	eventually(t, "the error is reported", func() bool { return reported.Load() > 0 })
	run(t, server)
	backWithin(t, s, time.Second+grace)
}

// Each reply of a commit may be lost after the commit was done, or before. What
// failed may be charged, and never twice; what did not is charged.
func TestSwallowedRepliesChargeAtMostOnce(t *testing.T) {
	requests := 2000
	if long() {
		requests = 10_000
	}
	server := sharedServer(t)
	var swallowed atomic.Int64
	proxy := servertest.StartProxy(t, fmt.Sprintf("127.0.0.1:%d", server.Port), func(piece []byte) bool {
		// Not what it takes to connect, which would only take time.
		if bytes.Contains(piece, []byte("SCRAM")) || bytes.HasPrefix(piece, []byte{'R'}) || rand.IntN(5) != 0 {
			return false
		}
		swallowed.Add(1)
		return true
	})
	s := openStore(t, server.URLThrough(proxy), Options{Table: unique("swallowed")})
	const keys = 40
	var certain, unsure [keys]atomic.Int64
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 8 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(requests); i = next.Add(1) {
				key := i % keys
				switch d, err := take(context.Background(), s, charge(fmt.Sprint(key), 1)); {
				case err != nil:
					unsure[key].Add(1)
				case d.Poured:
					certain[key].Add(1)
				}
			}
		})
	}
	wg.Wait()
	direct := openStore(t, server.URL(), Options{Table: s.table[1 : len(s.table)-1]})
	all, allUnsure := 0.0, int64(0)
	for key := range keys {
		got := levelOf(t, direct, fmt.Sprint(key))
		least, most := certain[key].Load(), certain[key].Load()+unsure[key].Load()
		check.That(t, got >= float64(least)-0.01 && got <= float64(most), "charged to key %d: got %v, want from %d to %d", key, got, least, most)
		all, allUnsure = all+got, allUnsure+unsure[key].Load()
	}
	t.Logf("%d requests, %d replies swallowed, %d failed, %.0f charged", requests, swallowed.Load(), allUnsure, all)
	check.That(t, swallowed.Load() != 0, "no reply was swallowed")
}

// TestASessionThatEndsBeforeTheCommit: whatever the reason is, such as PgBouncer's for a session that
// the server has ended, nothing was charged, and no caller gets an error.
func TestASessionThatEndsBeforeTheCommit(t *testing.T) {
	server := sharedServer(t)
	var ends atomic.Bool
	proxy := servertest.StartProxy(t, fmt.Sprintf("127.0.0.1:%d", server.Port), func(reply []byte) bool {
		if ends.CompareAndSwap(true, false) {
			message := append([]byte("SFATAL\x00C08P01\x00M"), bytes.Repeat([]byte("x"), len(reply)-25)...)
			copy(reply, append(binary.BigEndian.AppendUint32([]byte{'E'}, uint32(len(reply)-1)), append(message, 0, 0)...))
		}
		return false
	})
	s := openStopped(t, patient(server.URLThrough(proxy)), Options{Table: unique("ended")})
	mustTake(t, s, charge("k", 1))
	ends.Store(true)
	mustTake(t, s, charge("k", 1))
	check.That(t, !ends.Load(), "no session has ended")
}

func TestAConnectionThatHoldsLocksAndStopsIsLetGo(t *testing.T) {
	server := sharedServer(t)
	table := unique("stopped")
	s := openStore(t, server.URL(), Options{Table: table})
	mustTake(t, s, charge("k", 1))
	// Another node locks the bucket, and is never heard of again.
	other := openStore(t, server.URL(), Options{Table: table})
	mustTake(t, other, charge("other", 1))
	ctx := context.Background()
	conn := check.Must(other.pool.Acquire(ctx))(t)
	defer conn.Release()
	b := newBatch([]*call{{names: []string{other.name("zone", "k", false)}}})
	check.Must((&transaction{other, conn.Conn().PgConn(), conn.Conn().TypeMap()}).lock(ctx, b))(t)
	began := time.Now()
	mustTake(t, s, charge("k", 1))
	if took := time.Since(began); long() && took > lockPatience+5*time.Second+heart.Lost(began) {
		t.Errorf("take of a bucket whose lock was held by a node that has stopped: got an answer after %v, want about %v", took, lockPatience)
	}
}
