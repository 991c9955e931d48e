package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
)

// A site is a Caddyfile that runs in this process without sockets. Requests go
// straight to Caddy's server, from any address. Sites of one test share one
// memory. When the last one is gone, so are the buckets, so no test here is
// parallel.
type site struct {
	testing.TB
	ctx    caddy.Context
	server *caddyhttp.Server // the first, if there are several
	logs   *memoryLog
	stop   func()

	skipped time.Duration // of the days that evidence has judged
}

// run adapts a Caddyfile and runs it until the test ends. Caddy's data folder is a new
// one.
func run(t testing.TB, caddyfile string) *site {
	t.Helper()
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	s := &site{TB: t, logs: newMemoryLog(t)}
	var adapted caddy.Config
	if err := json.Unmarshal(adapt(t, caddyfile), &adapted); err != nil {
		t.Fatal(err)
	}
	cfg := &caddy.Config{Admin: adapted.Admin, Logging: s.logs.logging(), StorageRaw: adapted.StorageRaw}
	base, err := caddy.ProvisionContext(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.AppsRaw = adapted.AppsRaw
	s.ctx, s.stop = caddy.NewContext(base)
	s.stop = sync.OnceFunc(s.stop)
	t.Cleanup(s.stop)
	app, err := s.ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	s.server = app.(*caddyhttp.App).Servers["srv0"]
	return s
}

func adapt(t testing.TB, caddyfile string) []byte {
	t.Helper()
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	return adapted
}

// module returns the throttle app of the site.
func (s *site) module() *App {
	s.Helper()
	app, err := s.ctx.App("throttle")
	if err != nil {
		s.Fatal(err)
	}
	return app.(*App)
}

// app returns what runs of it.
func (s *site) app() *engine.Engine {
	s.Helper()
	return s.module().engine
}

// A client sends requests from one address.
type client struct {
	*site
	addr   string
	header http.Header
}

func (s *site) from(addr string) client { return client{site: s, addr: addr, header: http.Header{}} }

// with returns a client that sends one more header.
func (c client) with(name, value string) client {
	c.header = c.header.Clone()
	c.header.Add(name, value)
	return c
}

// get sends a GET request. The path may have a host before it.
func (c client) get(target string) *httptest.ResponseRecorder { return c.send(http.MethodGet, target) }

func (c client) send(method, target string) *httptest.ResponseRecorder {
	c.Helper()
	if strings.HasPrefix(target, "/") {
		target = "http://example.com" + target
	}
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = c.addr
	r.Header = c.header.Clone()
	return c.do(r)
}

func (s *site) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return w
}

// passes checks that the next n requests pass and the one after is refused.
func (c client) passes(n int, target string) {
	c.Helper()
	for i := range n {
		if w := c.get(target); w.Code != http.StatusOK {
			c.Fatalf("request %d of %d to %s: got %v, want it to pass", i+1, n, target, w.Code)
		}
	}
	if w := c.get(target); w.Code != http.StatusTooManyRequests {
		c.Fatalf("request %d to %s: got %v, want it refused", n+1, target, w.Code)
	}
}

// A memoryLog holds the log of a site.
type memoryLog struct {
	Name string `json:"name"`

	mu   sync.Mutex
	text bytes.Buffer
}

func init() { caddy.RegisterModule(new(memoryLog)) }

var memoryLogs sync.Map // by name

func newMemoryLog(t testing.TB) *memoryLog {
	log := new(memoryLog)
	log.Name = fmt.Sprintf("%s %p", t.Name(), log)
	memoryLogs.Store(log.Name, log)
	t.Cleanup(func() { memoryLogs.Delete(log.Name) })
	return log
}

func (*memoryLog) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "caddy.logging.writers.test_memory",
		New: func() caddy.Module { return new(memoryLog) },
	}
}

func (l *memoryLog) String() string { return l.Name }

func (l *memoryLog) WriterKey() string { return l.Name }

func (l *memoryLog) Close() error { return nil }

func (l *memoryLog) OpenWriter() (io.WriteCloser, error) {
	log, _ := memoryLogs.Load(l.Name)
	return log.(*memoryLog), nil
}

func (l *memoryLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *memoryLog) logging() *caddy.Logging {
	log := new(caddy.CustomLog)
	log.Level = "INFO"
	log.WriterRaw = caddyconfig.JSONModuleObject(l, "output", "test_memory", nil)
	log.EncoderRaw = json.RawMessage(`{"format":"json"}`)
	return &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": log}}
}

// lines returns the log lines whose message contains a text.
func (l *memoryLog) lines(t testing.TB, message string) (found []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if text, _ := fields["msg"].(string); strings.Contains(text, message) {
			found = append(found, fields)
		}
	}
	return found
}
