// Package servertest runs sites in the process of a test: Caddyfiles whose requests come without
// sockets, in virtual time if a test wants that, over stores that fail and are slow when they
// are told to. It is for tests alone. Begin with [Run], and with [NewFuncSite] for a handler
// function behind throttle.
package servertest

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
)

// A Site is a Caddyfile that runs in this process without sockets. Requests go
// straight to Caddy's server, from any address. Sites of one test share one
// memory. When the last one is gone, so are the buckets, so no test here is
// parallel.
type Site struct {
	testing.TB
	Ctx    caddy.Context
	Server *caddyhttp.Server // the first, if there are several
	Logs   *MemoryLog
	Stop   func()
}

// Run adapts a Caddyfile and runs it until the test ends. Caddy's data folder is a new one, and its
// storage a MemoryStorage unless the Caddyfile names one.
func Run(t testing.TB, caddyfile string) *Site {
	t.Helper()
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	s := &Site{TB: t, Logs: NewMemoryLog(t)}
	var adapted caddy.Config
	if err := json.Unmarshal(Adapt(t, caddyfile), &adapted); err != nil {
		t.Fatal(err)
	}
	if adapted.StorageRaw == nil {
		adapted.StorageRaw = json.RawMessage(`{"module":"memory_test"}`)
	}
	cfg := &caddy.Config{Admin: adapted.Admin, Logging: s.Logs.Logging(), StorageRaw: adapted.StorageRaw}
	base, err := caddy.ProvisionContext(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.AppsRaw = adapted.AppsRaw
	s.Ctx, s.Stop = caddy.NewContext(base)
	s.Stop = sync.OnceFunc(s.Stop)
	t.Cleanup(s.Stop)
	app, err := s.Ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	s.Server = app.(*caddyhttp.App).Servers["srv0"]
	return s
}

// RunZone runs a site with one zone of these options, and with directives beside throttle.
func RunZone(t testing.TB, zone, options, directives string) *Site {
	t.Helper()
	return Run(t, "http:// {\nthrottle {\nzone "+zone+" {\n"+options+"\n}\n}\n"+directives+"\n}")
}

func Adapt(t testing.TB, caddyfile string) []byte {
	t.Helper()
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	return adapted
}

// Module returns the throttle app of the site.
func (s *Site) Module() *caddymodule.App {
	s.Helper()
	app, err := s.Ctx.App("throttle")
	if err != nil {
		s.Fatal(err)
	}
	return app.(*caddymodule.App)
}

// Engine returns what runs of it.
func (s *Site) Engine() *engine.Engine {
	s.Helper()
	return s.Module().Engine()
}
