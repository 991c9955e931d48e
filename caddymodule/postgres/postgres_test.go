package postgres

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func config(store string) []byte {
	return []byte(`{"apps":{"throttle":{"store":` + store + `}}}`)
}

func TestJSONThatCannotWorkIsRefused(t *testing.T) {
	for store, want := range map[string]string{
		`{"module":"postgres"}`: `invalid URL: want postgres://`,
		`{"module":"postgres","url":"postgres://app@127.0.0.1:1/x","schema":"y"}`:    `unknown field "schema"`,
		`{"module":"postgres","url":"postgres://app@127.0.0.1:1/x","logged":"yes"}`:  `logged`,
		`{"module":"postgres","url":"postgres://app@127.0.0.1:1/x","table":"a.b.c"}`: `invalid table`,
		`{"module":"postgres","url":"postgres://app:hunter2/@127.0.0.1:1/x"}`:        `percent-encoded`,
	} {
		err := golden.Validate(t, config(store))
		check.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "hunter2"), "%s: got %v, want an error with %q and no password", store, err, want)
	}
}

func TestJSONWithEveryOptionIsValid(t *testing.T) {
	const store = `{"module":"postgres","url":"postgres://app@127.0.0.1:1/x","username":"a","password":"b","prefix":"c","table":"d.e","logged":true}`
	check.NoError(t, golden.Validate(t, config(store)))
}

func TestCaddyfilesAdaptAsTheGoldenFilesSay(t *testing.T) { golden.Run(t) }

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
