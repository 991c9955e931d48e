package golden

import (
	"encoding/json"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// Load makes a config of JSON the one of this process, as a reload does. Its errors
// go to a log file if the name of one is given. The test ends it.
func Load(t testing.TB, config []byte, log string) error {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(config, &fields); err != nil {
		t.Fatal(err)
	}
	writer := map[string]any{"output": "discard"}
	if log != "" {
		writer = map[string]any{"output": "file", "filename": log}
	}
	fields["admin"] = map[string]any{"disabled": true, "config": map[string]any{"persist": false}}
	fields["logging"] = map[string]any{"logs": map[string]any{"default": map[string]any{"level": "WARN", "writer": writer}}}
	raw, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	return caddy.Load(raw, true)
}

// ConnectsOnlyWhenItStarts checks that nothing connects to an address while a config
// is validated or provisioned, and that something does when it starts. configFor
// returns the config with a store at an address.
func ConnectsOnlyWhenItStarts(t *testing.T, configFor func(addr string) []byte) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	var connections atomic.Int32
	came := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			came <- struct{}{}
			_ = conn.Close()
		}
	}()
	config := configFor(listener.Addr().String())
	for range 3 {
		if err := Validate(t, config); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(300 * time.Millisecond) // for what connects beside it
	if got := connections.Load(); got != 0 {
		t.Errorf("while a config is validated: got %d connections, want none", got)
	}
	if err := Load(t, config, ""); err != nil {
		t.Fatal(err)
	}
	select {
	case <-came:
	case <-time.After(time.Minute):
		t.Error("a config that has started: got no connection, want one")
	}
}
