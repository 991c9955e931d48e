// Package redis lets throttle keep its buckets in Redis or Valkey.
package redis

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
)

func init() {
	caddy.RegisterModule(Redis{})
}

// Redis keeps the buckets in Redis or Valkey, so that several Caddys share one
// limit. Placeholders such as `{env.REDIS_PASSWORD}` or `{file./run/secrets/redis}`
// are filled in when the config is loaded.
type Redis struct {
	// Where it is: `redis://host:6379/0`, `rediss://` for TLS,
	// `unix:///run/redis.sock`, `redis+sentinel://host:26379,host:26379/mymaster`
	// or `redis+cluster://host:6379,host:6379`. Required.
	URL string `json:"url,omitempty"`

	// Who to log in as. Default: the URL's, if it names somebody.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`

	// Who to log in to the sentinels as. Default: nobody.
	SentinelUsername string `json:"sentinel_username,omitempty"`
	SentinelPassword string `json:"sentinel_password,omitempty"`

	// What stands before the name of each key. Sites with different prefixes
	// share no buckets. Default: `throttle:`.
	Prefix string `json:"prefix,omitempty"`

	// A file with the certificates, in PEM, that the server's is signed with.
	// Default: those the system trusts.
	TLSCA string `json:"tls_ca,omitempty"`

	remote     *caddymodule.Remote
	connection caddymodule.Connection
}

// CaddyModule returns the Caddy module information.
func (Redis) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "throttle.stores.redis",
		New: func() caddy.Module { return new(Redis) },
	}
}

// Provision finds the connection that the last config has used, or begins to
// connect. It waits for nothing.
func (r *Redis) Provision(caddy.Context) error {
	filled, err := caddymodule.FillIn(r.URL, r.Username, r.Password, r.SentinelUsername, r.SentinelPassword, r.Prefix, r.TLSCA)
	if err != nil {
		return err
	}
	options := redisstore.Options{
		URL: filled[0], Username: filled[1], Password: filled[2],
		SentinelUsername: filled[3], SentinelPassword: filled[4], Prefix: filled[5],
	}
	if filled[6] != "" {
		if options.TLS, err = trust(filled[6]); err != nil {
			return err
		}
	}
	r.remote, r.connection, err = caddymodule.Connect("redis", filled, func() (caddymodule.RemoteStore, error) {
		return redisstore.New(options)
	})
	return err
}

func trust(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading tls_ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading tls_ca: no certificate in %s: want PEM", file)
	}
	return &tls.Config{RootCAs: pool}, nil
}

// Store returns the store.
func (r *Redis) Store() leakybucket.Store { return r.remote }

// Cleanup lets go of the connection.
func (r *Redis) Cleanup() error { return r.connection.Release() }

// UnmarshalCaddyfile sets up the store from Caddyfile tokens. Syntax:
//
//	redis <url> {
//	    username <name>
//	    password <password>
//	    sentinel_username <name>
//	    sentinel_password <password>
//	    prefix <prefix>
//	    tls_ca <file>
//	}
func (r *Redis) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return caddymodule.UnmarshalStore(d, &r.URL, map[string]*string{
		"username": &r.Username, "password": &r.Password,
		"sentinel_username": &r.SentinelUsername, "sentinel_password": &r.SentinelPassword,
		"prefix": &r.Prefix, "tls_ca": &r.TLSCA,
	}, nil)
}

// Interface guards
var (
	_ caddy.Provisioner       = (*Redis)(nil)
	_ caddy.CleanerUpper      = (*Redis)(nil)
	_ caddyfile.Unmarshaler   = (*Redis)(nil)
	_ caddymodule.StoreModule = (*Redis)(nil)
)
