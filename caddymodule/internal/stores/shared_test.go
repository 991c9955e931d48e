package stores

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

type closable struct {
	*memstore.Store
	closed atomic.Int32
	takes  time.Duration
}

func (c *closable) Close() {
	time.Sleep(c.takes)
	c.closed.Add(1)
}

func TestASharedStoreIsClosedByItsLastRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		remote := &closable{Store: memstore.New(memstore.Options{})}
		open := func(func(error)) (leakybucket.Store, error) { return remote, nil }
		s := check.Must(ConnectStore("test", []string{t.Name()}, open))(t)
		other, _ := ConnectStore("test", []string{t.Name()}, open)
		check.That(t, other == s, "the same options again: got another store")
		wants := func(when string, want int32) {
			t.Helper()
			synctest.Wait()
			check.Equal(t, remote.closed.Load(), want, "%s: times it was closed", when)
		}
		s.Hold()
		s.Hold()
		s.Release()
		_ = s.Leave()
		wants("with a config and a request", 0)
		_ = s.Leave()
		wants("with a request", 0)
		s.Release()
		wants("out of use", 1)
		s.Hold() // a request of a former config
		s.Release()
		wants("used once more", 1)
		idle := &closable{Store: remote.Store}
		s = check.Must(ConnectStore("test", []string{"idle"}, func(func(error)) (leakybucket.Store, error) { return idle, nil }))(t)
		_ = s.Leave()
		check.Equal(t, idle.closed.Load(), 1, "left by its last config, which may be all that is done before Caddy exits: times it was closed")
		hangs, began := &closable{Store: remote.Store, takes: 15 * time.Second}, time.Now()
		s = check.Must(ConnectStore("test", []string{"hangs"}, func(func(error)) (leakybucket.Store, error) { return hangs, nil }))(t)
		_ = s.Leave()
		check.Equal(t, time.Since(began), closing, "how long the end waits for connections to a server that hangs")
		time.Sleep(hangs.takes)
	})
}
