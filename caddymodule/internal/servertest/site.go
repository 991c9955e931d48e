// Package servertest runs sites in the process of a test: Caddyfiles whose requests come without
// sockets, in virtual time if a test wants that, over stores that fail and are slow when they
// are told to. It is for tests alone. Begin with [Run], and with [NewFuncSite] for a handler
// function behind throttle.
package servertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
)

// StartZones lets a config count as started.
func StartZones(t testing.TB, e *engine.Engine) {
	t.Helper()
	e.Control.Start(e)
	t.Cleanup(func() { e.Control.Stop(e) })
}

const Office, Visitor = "203.0.113.7", "198.51.100.1"

// Network returns a client of the n-th network.
func (s *Site) Network(n int) Client { return s.From(fmt.Sprintf("198.%d.%d.7:1000", 18+n/250, n%250)) }

// Both is two zones that are charged together at /both, and each alone.
const Both = `{
	throttle {
		zone small {
			limit 1 1/h
		}
		zone large {
			limit 5 1/h
		}
	}
}
http:// {
	throttle /small small
	throttle /large large
	throttle /both {
		zone large
		zone small
	}
	respond {http.throttle.zone}
}`

// WithApp starts the app of a site, as Caddy does when it starts a config.
func WithApp(t testing.TB, s *Site) *Site {
	t.Helper()
	if err := s.Module().Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Module().Stop() })
	return s
}

// Request returns a GET request with the headers given by name and value.
func Request(addr, target string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.RemoteAddr = addr
	for i := 0; i < len(headers); i += 2 {
		r.Header[headers[i]] = append(r.Header[headers[i]], headers[i+1])
	}
	return r
}

const (
	Someone = "203.0.113.7:4711"
	Site0   = "http://Example.COM:8080"
)

// Statuses asks n times.
func (c Client) Statuses(n int, target string) map[int]int {
	c.Helper()
	got := make(map[int]int)
	for range n {
		got[c.Get(target).Code]++
	}
	return got
}

func (c Client) WantStatuses(target string, want map[int]int) {
	c.Helper()
	n := 0
	for _, times := range want {
		n += times
	}
	if got := c.Statuses(n, target); !maps.Equal(got, want) {
		c.Errorf("%d requests: got %v, want %v", n, got, want)
	}
}

func WriteFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Soon waits until something is so. It waits for long, because the machine may be
// busy.
func Soon(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("got no end of waiting for %s:\n%s", what, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

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

	Later time.Duration // of the days that evidence has judged
}

// Run adapts a Caddyfile and runs it until the test ends. Caddy's data folder is a new
// one.
func Run(t testing.TB, caddyfile string) *Site {
	t.Helper()
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	s := &Site{TB: t, Logs: NewMemoryLog(t)}
	var adapted caddy.Config
	if err := json.Unmarshal(Adapt(t, caddyfile), &adapted); err != nil {
		t.Fatal(err)
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

// A Client sends requests from one address.
type Client struct {
	*Site
	Addr   string
	Header http.Header
}

func (s *Site) From(addr string) Client { return Client{Site: s, Addr: addr, Header: http.Header{}} }

// With returns a client that sends one more header.
func (c Client) With(name, value string) Client {
	c.Header = c.Header.Clone()
	c.Header.Add(name, value)
	return c
}

// Get sends a GET request. The path may have a host before it.
func (c Client) Get(target string) *httptest.ResponseRecorder { return c.Send(http.MethodGet, target) }

func (c Client) Send(method, target string) *httptest.ResponseRecorder {
	c.Helper()
	if strings.HasPrefix(target, "/") {
		target = "http://example.com" + target
	}
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = c.Addr
	r.Header = c.Header.Clone()
	return c.Do(r)
}

func (s *Site) Do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.Server.ServeHTTP(w, r)
	return w
}

// Passes checks that the next n requests pass and the one after is refused.
func (c Client) Passes(n int, target string) {
	c.Helper()
	for i := range n {
		if w := c.Get(target); w.Code != http.StatusOK {
			c.Fatalf("request %d of %d to %s: got %v, want it to pass", i+1, n, target, w.Code)
		}
	}
	if w := c.Get(target); w.Code != http.StatusTooManyRequests {
		c.Fatalf("request %d to %s: got %v, want it refused", n+1, target, w.Code)
	}
}

// A MemoryLog holds the log of a site.
type MemoryLog struct {
	Name string `json:"name"`

	mu   sync.Mutex
	text bytes.Buffer
}

func init() { caddy.RegisterModule(new(MemoryLog)) }

var memoryLogs sync.Map

func NewMemoryLog(t testing.TB) *MemoryLog {
	log := new(MemoryLog)
	log.Name = fmt.Sprintf("%s %p", t.Name(), log)
	memoryLogs.Store(log.Name, log)
	t.Cleanup(func() { memoryLogs.Delete(log.Name) })
	return log
}

func (*MemoryLog) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "caddy.logging.writers.test_memory",
		New: func() caddy.Module { return new(MemoryLog) },
	}
}

func (l *MemoryLog) String() string { return l.Name }

func (l *MemoryLog) WriterKey() string { return l.Name }

func (l *MemoryLog) Close() error { return nil }

func (l *MemoryLog) OpenWriter() (io.WriteCloser, error) {
	log, _ := memoryLogs.Load(l.Name)
	return log.(*MemoryLog), nil
}

func (l *MemoryLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *MemoryLog) Logging() *caddy.Logging {
	log := new(caddy.CustomLog)
	log.Level = "INFO"
	log.WriterRaw = caddyconfig.JSONModuleObject(l, "output", "test_memory", nil)
	log.EncoderRaw = json.RawMessage(`{"format":"json"}`)
	return &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": log}}
}

// Lines returns the log lines whose message contains a text.
func (l *MemoryLog) Lines(t testing.TB, message string) (found []map[string]any) {
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
