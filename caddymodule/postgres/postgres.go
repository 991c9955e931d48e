// Package postgres is the store module of throttle that keeps buckets in
// PostgreSQL.
package postgres

import (
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/pgstore"

	_ "github.com/caddy-throttle/caddy-throttle/caddymodule" // a Caddy that is built with this store needs the rest, too
)

func init() {
	caddy.RegisterModule(Postgres{})
}

// Postgres keeps the buckets in a table of PostgreSQL 14 or newer, so that several
// Caddys share one limit. Placeholders in its options, such as `{env.PGPASSWORD}`
// or `{file./run/secrets/postgres}`, are filled in when the config is loaded.
type Postgres struct {
	// The address of the server and the database:
	// `postgres://user@host:5432/database?sslmode=verify-full`. Required.
	URL string `json:"url,omitempty"`

	// The user to log in as. Default: the user in the URL.
	Username string `json:"username,omitempty"`

	// The user's password. Default: the one in the URL. Write it as `{env.NAME}` or
	// `{file./path}`, and Caddy's `/config` shows the placeholder.
	Password string `json:"password,omitempty"`

	// The text before the name of each bucket. Default: none. Sites that share a
	// table need different prefixes, or they share buckets.
	Prefix string `json:"prefix,omitempty"`

	// The table, perhaps with a schema and a dot before it. Default:
	// `throttle_buckets`. It is created on first use.
	Table string `json:"table,omitempty"`

	// Keep the buckets when the server crashes. Default: a crash empties all
	// buckets. With it, the server writes each change to its log, which takes time.
	Logged bool `json:"logged,omitempty"`

	store *stores.SharedStore
}

// CaddyModule returns the Caddy module information.
func (Postgres) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle.stores.postgres", New: func() caddy.Module { return new(Postgres) }}
}

// Provision joins the store of a config with the same options, or creates one. It
// connects to nothing; the store does when the config starts.
func (p *Postgres) Provision(caddy.Context) error {
	filled, err := stores.FillIn(p.URL, p.Username, p.Password, p.Prefix, p.Table)
	if err != nil {
		return err
	}
	options := pgstore.Options{
		User: filled[1], Password: filled[2], Prefix: filled[3], Table: filled[4], Logged: p.Logged,
	}
	filled = append(filled, strconv.FormatBool(p.Logged))
	p.store, err = stores.ConnectStore("postgres", filled, func(report func(error)) (leakybucket.Store, error) {
		options.OnError = report
		return pgstore.Open(filled[0], options)
	})
	return err
}

// SharedStore returns the store.
func (p *Postgres) SharedStore() *stores.SharedStore { return p.store }

// Cleanup releases the store, which closes when no config uses it any more.
func (p *Postgres) Cleanup() error { return p.store.Leave() }

// UnmarshalCaddyfile sets up the store from Caddyfile tokens. Syntax:
//
//	postgres <url> {
//	    username <name>
//	    password <password>
//	    prefix <prefix>
//	    table <name>
//	    logged
//	}
func (p *Postgres) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return option.UnmarshalStore(d, &p.URL, option.Fields{
		"username": &p.Username, "password": &p.Password, "prefix": &p.Prefix, "table": &p.Table, "logged": &p.Logged,
	})
}

// Interface guards
var (
	_ caddy.Provisioner     = (*Postgres)(nil)
	_ caddy.CleanerUpper    = (*Postgres)(nil)
	_ caddyfile.Unmarshaler = (*Postgres)(nil)
)
