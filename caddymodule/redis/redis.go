// Package redis is the store module of throttle that keeps buckets in Redis or
// Valkey.
package redis

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"regexp"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"

	_ "github.com/caddy-throttle/caddy-throttle/caddymodule" // a Caddy that is built with this store needs the rest, too
)

func init() {
	caddy.RegisterModule(Redis{})
}

// Redis keeps the buckets in Redis or Valkey, so that several Caddys share one
// limit. Placeholders in its options, such as `{env.REDIS_PASSWORD}` or
// `{file./run/secrets/redis}`, are filled in when the config is loaded.
type Redis struct {
	// The address of the server: `redis://host:6379/0`, `rediss://` for TLS,
	// `unix:///run/redis.sock`, `redis+sentinel://host:26379,host:26379/mymaster`
	// or `redis+cluster://host:6379,host:6379`. Required.
	URL string `json:"url,omitempty"`

	// The user to log in as. Default: the user in the URL, or Redis's default
	// user.
	Username string `json:"username,omitempty"`

	// The user's password. Default: the one in the URL, or none. Write it as
	// `{env.NAME}` or `{file./path}`, and Caddy's `/config` shows the placeholder.
	Password string `json:"password,omitempty"`

	// The user to log in to the sentinels as. Default: none.
	SentinelUsername string `json:"sentinel_username,omitempty"`

	// The password for the sentinels. Default: none. The one in the URL is for the
	// servers only.
	SentinelPassword string `json:"sentinel_password,omitempty"`

	// The text before the name of each key. Default: `throttle:`. Sites with
	// different prefixes share no buckets. In a Redis Cluster it must have a `{tag}`,
	// so that one slot has all buckets. Default there: `{throttle}:`.
	Prefix string `json:"prefix,omitempty"`

	// A file with the certificates, in PEM, of the authorities that may have
	// signed the server's. Default: those that the system trusts.
	TLSCA string `json:"tls_ca,omitempty"`

	store *stores.SharedStore
}

// CaddyModule returns the Caddy module information.
func (Redis) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle.stores.redis", New: func() caddy.Module { return new(Redis) }}
}

// tag is the {tag} of a prefix, which is no placeholder: those have a dot.
var tag = regexp.MustCompile(`\{([^.{}\\]+)\}`)

// Provision joins the store of a config with the same options, or creates one. It
// connects to nothing; the store does when the config starts.
func (r *Redis) Provision(caddy.Context) error {
	prefix := tag.ReplaceAllString(r.Prefix, `\{$1\}`)
	filled, err := stores.FillIn(r.URL, r.Username, r.Password, r.SentinelUsername, r.SentinelPassword, prefix, r.TLSCA)
	if err != nil {
		return err
	}
	options := redisstore.Options{
		Username: filled[1], Password: filled[2],
		SentinelUsername: filled[3], SentinelPassword: filled[4], Prefix: filled[5],
	}
	if filled[6] != "" {
		// The content is an option, so that a replaced file gets a new connection.
		if options.TLS, filled[6], err = trust(filled[6]); err != nil {
			return err
		}
	}
	r.store, err = stores.ConnectStore("redis", filled, func(func(error)) (leakybucket.Store, error) {
		return redisstore.Open(filled[0], options)
	})
	return err
}

// trust returns a TLS config that trusts the certificates in a file, and the file's
// content.
func trust(file string) (config *tls.Config, content string, err error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, "", fmt.Errorf("reading tls_ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, "", fmt.Errorf("reading tls_ca: no certificate in %s: want PEM", file)
	}
	return &tls.Config{RootCAs: pool}, string(pem), nil
}

// SharedStore returns the store.
func (r *Redis) SharedStore() *stores.SharedStore { return r.store }

// Cleanup releases the store, which closes when no config uses it any more.
func (r *Redis) Cleanup() error { return r.store.Leave() }

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
	return option.UnmarshalStore(d, &r.URL, option.Fields{
		"username": &r.Username, "password": &r.Password, "sentinel_username": &r.SentinelUsername, "sentinel_password": &r.SentinelPassword,
		"prefix": &r.Prefix, "tls_ca": &r.TLSCA,
	})
}

// Interface guards
var (
	_ caddy.Provisioner     = (*Redis)(nil)
	_ caddy.CleanerUpper    = (*Redis)(nil)
	_ caddyfile.Unmarshaler = (*Redis)(nil)
)
