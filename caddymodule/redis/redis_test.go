package redis

import (
	"strings"
	"testing"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/golden"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func config(store string) []byte {
	return []byte(`{"apps":{"throttle":{"store":` + store + `}}}`)
}

func TestJSONThatCannotWorkIsRefused(t *testing.T) {
	for store, want := range map[string]string{
		`{"module":"redis"}`: `invalid redis URL: want redis://`,
		`{"module":"redis","url":"redis://127.0.0.1:1","user":"app"}`:     `unknown field "user"`,
		`{"module":"redis","url":["redis://127.0.0.1:1"]}`:                `url`,
		`{"module":"redis","url":"redis://127.0.0.1:1","username":"app"}`: `without a password`,
		`{"module":"redis","url":"redis://:hunter2@127.0.0.1:1:2"}`:       `invalid redis URL`,
	} {
		err := golden.Validate(t, config(store))
		check.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "hunter2"), "%s: got %v, want an error with %q and no password", store, err, want)
	}
}

func TestJSONWithEveryOptionIsValid(t *testing.T) {
	const store = `{"module":"redis","url":"rediss+sentinel://127.0.0.1:1/m","username":"a","password":"b","sentinel_username":"c","sentinel_password":"d","prefix":"e","tls_ca":"testdata/ca.pem"}`
	err := golden.Validate(t, config(store))
	check.That(t, err == nil, "got %v, want no error", err)
}

func TestCaddyfilesAdaptAsTheGoldenFilesSay(t *testing.T) { golden.Run(t) }
