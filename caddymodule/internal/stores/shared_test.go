package stores

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

type closable struct {
	*memstore.Store
	closed atomic.Int32
}

func (c *closable) Close() { c.closed.Add(1) }

func TestASharedStoreIsClosedByItsLastRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		remote := &closable{Store: memstore.New(memstore.Options{})}
		open := func(func(error)) (leakybucket.Store, error) { return remote, nil }
		s, err := ConnectStore("test", []string{t.Name()}, open)
		if err != nil {
			t.Fatal(err)
		}
		if other, _ := ConnectStore("test", []string{t.Name()}, open); other != s {
			t.Error("the same options again: got another store")
		}
		wants := func(when string, want int32) {
			t.Helper()
			synctest.Wait()
			if got := remote.closed.Load(); got != want {
				t.Errorf("%s: got it closed %d times, want %d", when, got, want)
			}
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
	})
}
