package servertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

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
