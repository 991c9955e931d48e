package postgres

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
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
	servertest.Eventually(t, "a line about the store is in the log", func() error {
		if text, err := os.ReadFile(log); !strings.Contains(string(text), "looking after the store") {
			return fmt.Errorf("got the log %q, %v, want it", text, err)
		}
		return nil
	})
}
