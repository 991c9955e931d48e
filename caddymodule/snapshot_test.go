package caddymodule_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
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
	servertest.MustLoad(t, caddyfile)
}

func wantStatuses(t *testing.T, c servertest.Client, path string, want ...int) {
	t.Helper()
	for i, want := range want {
		if got := c.Get(path).Code; got != want {
			t.Errorf("request %d of %s to %s: got %d, want %d", i+1, c.Addr, path, got, want)
		}
	}
}

const passed, refused = http.StatusOK, http.StatusTooManyRequests

func TestLevelsAndBlocksSurviveARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	caddyfile := savedSite(servertest.FreeAddress(t), file, `
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
	servertest.MustLoad(t, caddyfile)
	const one, special, bad = "192.0.2.1:1", "192.0.2.9:1", "192.0.2.66:1"
	wantStatuses(t, servertest.Active(t).From(one), "/page", passed, passed)
	wantStatuses(t, servertest.Active(t).From(special), "/page", passed, passed, passed, passed)
	wantStatuses(t, servertest.Active(t).From(one), "/login", passed, refused)
	wantStatuses(t, servertest.Active(t).From(bad), "/everywhere", passed, refused)

	restart(t, caddyfile)
	wantStatuses(t, servertest.Active(t).From(bad), "/other", refused)
	wantStatuses(t, servertest.Active(t).From(one), "/other", passed)
	wantStatuses(t, servertest.Active(t).From(one), "/page", passed, refused)
	wantStatuses(t, servertest.Active(t).From(special), "/page", passed, refused)
	wantStatuses(t, servertest.Active(t).From(one), "/login", refused)

	// A zone that has gone is forgotten at the next snapshot, even if it comes back.
	restart(t, savedSite(servertest.FreeAddress(t), file, "zone another {\nlimit 1 1/h\n}"))
	wantStatuses(t, servertest.Active(t).From(one), "/login", passed)
	restart(t, caddyfile)
	wantStatuses(t, servertest.Active(t).From(one), "/login", passed, refused)
	wantStatuses(t, servertest.Active(t).From(bad), "/other", refused)
}

func TestWithSnapshotOffARestartForgets(t *testing.T) {
	data := t.TempDir()
	caddyfile := savedSite(servertest.FreeAddress(t), "off", "zone pages {\nlimit 1 1/h\n}")
	servertest.MustLoad(t, caddyfile)
	t.Setenv("XDG_DATA_HOME", data)
	wantStatuses(t, servertest.Active(t).From("192.0.2.1:1"), "/", passed, refused)
	restart(t, caddyfile)
	wantStatuses(t, servertest.Active(t).From("192.0.2.1:1"), "/", passed, refused)
	if _, err := os.Stat(filepath.Join(data, "throttle")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of snapshots: got error %v, want that there is none", err)
	}
}

func TestAConfigThatDoesNotStartTouchesNoSnapshot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "buckets")
	s := servertest.Run(t, savedSite(":80", file, "zone pages {\nlimit 1 1/h\n}"))
	wantStatuses(t, s.From("192.0.2.1:1"), "/", passed, refused)
	s.Stop()
	if _, err := os.Stat(filepath.Dir(file)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder: got error %v, want that there is none", err)
	}
}

func TestAReloadTakesOverAChangedName(t *testing.T) {
	dir, addr := t.TempDir(), servertest.FreeAddress(t)
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	servertest.MustLoad(t, savedSite(addr, first, "zone pages {\nlimit 1 1/h\n}"))
	wantStatuses(t, servertest.Active(t).From("192.0.2.1:1"), "/", passed, refused)
	if err := servertest.Load(t, savedSite(addr, second, "zone pages {\nlimit 1 1/h\n}")); err != nil {
		t.Fatal(err)
	}
	wantStatuses(t, servertest.Active(t).From("192.0.2.1:1"), "/", refused)
	if f, err := snapshot.Open(first); err != nil {
		t.Errorf("opening the first file: got error %v, want it free", err)
	} else if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := snapshot.Open(second); !errors.Is(err, snapshot.ErrTaken) {
		t.Errorf("opening the second file: got error %v, want it taken", err)
	}
	restart(t, savedSite(addr, second, "zone pages {\nlimit 1 1/h\n}"))
	wantStatuses(t, servertest.Active(t).From("192.0.2.1:1"), "/", refused)
}
