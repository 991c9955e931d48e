package caddymodule_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

const reloaded = `{
	throttle {
		store memory {
			max_buckets %d
		}
	}
}
http://%s {
	throttle site %d 1/h
	respond %q
}`

func TestBucketsSurviveReloadsAndSoDoCounts(t *testing.T) {
	addr := servertest.FreeAddress(t)
	servertest.MustLoad(t, fmt.Sprintf(reloaded, 1000, addr, 5, "one"))
	for range 3 {
		if got := servertest.Status(t); got != http.StatusOK {
			t.Fatalf("before: got %v, want 200", got)
		}
	}
	if err := servertest.Load(t, fmt.Sprintf(reloaded, 1000, addr, 5, "two")); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{200, 200, 429, 429} {
		if got := servertest.Status(t); got != want {
			t.Errorf("request %d after the reload: got %v, want %v", i+1, got, want)
		}
	}
	// A changed limit keeps the level.
	if err := servertest.Load(t, fmt.Sprintf(reloaded, 1000, addr, 7, "three")); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{200, 200, 429} {
		if got := servertest.Status(t); got != want {
			t.Errorf("request %d after raising the capacity: got %v, want %v", i+1, got, want)
		}
	}
	counts := servertest.Active(t).Counts(t)["site"]
	if counts["admitted"] != 7 || counts["refused capacity"] != 3 {
		t.Errorf("got %v, want 7 admitted and 3 refused", counts)
	}
}

func TestAReloadThatFailsChangesNothing(t *testing.T) {
	addr, taken := servertest.FreeAddress(t), servertest.FreeAddress(t)
	servertest.MustLoad(t, fmt.Sprintf(reloaded, 2000, addr, 5, "one"))
	for range 4 {
		servertest.Status(t)
	}
	for i := range 50 { // more than would fit the configs that fail
		servertest.Active(t).From(fmt.Sprintf("192.0.2.%d:1", i)).Get("/")
	}
	defer servertest.Listen(t, taken).Close()
	kept, _ := stores.Process.References(stores.MemoryKey)

	for name, caddyfile := range map[string]string{
		"provisioning fails": strings.Replace(fmt.Sprintf(reloaded, 1, addr, 100, "two"), "respond",
			"throttle {\nzone home {\nlimit 1 1/s\nmatch client_ip {env.NO_SUCH_HOME}\n}\n}\nrespond", 1),
		"starting fails": fmt.Sprintf(reloaded, 1, addr+", http://"+taken, 100, "two"),
	} {
		for range 5 { // apps start in any order
			if err := servertest.Load(t, caddyfile); err == nil {
				t.Fatalf("%s: got no error, want one", name)
			}
		}
		for i := range 50 {
			servertest.Active(t).From(fmt.Sprintf("198.51.100.%d:1", i)).Get("/")
		}
		if got := servertest.TheMemory(t).Evictions(); got != 0 {
			t.Errorf("%s: got %v evictions, want none", name, got)
		}
		if got, _ := stores.Process.References(stores.MemoryKey); got != kept {
			t.Errorf("%s: got %v references to the memory, want %v", name, got, kept)
		}
	}
	for i, want := range []int{200, 429} {
		if got := servertest.Status(t); got != want {
			t.Errorf("request %d after reloads that failed: got %v, want %v", i+1, got, want)
		}
	}
	if counts := servertest.Active(t).Counts(t)["site"]; counts["admitted"] != 5+50+2*50 || counts["refused capacity"] != 1 {
		t.Errorf("got %v, want 155 admitted and 1 refused", counts)
	}
}

func TestAReloadThatWorksPutsItsBoundIntoForce(t *testing.T) {
	addr := servertest.FreeAddress(t)
	servertest.MustLoad(t, fmt.Sprintf(reloaded, 100, addr, 5, "one"))
	for _, most := range []int{100, 10, 50} {
		if err := servertest.Load(t, fmt.Sprintf(reloaded, most, addr, 5, "two")); err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			servertest.Active(t).From(fmt.Sprintf("192.0.2.%d:1", i)).Get("/")
		}
		if got := servertest.TheMemory(t).Buckets()["site"]; got != most {
			t.Errorf("got %v buckets kept, want %v", got, most)
		}
	}
}

func TestReloadsLeaveNoGoroutinesBehind(t *testing.T) {
	addr := servertest.FreeAddress(t)
	cycle := func(n int) {
		for i := range n {
			if err := servertest.Load(t, fmt.Sprintf(reloaded, 1000, addr, 5, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
			servertest.Status(t)
		}
	}
	servertest.MustLoad(t, fmt.Sprintf(reloaded, 1000, addr, 5, "first"))
	cycle(3)
	before := settled()
	cycle(30)
	servertest.Soon(t, fmt.Sprintf("the %d goroutines of before, or a few more", before), func() bool { return runtime.NumGoroutine() <= before+5 })
}

// settled returns the number of goroutines once it has not fallen for a second.
func settled() int {
	least := runtime.NumGoroutine()
	for since := time.Now(); time.Since(since) < time.Second; <-time.After(5 * time.Millisecond) {
		if n := runtime.NumGoroutine(); n < least {
			least, since = n, time.Now()
		}
	}
	return least
}

func TestRequestsMayOutliveTheConfigThatTheyCameUnder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := servertest.Run(t, `http:// {
			throttle site 3 1/h
			respond ok
		}`)
		old.From(servertest.Someone).Get("/")
		old.Stop()
		old.From(servertest.Someone).Passes(2, "/")
		<-time.After(time.Hour) // until its log has calmed down
	})
}
