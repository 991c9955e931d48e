package stores

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// savedConfig has a bucket that hardly leaks in a test, and a zone that blocks.
func savedConfig(port int, file string) system.Config {
	return system.Config{
		Throttle: "store memory {\nsnapshot " + file + "\nsnapshot_interval 100ms\n}",
		Sites: fmt.Sprintf(`
http://:%d {
	header >Level {http.throttle.level}
	handle /login {
		throttle {
			zone login {
				limit 1 1/h
				block 1d
			}
		}
		respond ok
	}
	handle {
		throttle {
			zone steady {
				limit 10000000 2000/d
			}
		}
		respond ok
	}
}`, port),
	}
}

// levelOf asks for the level of a client's bucket, which costs 1.
func levelOf(t *testing.T, v *system.Visitor, url string) float64 {
	t.Helper()
	a := v.Get(t, url)
	var level float64
	_, err := fmt.Sscan(a.Header.Get("Level"), &level)
	check.Assume(t, err == nil && a.Status == 200, "got status %d and level %q, want 200 and a number", a.Status, a.Header.Get("Level"))
	return level
}

// TestAKilledCaddyLosesAtMostOneInterval kills Caddy while visitors pour as fast as
// they can. What had been poured by the time that two snapshots later were begun must
// be in the buckets of the next process.
func TestAKilledCaddyLosesAtMostOneInterval(t *testing.T) {
	t.Parallel()
	const connections = 4
	kills := 5
	if system.Long() {
		kills = 200
	}
	port := servertest.FreePort(t)
	file := filepath.Join(t.TempDir(), "buckets")
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	site := savedConfig(port, file)
	counter, bad := system.NewVisitor(t, "h1"), system.NewVisitor(t, "h1")
	var answered, saved, lost int64 // requests of counter, how many must not be lost, and how many were

	for kill := range kills + 1 {
		c := system.StartCaddy(t, site)
		log := c.Output.String()
		check.Assume(t, !strings.Contains(log, "the snapshot cannot be"), "start %d: got %s\nwant the snapshot restored", kill, log)
		level := int64(levelOf(t, counter, url))
		most := answered + int64(connections) + 1
		check.Assume(t, level >= saved && level <= most, "start %d: got level %d, want at least the %d that were saved, and at most %d", kill, level, saved, most)
		lost += answered - level
		answered = level
		if kill == 0 {
			bad.Get(t, url+"login")
		}
		check.Equal(t, bad.Get(t, url+"login").Status, 429, "start %d: for a client that is blocked", kill)
		if kill == kills {
			t.Logf("%d kills lost %d of %d requests", kills, lost, level+lost)
			return // and end Caddy as usual
		}

		var count atomic.Int64
		var stop atomic.Bool
		var wg sync.WaitGroup
		for range connections {
			wg.Go(func() {
				for !stop.Load() {
					if a, err := counter.Try("GET", url); err == nil && a.Status == 200 {
						count.Add(1)
					}
				}
			})
		}
		// A snapshot that is seen to be new may have been begun before the requests
		// that were answered until now. The one after it was not.
		first := newerThan(t, file, nil)
		saved = answered + count.Load()
		newerThan(t, file, newerThan(t, file, first))
		<-time.After(time.Duration(rand.Int64N(int64(250 * time.Millisecond)))) // some moment
		check.OK(t, c.Cmd.Process.Kill())
		<-c.Ended
		c.Shut = true
		stop.Store(true)
		wg.Wait()
		answered += count.Load()
	}
}

// TestKilledWhileItStops: a service manager kills Caddy when that waits too long for its last request.
func TestKilledWhileItStops(t *testing.T) {
	t.Parallel()
	up := system.StartUpstream(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	port, slow, file := servertest.FreePort(t), servertest.FreePort(t), filepath.Join(t.TempDir(), "buckets")
	site := savedConfig(port, file)
	site.Throttle = strings.Replace(site.Throttle, "100ms", "1h", 1)
	site.Sites += fmt.Sprintf("\nhttp://:%d {\nreverse_proxy %s\n}", slow, up.Address)
	site.Grace = "1h"
	v, url := system.NewVisitor(t, "h1"), fmt.Sprintf("http://127.0.0.1:%d/login", port)
	c := system.StartCaddy(t, site)
	c.Shut = true
	check.Equal(t, v.Get(t, url).Status, 200, "at first")
	waits, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", slow))
	check.OK(t, err)
	defer waits.Close()
	_, _ = fmt.Fprint(waits, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	system.Eventually(t, "the upstream to be asked", func() bool { return up.Seen() > 0 })
	check.OK(t, c.Cmd.Process.Signal(syscall.SIGTERM))
	t.Cleanup(func() { _ = c.Cmd.Process.Kill() })
	newerThan(t, file, nil)
	check.OK(t, c.Cmd.Process.Kill())
	<-c.Ended
	system.StartCaddy(t, site)
	check.Equal(t, v.Get(t, url).Status, 429, "after the start")
}

// newerThan waits until the file is another one, and returns it.
func newerThan(t *testing.T, file string, old fs.FileInfo) (info fs.FileInfo) {
	t.Helper()
	system.Eventually(t, "a new snapshot", func() bool {
		var err error
		info, err = os.Stat(file)
		return err == nil && (old == nil || !info.ModTime().Equal(old.ModTime()))
	})
	return info
}
