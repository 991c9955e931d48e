package servertest

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

// Provision provisions a JSON config as a reload does, does not start it, and
// releases it.
func Provision(t *testing.T, apps map[string]string) error {
	t.Helper()
	cfg := &caddy.Config{Logging: NewMemoryLog(t).Logging(), AppsRaw: make(caddy.ModuleMap)}
	for name, app := range apps {
		cfg.AppsRaw[name] = json.RawMessage(app)
	}
	return caddy.Validate(cfg)
}

// WithHandlers returns an http app of one route for each throttle handler.
func WithHandlers(handlers ...string) string {
	var routes []string
	for _, handler := range handlers {
		routes = append(routes, `{"handle":[`+handler+`]}`)
	}
	return `{"servers":{"s":{"listen":[":8080"],"routes":[` + strings.Join(routes, ",") + `]}}}`
}

// Load loads a Caddyfile into this process, as a reload or a restart after [MustLoad] does.
func Load(t *testing.T, caddyfile string) error {
	t.Helper()
	var config map[string]any
	if err := json.Unmarshal(Adapt(t, caddyfile), &config); err != nil {
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

// MustLoad loads a Caddyfile, and stops Caddy when the test ends. Caddy's data folder is a
// new one.
func MustLoad(t *testing.T, caddyfile string) {
	t.Helper()
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	if err := Load(t, caddyfile); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// FreeAddress returns an address that nobody listens on, without a host.
func FreeAddress(t *testing.T) string {
	t.Helper()
	listener := Listen(t, ":0")
	defer listener.Close()
	return fmt.Sprint(":", listener.Addr().(*net.TCPAddr).Port)
}

// Listen listens until the caller closes it.
func Listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// Active is the site that Caddy serves now.
func Active(t *testing.T) *Site {
	t.Helper()
	s := &Site{TB: t, Ctx: caddy.ActiveContext()}
	app, err := s.Ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	s.Server = app.(*caddyhttp.App).Servers["srv0"]
	return s
}

// Status requests a page and returns the status.
func Status(t *testing.T) int {
	t.Helper()
	return Active(t).From(Someone).Get("/").Code
}

// TheMemory returns the memory of this process.
func TheMemory(t *testing.T) *stores.Memory {
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

// Conns is a listener of connections that a test makes.
type Conns chan net.Conn

func (c Conns) Accept() (net.Conn, error) {
	if conn, open := <-c; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (c Conns) Close() error {
	close(c)
	return nil
}

func (c Conns) Addr() net.Addr { return &net.TCPAddr{} }

// StartZones lets a config count as started.
func StartZones(t testing.TB, e *engine.Engine) {
	t.Helper()
	e.Control.Start(e)
	t.Cleanup(func() { e.Control.Stop(e) })
}

// Start starts the app of a site, as Caddy does when it starts a config.
func Start(t testing.TB, s *Site) *Site {
	t.Helper()
	if err := s.Module().Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Module().Stop() })
	return s
}
