package caddymodule_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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
	in_flight slots 9
	respond %q
}`

func TestBucketsSurviveReloadsAndSoDoCounts(t *testing.T) {
	addr := servertest.FreeAddress(t)
	servertest.MustLoad(t, fmt.Sprintf(reloaded, 1000, addr, 5, "one"))
	wantStatuses(t, servertest.Active(t).From(servertest.Someone), "/", passed, passed, passed)
	check.OK(t, servertest.Load(t, fmt.Sprintf(reloaded, 1000, addr, 5, "two")))
	wantStatuses(t, servertest.Active(t).From(servertest.Someone), "/", passed, passed, refused, refused)
	// A changed limit keeps the level.
	check.OK(t, servertest.Load(t, fmt.Sprintf(reloaded, 1000, addr, 7, "three")))
	wantStatuses(t, servertest.Active(t).From(servertest.Someone), "/", passed, passed, refused)
	counts := servertest.Active(t).Counts(t)["site"]
	check.That(t, counts["admitted"] == 7 && counts["refused capacity"] == 3, "got %v, want 7 admitted and 3 refused", counts)
	check.Equal(t, servertest.Active(t).Counts(t)["slots"]["admitted"], 7, "that took a slot")
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
			check.Assume(t, servertest.Load(t, caddyfile) != nil, "%s: got no error, want one", name)
		}
		for i := range 50 {
			servertest.Active(t).From(fmt.Sprintf("198.51.100.%d:1", i)).Get("/")
		}
		check.Equal(t, servertest.TheMemory(t).Evictions(), 0, "%s: evictions", name)
		got, _ := stores.Process.References(stores.MemoryKey)
		check.That(t, got == kept, "%s: got %v references to the memory, want %v", name, got, kept)
	}
	wantStatuses(t, servertest.Active(t).From(servertest.Someone), "/", passed, refused)
	counts := servertest.Active(t).Counts(t)["site"]
	check.That(t, counts["admitted"] == 5+50+2*50 && counts["refused capacity"] == 1, "got %v, want 155 admitted and 1 refused", counts)
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
	check.OK(t, caddy.Stop())
	check.OK(t, servertest.Load(t, caddyfile))
}

func wantStatuses(t *testing.T, c servertest.Client, path string, want ...int) {
	t.Helper()
	for i, want := range want {
		check.Equal(t, c.Get(path).Code, want, "request %d of %s to %s", i+1, c.Addr, path)
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

func TestLevelsUnderLimitsChangedAtRunTimeSurviveARestart(t *testing.T) {
	caddyfile := savedSite(servertest.FreeAddress(t), filepath.Join(t.TempDir(), "buckets"), "zone pages {\nlimit 1 1/h\noverride 192.0.2.9 2 2/h\n}")
	servertest.MustLoad(t, caddyfile)
	const special, one, other = "192.0.2.9:1", "192.0.2.1:1", "192.0.2.2:1"
	for _, limit := range []string{`"limit":"x3"`, `"key":"192.0.2.1","limit":"7 1/d"`} {
		servertest.Active(t).Changes("/throttle/limit", `{"zone":"pages","for":"1h",`+limit+`}`)
	}
	fill := map[string]int{special: 6, one: 7, other: 3}
	for client, n := range fill {
		servertest.Active(t).From(client).Passes(n, "/")
	}
	restart(t, caddyfile)
	for client := range fill {
		wantStatuses(t, servertest.Active(t).From(client), "/", refused)
	}
}

func TestWithSnapshotOffARestartForgets(t *testing.T) {
	data := t.TempDir()
	caddyfile := savedSite(servertest.FreeAddress(t), "off", "zone pages {\nlimit 1 1/h\n}")
	servertest.MustLoad(t, caddyfile)
	t.Setenv("XDG_DATA_HOME", data)
	wantStatuses(t, servertest.Active(t).From("192.0.2.1:1"), "/", passed, refused)
	restart(t, caddyfile)
	wantStatuses(t, servertest.Active(t).From("192.0.2.1:1"), "/", passed, refused)
	_, err := os.Stat(filepath.Join(data, "throttle"))
	check.That(t, errors.Is(err, fs.ErrNotExist), "the folder of snapshots: got error %v, want that there is none", err)
}

func TestAConfigThatDoesNotStartTouchesNoSnapshot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "buckets")
	s := servertest.Run(t, savedSite(":80", file, "zone pages {\nlimit 1 1/h\n}"))
	wantStatuses(t, s.From("192.0.2.1:1"), "/", passed, refused)
	s.Stop()
	_, err := os.Stat(filepath.Dir(file))
	check.That(t, errors.Is(err, fs.ErrNotExist), "its folder: got error %v, want that there is none", err)
}
