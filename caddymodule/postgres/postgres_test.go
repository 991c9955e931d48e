package postgres

import (
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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
	err := golden.Validate(t, config(store))
	check.That(t, err == nil, "got %v, want no error", err)
}
