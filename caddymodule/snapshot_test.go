package caddymodule

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
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
