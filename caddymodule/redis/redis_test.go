package redis

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func config(store string) []byte {
	return []byte(`{"apps":{"throttle":{"store":` + store + `}}}`)
}

func TestJSONThatCannotWorkIsRefused(t *testing.T) {
	for store, want := range map[string]string{
		`{"module":"redis"}`: `invalid redis URL: want redis://`,
		`{"module":"redis","url":"redis://127.0.0.1:1","user":"app"}`:     `unknown field "user"`,
		`{"module":"redis","url":["redis://127.0.0.1:1"]}`:                `url`,
		`{"module":"redis","url":"redis://127.0.0.1:1","username":"app"}`: `without a password`,
		`{"module":"redis","url":"redis://:hunter2@127.0.0.1:1:2"}`:       `invalid redis URL`,
	} {
		err := golden.Validate(t, config(store))
		check.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "hunter2"), "%s: got %v, want an error with %q and no password", store, err, want)
	}
}

func TestJSONWithEveryOptionIsValid(t *testing.T) {
	t.Setenv("SITE", "e")
	for _, store := range []string{
		`{"module":"redis","url":"rediss+sentinel://127.0.0.1:1/m","username":"a","password":"b","sentinel_username":"c","sentinel_password":"d","prefix":"{env.SITE}","tls_ca":"testdata/ca.pem"}`,
		`{"module":"redis","url":"redis+cluster://127.0.0.1:1","prefix":"{shop}:"}`,
		`{"module":"redis","url":"redis+cluster://127.0.0.1:1","prefix":"\\{{env.SITE}\\}:"}`,
	} {
		check.NoError(t, golden.Validate(t, config(store)), "%s", store)
	}
}

func TestCaddyfilesAdaptAsTheGoldenFilesSay(t *testing.T) { golden.Run(t) }

// timeout is long, since a busy machine may be slow as well.
const timeout = 400 * time.Millisecond

// TestADeadMaster, of the slot with the buckets, takes the store to the policy, and hardly anybody waits: a
// request that falls back waits for the timeout, and none does once the store is down. If a
// replica takes over, the store is up again.
func TestADeadMaster(t *testing.T) {
	for _, test := range []struct {
		how      string
		fail     func(master, replica *servertest.Redis)
		survives bool
	}{
		{"killed with its replica", func(master, replica *servertest.Redis) { replica.Kill(); master.Kill() }, false},
		{"stopped with its replica", func(master, replica *servertest.Redis) { replica.Pause(); master.Pause() }, false},
		{"killed", func(master, _ *servertest.Redis) { master.Kill() }, true},
	} {
		t.Run(test.how, func(t *testing.T) {
			t.Parallel()
			c := servertest.StartRedisCluster(t)
			for _, node := range c.Nodes {
				node.Do("config", "set", "cluster-require-full-coverage", "no")
			}
			store := check.Must(redisstore.Open(c.URL(), redisstore.Options{}))(t)
			backend := sharedstore.NewBackend("cluster", store, memstore.New(memstore.Options{}))
			t.Cleanup(backend.Close)
			s := backend.With(sharedstore.Options{Timeout: timeout})
			master, replica := c.Owner()
			flood(t, s, 100) // all is well
			check.Assume(t, !backend.Failing(), "before any failure: got it failing")
			test.fail(master, replica)
			if test.survives { // perhaps before anybody notices
				servertest.Eventually(t, "the store is up", func() error {
					for range 3 {
						if flood(t, s, 10); backend.Failing() {
							return errors.New("calls fail")
						}
					}
					return nil
				})
				return
			}
			servertest.Eventually(t, "the store is down", func() error {
				flood(t, s, 10)
				if !backend.Down() {
					return errors.New("it is up")
				}
				return nil
			})
			waited := flood(t, s, 200)
			check.That(t, waited == 0 && backend.Down(), "in the outage: got %d requests that waited and an outage %v, want none and one", waited, backend.Down())
		})
	}
}

// flood takes from so many buckets, fifty a second, and returns how many waited for the whole
// timeout.
func flood(t *testing.T, s *sharedstore.Store, requests int) (waited int64) {
	t.Helper()
	var crowd sync.WaitGroup
	var slow atomic.Int64
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for i := range requests {
		crowd.Go(func() {
			charges := []leakybucket.Charge{{Zone: "z", Key: fmt.Sprint(i), Limit: leakybucket.Limit{Capacity: 1e6, Leak: 1}, Cost: 1}}
			began := time.Now()
			check.NoError(t, s.Take(t.Context(), charges, make([]leakybucket.Decision, 1)))
			if time.Since(began) >= timeout {
				slow.Add(1)
			}
		})
		<-ticker.C
	}
	crowd.Wait()
	return slow.Load()
}
