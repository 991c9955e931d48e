package caddymodule

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

// load loads a Caddyfile into this process, as a reload does. Caddy's data folder is a
// new one.
func load(t *testing.T, caddyfile string) error {
	t.Helper()
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	var config map[string]any
	if err := json.Unmarshal(adapt(t, caddyfile), &config); err != nil {
		t.Fatal(err)
	}
	config["admin"] = map[string]any{"disabled": true, "config": map[string]any{"persist": false}}
	config["logging"] = map[string]any{"logs": map[string]any{"default": map[string]any{"level": "ERROR", "writer": map[string]any{"output": "discard"}}}}
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return caddy.Load(raw, true)
}

// mustLoad loads a Caddyfile, and stops Caddy when the test ends.
func mustLoad(t *testing.T, caddyfile string) {
	t.Helper()
	if err := load(t, caddyfile); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// freeAddress returns an address that nobody listens on, without a host.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener := listen(t, ":0")
	defer listener.Close()
	return fmt.Sprint(":", listener.Addr().(*net.TCPAddr).Port)
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// active is the site that Caddy serves now.
func active(t *testing.T) *site {
	t.Helper()
	s := &site{TB: t, ctx: caddy.ActiveContext()}
	app, err := s.ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	s.server = app.(*caddyhttp.App).Servers["srv0"]
	return s
}

// status requests a page and returns the status.
func status(t *testing.T) int {
	t.Helper()
	return active(t).from(someone).get("/").Code
}

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
	addr := freeAddress(t)
	mustLoad(t, fmt.Sprintf(reloaded, 1000, addr, 5, "one"))
	for range 3 {
		if got := status(t); got != http.StatusOK {
			t.Fatalf("before: got %v, want 200", got)
		}
	}
	if err := load(t, fmt.Sprintf(reloaded, 1000, addr, 5, "two")); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{200, 200, 429, 429} {
		if got := status(t); got != want {
			t.Errorf("request %d after the reload: got %v, want %v", i+1, got, want)
		}
	}
	// A changed limit keeps the level.
	if err := load(t, fmt.Sprintf(reloaded, 1000, addr, 7, "three")); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{200, 200, 429} {
		if got := status(t); got != want {
			t.Errorf("request %d after raising the capacity: got %v, want %v", i+1, got, want)
		}
	}
	counts := active(t).counts(t)["site"]
	if counts["admitted"] != 7 || counts["refused capacity"] != 3 {
		t.Errorf("got %v, want 7 admitted and 3 refused", counts)
	}
}

func TestAReloadThatFailsChangesNothing(t *testing.T) {
	addr, taken := freeAddress(t), freeAddress(t)
	mustLoad(t, fmt.Sprintf(reloaded, 2000, addr, 5, "one"))
	for range 4 {
		status(t)
	}
	for i := range 50 { // more than would fit the configs that fail
		active(t).from(fmt.Sprintf("192.0.2.%d:1", i)).get("/")
	}
	defer listen(t, taken).Close()
	kept, _ := stores.Process.References(stores.MemoryKey)

	for name, caddyfile := range map[string]string{
		"provisioning fails": strings.Replace(fmt.Sprintf(reloaded, 1, addr, 100, "two"), "respond",
			"throttle {\nzone home {\nlimit 1 1/s\nmatch client_ip {env.NO_SUCH_HOME}\n}\n}\nrespond", 1),
		"starting fails": fmt.Sprintf(reloaded, 1, addr+", http://"+taken, 100, "two"),
	} {
		for range 5 { // apps start in any order
			if err := load(t, caddyfile); err == nil {
				t.Fatalf("%s: got no error, want one", name)
			}
		}
		for i := range 50 {
			active(t).from(fmt.Sprintf("198.51.100.%d:1", i)).get("/")
		}
		if got := theMemory(t).Evictions(); got != 0 {
			t.Errorf("%s: got %v evictions, want none", name, got)
		}
		if got, _ := stores.Process.References(stores.MemoryKey); got != kept {
			t.Errorf("%s: got %v references to the memory, want %v", name, got, kept)
		}
	}
	for i, want := range []int{200, 429} {
		if got := status(t); got != want {
			t.Errorf("request %d after reloads that failed: got %v, want %v", i+1, got, want)
		}
	}
	if counts := active(t).counts(t)["site"]; counts["admitted"] != 5+50+2*50 || counts["refused capacity"] != 1 {
		t.Errorf("got %v, want 155 admitted and 1 refused", counts)
	}
}

// theMemory returns the memory of this process.
func theMemory(t *testing.T) *stores.Memory {
	t.Helper()
	var found *stores.Memory
	stores.Process.Range(func(_, value any) bool {
		if m, ok := value.(*stores.Memory); ok {
			found = m
		}
		return found == nil
	})
	if found == nil {
		t.Fatal("got no memory")
	}
	return found
}

func TestAReloadThatWorksPutsItsBoundIntoForce(t *testing.T) {
	addr := freeAddress(t)
	mustLoad(t, fmt.Sprintf(reloaded, 100, addr, 5, "one"))
	for _, most := range []int{100, 10, 50} {
		if err := load(t, fmt.Sprintf(reloaded, most, addr, 5, "two")); err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			active(t).from(fmt.Sprintf("192.0.2.%d:1", i)).get("/")
		}
		if got := theMemory(t).Buckets()["site"]; got != most {
			t.Errorf("got %v buckets kept, want %v", got, most)
		}
	}
}

func TestReloadsLeaveNoGoroutinesBehind(t *testing.T) {
	addr := freeAddress(t)
	cycle := func(n int) {
		for i := range n {
			if err := load(t, fmt.Sprintf(reloaded, 1000, addr, 5, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
			status(t)
		}
	}
	mustLoad(t, fmt.Sprintf(reloaded, 1000, addr, 5, "first"))
	cycle(3)
	before := settled()
	cycle(30)
	soon(t, fmt.Sprintf("the %d goroutines of before, or a few more", before), func() bool { return runtime.NumGoroutine() <= before+5 })
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
		old := run(t, `http:// {
			throttle site 3 1/h
			respond ok
		}`)
		old.from(someone).get("/")
		old.stop()
		old.from(someone).passes(2, "/")
		<-time.After(time.Hour) // until its log has calmed down
	})
}
