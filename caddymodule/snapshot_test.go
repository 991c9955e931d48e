package caddymodule

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// savedSite is a site with a snapshot, and with zones of its own and everywhere.
func savedSite(addr, file, zones string) string {
	return fmt.Sprintf(`{
	auto_https disable_redirects
	throttle {
		store memory {
			snapshot %s
		}
	}
}
http://%s {
	handle /everywhere {
		throttle {
			zone everywhere {
				limit 1 1/h
				block 1h everywhere
			}
		}
		respond ok
	}
	handle {
		throttle {
			%s
		}
		respond ok
	}
}`, file, addr, zones)
}

// restart stops Caddy and starts it with a Caddyfile. Stopping writes the snapshot.
func restart(t *testing.T, caddyfile string) {
	t.Helper()
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	mustLoad(t, caddyfile)
}

func wantStatuses(t *testing.T, c client, path string, want ...int) {
	t.Helper()
	for i, want := range want {
		if got := c.get(path).Code; got != want {
			t.Errorf("request %d of %s to %s: got %d, want %d", i+1, c.addr, path, got, want)
		}
	}
}

const passed, refused = http.StatusOK, http.StatusTooManyRequests

func TestLevelsAndBlocksSurviveARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	caddyfile := savedSite(freeAddress(t), file, `
			zone pages {
				match path /page
				limit 3 1/h
				override 192.0.2.9 5 2/h
			}
			zone login {
				match path /login
				limit 1 1/m
				block 1h
			}`)
	mustLoad(t, caddyfile)
	const one, special, bad = "192.0.2.1:1", "192.0.2.9:1", "192.0.2.66:1"
	wantStatuses(t, active(t).from(one), "/page", passed, passed)
	wantStatuses(t, active(t).from(special), "/page", passed, passed, passed, passed)
	wantStatuses(t, active(t).from(one), "/login", passed, refused)
	wantStatuses(t, active(t).from(bad), "/everywhere", passed, refused)

	restart(t, caddyfile)
	wantStatuses(t, active(t).from(bad), "/other", refused)
	wantStatuses(t, active(t).from(one), "/other", passed)
	wantStatuses(t, active(t).from(one), "/page", passed, refused)
	wantStatuses(t, active(t).from(special), "/page", passed, refused)
	wantStatuses(t, active(t).from(one), "/login", refused)

	// A zone that has gone is forgotten at the next snapshot, even if it comes back.
	restart(t, savedSite(freeAddress(t), file, "zone another {\nlimit 1 1/h\n}"))
	wantStatuses(t, active(t).from(one), "/login", passed)
	restart(t, caddyfile)
	wantStatuses(t, active(t).from(one), "/login", passed, refused)
	wantStatuses(t, active(t).from(bad), "/other", refused)
}

func TestWithSnapshotOffARestartForgets(t *testing.T) {
	data := t.TempDir()
	caddyfile := savedSite(freeAddress(t), "off", "zone pages {\nlimit 1 1/h\n}")
	mustLoad(t, caddyfile)
	t.Setenv("XDG_DATA_HOME", data)
	wantStatuses(t, active(t).from("192.0.2.1:1"), "/", passed, refused)
	restart(t, caddyfile)
	wantStatuses(t, active(t).from("192.0.2.1:1"), "/", passed, refused)
	if _, err := os.Stat(filepath.Join(data, "throttle")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of snapshots: got error %v, want that there is none", err)
	}
}

func TestAConfigThatDoesNotStartTouchesNoSnapshot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "buckets")
	s := run(t, savedSite(":80", file, "zone pages {\nlimit 1 1/h\n}"))
	wantStatuses(t, s.from("192.0.2.1:1"), "/", passed, refused)
	s.stop()
	if _, err := os.Stat(filepath.Dir(file)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder: got error %v, want that there is none", err)
	}
}

func TestAReloadTakesOverAChangedName(t *testing.T) {
	dir, addr := t.TempDir(), freeAddress(t)
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	mustLoad(t, savedSite(addr, first, "zone pages {\nlimit 1 1/h\n}"))
	wantStatuses(t, active(t).from("192.0.2.1:1"), "/", passed, refused)
	if err := load(t, savedSite(addr, second, "zone pages {\nlimit 1 1/h\n}")); err != nil {
		t.Fatal(err)
	}
	wantStatuses(t, active(t).from("192.0.2.1:1"), "/", refused)
	if f, err := snapshot.Open(first); err != nil {
		t.Errorf("opening the first file: got error %v, want it free", err)
	} else if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := snapshot.Open(second); !errors.Is(err, snapshot.ErrTaken) {
		t.Errorf("opening the second file: got error %v, want it taken", err)
	}
	restart(t, savedSite(addr, second, "zone pages {\nlimit 1 1/h\n}"))
	wantStatuses(t, active(t).from("192.0.2.1:1"), "/", refused)
}

// started returns the snapshots of a store that a config uses, and what they log.
func started(t *testing.T, file string) (*snapshots, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	s := newSnapshots(memstore.New(memstore.Options{MaxBuckets: 1000}))
	limits := func(c *leakybucket.Charge, _ leakybucket.State) bool {
		c.Limit = leakybucket.Limit{Capacity: 10, Leak: 1. / 3600}
		return true
	}
	s.use(&memoryUse{memoryOptions: memoryOptions{snapshot: file, every: time.Hour, logger: zap.New(core)}, limits: limits})
	t.Cleanup(s.end)
	return s, logs
}

// pour changes the store.
func pour(t *testing.T, s *snapshots, key string) {
	t.Helper()
	c := leakybucket.Charge{Zone: "z", Key: key, Limit: leakybucket.Limit{Capacity: 10, Leak: 1. / 3600}, Cost: 1}
	if err := s.store.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1)); err != nil {
		t.Fatal(err)
	}
}

func wantLogged(t *testing.T, logs *observer.ObservedLogs, want ...string) {
	t.Helper()
	var got []string
	for _, entry := range logs.TakeAll() {
		got = append(got, entry.Level.String()+": "+entry.Message)
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("got the log %q, want %q", got, want)
	}
}

func TestADamagedSnapshotIsSetAsideWithAWarning(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	if err := os.WriteFile(file, []byte("throttle snapshot\n but damaged, and so of no use"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, logs := started(t, file)
	wantLogged(t, logs, "warn: the snapshot cannot be used, so all buckets are empty")
	if _, err := os.Stat(file + ".bad"); err != nil {
		t.Errorf("the file under its new name: got error %v, want none", err)
	}
	pour(t, s, "a")
	s.end()
	s, logs = started(t, file)
	wantLogged(t, logs, "info: buckets were restored")
	if got := s.store.Buckets()["z"]; got != 1 {
		t.Errorf("got %d buckets, want the one that was saved", got)
	}
}

func TestASecondProcessGoesWithoutASnapshot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	first, logs := started(t, file)
	pour(t, first, "a")
	first.save()
	wantLogged(t, logs)
	second, logs := started(t, file)
	wantLogged(t, logs, "warn: no snapshot of the buckets is kept, so a restart empties them all")
	pour(t, second, "b")
	pour(t, second, "c")
	second.end()
	first.end()
	third, _ := started(t, file)
	if got := third.store.Buckets()["z"]; got != 1 {
		t.Errorf("got %d buckets, want the one of the first process", got)
	}
}

// A folder that is gone refuses writes to root, too, as a read-only disk does.
func TestASnapshotThatCannotBeWrittenIsWarnedOfOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	s, logs := started(t, filepath.Join(dir, "buckets"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		pour(t, s, "a")
		s.save()
	}
	wantLogged(t, logs, "warn: the snapshot cannot be written; this is tried again every snapshot_interval")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.save()
	wantLogged(t, logs, "info: the snapshot is written again")
}

func TestASnapshotIsWrittenOnlyIfABucketHasChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	s, _ := started(t, file)
	pour(t, s, "a")
	s.save()
	for _, changes := range []bool{false, true, false} {
		if changes {
			pour(t, s, "a")
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		s.save()
		if _, err := os.Stat(file); (err == nil) != changes {
			t.Errorf("after a change, %v: got error %v of the file", changes, err)
		}
		if !changes {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}
