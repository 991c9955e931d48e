// Package memcached is the store module of throttle that keeps buckets in Memcached. It is no part
// of the standard build: add it with xcaddy's --with. Begin with Memcached.
package memcached

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memcachedstore"
)

func init() {
	caddy.RegisterModule(Memcached{})
}

// Memcached keeps the buckets in Memcached, so that several Caddys share one limit. The clocks of
// their hosts must agree within a second, and a full or restarted server forgets buckets: prefer
// Redis where there is one. Placeholders in its options, such as `{env.MEMCACHED}`, are filled in
// when the config is loaded.
type Memcached struct {
	// The servers, such as `127.0.0.1:11211`, or paths of Unix sockets. Required. Every Caddy must
	// name the same ones in the same order.
	Servers []string `json:"servers,omitempty"`

	// What the name of each item begins with: at most 64 printable ASCII characters. Caddys with
	// the same prefix share their buckets. Default: `throttle`.
	Prefix string `json:"prefix,omitempty"`

	store *memcachedstore.Store
}

// CaddyModule returns the Caddy module information.
func (Memcached) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle.stores.memcached", New: func() caddy.Module { return new(Memcached) }}
}

// Provision makes the store, which connects when it is first asked.
func (m *Memcached) Provision(caddy.Context) error {
	repl := caddy.NewReplacer()
	servers, err := repl.ReplaceOrErr(strings.Join(m.Servers, ","), true, true)
	if err != nil {
		return fmt.Errorf("filling in placeholders: %w", err)
	}
	prefix, err := repl.ReplaceOrErr(m.Prefix, true, true)
	if err != nil {
		return fmt.Errorf("filling in placeholders: %w", err)
	}
	m.store, err = memcachedstore.Open(servers, memcachedstore.Options{Prefix: prefix})
	return err
}

// Store implements caddymodule.StoreModule. The store has a method Close, so throttle closes it.
func (m *Memcached) Store() leakybucket.Store { return m.store }

// UnmarshalCaddyfile sets up the store from Caddyfile tokens. Syntax:
//
//	memcached <server>... {
//	    prefix <prefix>
//	}
func (m *Memcached) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // its name
	if m.Servers = d.RemainingArgs(); len(m.Servers) == 0 {
		return d.Err("want the servers, such as memcached 127.0.0.1:11211")
	}
	return caddymodule.ReadOptions(d, "store memcached", map[string]any{"prefix": &m.Prefix}, nil)
}

// Interface guards
var (
	_ caddy.Provisioner       = (*Memcached)(nil)
	_ caddymodule.StoreModule = (*Memcached)(nil)
	_ caddyfile.Unmarshaler   = (*Memcached)(nil)
)
