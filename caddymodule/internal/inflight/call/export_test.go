package call

import (
	"net/http"
	"net/netip"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
)

// Options are a caller in tests.
type Options struct {
	Store   *body.Store
	Client  netip.Prefix
	Served  func(error)
	Exiting <-chan struct{}
}

type caller struct{ Options }

func (c *caller) NewSpool(memory int) body.Spool { return c.Store.NewSpool(c.Client, memory) }
func (c *caller) Answers(int, http.Header)       {}
func (c *caller) Served(err error)               { c.Options.Served(err) }
func (c *caller) Exit() <-chan struct{}          { return c.Exiting }

// Serve makes a call.
func Serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, o Options) error {
	return new(Call).Serve(w, r, next, &caller{o}, false)
}

// ignored is told of the end in tests that do not ask.
func ignored(error) {}
