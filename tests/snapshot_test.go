package tests

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// savedConfig has a bucket that hardly leaks in a test, and a zone that blocks.
func savedConfig(port int, file string, interval time.Duration) config {
	return config{
		throttle: fmt.Sprintf("store memory {\nsnapshot %s\nsnapshot_interval %v\n}", file, interval),
		sites: fmt.Sprintf(`
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
func levelOf(t *testing.T, v *visitor, url string) float64 {
	t.Helper()
	a := v.get(t, url)
	var level float64
	if _, err := fmt.Sscan(a.header.Get("Level"), &level); err != nil || a.status != 200 {
		t.Fatalf("got status %d and level %q, want 200 and a number", a.status, a.header.Get("Level"))
	}
	return level
}

// TestAKilledCaddyLosesAtMostOneInterval kills Caddy while visitors pour as fast as
// they can. What had been poured by the time that two snapshots later were begun must
// be in the buckets of the next process.
func TestAKilledCaddyLosesAtMostOneInterval(t *testing.T) {
	t.Parallel()
	const connections = 4
	kills := 10
	if long() {
		kills = 200
	}
	port := freePort(t)
	file := filepath.Join(t.TempDir(), "buckets")
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	site := savedConfig(port, file, 100*time.Millisecond)
	counter, bad := newVisitor(t, "h1"), newVisitor(t, "h1")
	var answered, saved, lost int64 // requests of counter, how many must not be lost, and how many were

	for kill := range kills + 1 {
		c := startCaddy(t, site)
		if log := c.output.String(); strings.Contains(log, "the snapshot cannot be") || strings.Contains(log, "no snapshot of the buckets") {
			t.Fatalf("start %d: got %s\nwant the snapshot restored", kill, log)
		}
		level := int64(levelOf(t, counter, url))
		if most := answered + int64(connections) + 1; level < saved || level > most {
			t.Fatalf("start %d: got level %d, want at least the %d that were saved, and at most %d", kill, level, saved, most)
		}
		lost += answered - level
		answered = level
		if kill == 0 {
			bad.get(t, url+"login")
		}
		if a := bad.get(t, url+"login"); a.status != 429 {
			t.Errorf("start %d: got %d for a client that is blocked, want 429", kill, a.status)
		}
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
					if a, err := counter.try("GET", url); err == nil && a.status == 200 {
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
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-c.ended
		c.shut = true
		stop.Store(true)
		wg.Wait()
		answered += count.Load()
	}
}

// newerThan waits until the file is another one, and returns it.
func newerThan(t *testing.T, file string, old fs.FileInfo) (info fs.FileInfo) {
	t.Helper()
	eventually(t, "a new snapshot", func() bool {
		var err error
		info, err = os.Stat(file)
		return err == nil && (old == nil || !info.ModTime().Equal(old.ModTime()))
	})
	return info
}

func TestASnapshotInCaddysDataFolderOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	port, data := freePort(t), t.TempDir()
	site := savedConfig(port, "off", time.Second)
	site.throttle = ""
	site.env = "XDG_DATA_HOME=" + data
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	v := newVisitor(t, "h1")
	file := filepath.Join(data, "caddy", "throttle", "buckets.snapshot")

	if out, err := caddyCommand(t, "validate", "--config", writeFile(t, "Caddyfile", site.caddyfile("127.0.0.1:1")), "--adapter", "caddyfile").CombinedOutput(); err != nil {
		t.Fatalf("validating: %v\n%s", err, out)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("after caddy validate: got a snapshot, want none")
	}
	for start := range 3 {
		c := startCaddy(t, site)
		if start == 0 {
			v.get(t, url+"login")
		}
		if a := v.get(t, url+"login"); a.status != 429 {
			t.Errorf("start %d: got %d, want 429 of a block", start, a.status)
		}
		// A second Caddy says that it has no snapshot, and serves.
		if start == 1 {
			another := savedConfig(freePort(t), "off", time.Second)
			another.throttle, another.env = "", site.env
			second := startCaddy(t, another)
			const warning = "no snapshot of the buckets is kept"
			eventually(t, "a warning of the second Caddy", func() bool { return len(second.logLines(warning)) > 0 })
			if got := second.logLines(warning); len(got) != 1 || !strings.Contains(got[0], "another process uses the file") {
				t.Errorf("a second Caddy: got %q, want one line about the other process", got)
			}
			if err := second.shutDown(); err != nil {
				t.Error(err)
			}
		}
		if err := c.shutDown(); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("start %d: the file has mode %v, with error %v, want 0600", start, info.Mode(), err)
		}
	}
}
