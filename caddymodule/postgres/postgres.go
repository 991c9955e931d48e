// Package postgres lets throttle keep its buckets in PostgreSQL.
package postgres

import (
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/pgstore"
)

func init() {
	caddy.RegisterModule(Postgres{})
}

// Postgres keeps the buckets in a table of PostgreSQL, so that several Caddys
// share one limit. Placeholders such as `{env.PGPASSWORD}` or
// `{file./run/secrets/postgres}` are filled in when the config is loaded.
type Postgres struct {
	// Where it is: `postgres://user@host:5432/database?sslmode=verify-full`.
	// Required.
	URL string `json:"url,omitempty"`

	// Who to log in as. Default: the URL's.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`

	// What keeps apart the buckets of sites that share a table. Default: nothing.
	Prefix string `json:"prefix,omitempty"`

	// The table, perhaps with a schema and a dot before it. It is made on first
	// use. Default: `throttle_buckets`.
	Table string `json:"table,omitempty"`

	// Keep the buckets over a crash of the server, which writes each change to
	// its log then. Default: a crash empties all buckets.
	Logged bool `json:"logged,omitempty"`

	remote     *caddymodule.Remote
	connection caddymodule.Connection
}

// CaddyModule returns the Caddy module information.
func (Postgres) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "throttle.stores.postgres",
		New: func() caddy.Module { return new(Postgres) },
	}
}

// Provision finds the connections that the last config has used, or begins to
// connect. It waits for nothing.
func (p *Postgres) Provision(ctx caddy.Context) error {
	filled, err := caddymodule.FillIn(p.URL, p.Username, p.Password, p.Prefix, p.Table)
	if err != nil {
		return err
	}
	options := pgstore.Options{
		URL: filled[0], User: filled[1], Password: filled[2], Prefix: filled[3], Table: filled[4], Logged: p.Logged,
		OnError: warner(ctx.Logger()),
	}
	filled = append(filled, strconv.FormatBool(p.Logged))
	p.remote, p.connection, err = caddymodule.Connect("postgres", filled, func() (caddymodule.RemoteStore, error) {
		store, err := pgstore.New(options)
		if err != nil {
			return nil, err
		}
		store.Start()
		return store, nil
	})
	return err
}

// warner logs what fails while no request waits for it, at most once a minute.
func warner(logger *zap.Logger) func(error) {
	const often = time.Minute
	var mu sync.Mutex
	var last time.Time
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(last) >= often {
			last = now
			logger.Warn("looking after the table", zap.Error(err))
		}
	}
}

// Store returns the store.
func (p *Postgres) Store() leakybucket.Store { return p.remote }

// Cleanup lets go of the connections.
func (p *Postgres) Cleanup() error { return p.connection.Release() }

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
	return caddymodule.UnmarshalStore(d, &p.URL, map[string]*string{
		"username": &p.Username, "password": &p.Password, "prefix": &p.Prefix, "table": &p.Table,
	}, map[string]*bool{"logged": &p.Logged})
}

// Interface guards
var (
	_ caddy.Provisioner       = (*Postgres)(nil)
	_ caddy.CleanerUpper      = (*Postgres)(nil)
	_ caddyfile.Unmarshaler   = (*Postgres)(nil)
	_ caddymodule.StoreModule = (*Postgres)(nil)
)
