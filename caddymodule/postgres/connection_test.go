package postgres

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
)

func TestNothingConnectsBeforeAConfigStarts(t *testing.T) {
	golden.ConnectsOnlyWhenItStarts(t, func(addr string) []byte {
		return config(`{"module":"postgres","url":"postgres://app@` + addr + `/x?sslmode=disable"}`)
	})
}

func TestWhatFailsWhileNoRequestWaitsIsLogged(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := golden.Load(t, config(`{"module":"postgres","url":"postgres://app@127.0.0.1:1/x?sslmode=disable"}`), log); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if text, _ := os.ReadFile(log); strings.Contains(string(text), "looking after the store") {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
	text, _ := os.ReadFile(log)
	t.Errorf("got the log %q, want a line about the store", text)
}
