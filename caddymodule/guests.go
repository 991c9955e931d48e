package caddymodule

import (
	"context"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

// A Guest is how a Caddy module of another package uses throttle: a handler, a matcher, a
// listener wrapper, an app. The module registers itself with Caddy, and joins when it is
// provisioned:
//
//	func (m *Module) Provision(ctx caddy.Context) (err error) {
//		m.throttle, err = caddymodule.Join(ctx)
//		return err
//	}
//
// The packages inspector, crawler, listener and seen are guests. OnStart and Watch belong in
// Provision; all other methods may be called once the config has started, by any goroutine.
type Guest struct {
	engine *engine.Engine
	name   string
}

// Join lets a module use the throttle app of its config. The app then runs even if the config
// has no zones.
func Join(ctx caddy.Context) (*Guest, error) {
	e, err := engine.Of(ctx)
	if err != nil {
		return nil, err
	}
	return &Guest{e, ctx.Module().CaddyModule().ID.Name()}, nil
}

// OnStart has f called when the config starts, after all its modules have been provisioned. A
// config that is only validated never calls it. An error keeps the config from starting. The
// context is done when the config stops.
func (g *Guest) OnStart(f func(context.Context) error) {
	g.engine.OnStart = append(g.engine.OnStart, f)
}

// Watch has w told about clients whose every request is refused. A watcher that is given twice
// is told once.
func (g *Guest) Watch(w Watcher) { g.engine.Watch(w) }

// Seen counts a client whose request reports that a zone in shadow would have refused it. It ignores
// unknown zones, and clients that were sent no mark of the zone lately.
func (g *Guest) Seen(zone string, r *http.Request) {
	if z := g.engine.Zones[zone]; z != nil {
		z.Counts.Seen(r)
	}
}

type (
	// A Watcher is told about the peers of connections, so that it can close those of clients
	// that are refused anyway, see [Guest.Watch].
	Watcher = engine.Watcher

	// Refused is a client whose every request is refused, see [Watcher].
	Refused = engine.Refused
)

// Serve answers a request with a call of the admin API, such as "zones", for a user whom the
// guest has authenticated. The body is that of the admin API, whatever the request's method.
// If it returns an error, which is of the type
// [caddy.APIError], nothing is written. Changes are noted in the journal as the user's.
func (g *Guest) Serve(w http.ResponseWriter, r *http.Request, call, user string) error {
	return admin.Answer(w, r, "/throttle/"+call, override.Origin{Via: strings.TrimPrefix(g.name, "throttle_"), By: user})
}

// Changes reports whether a call of the admin API, such as "ban", changes what runs.
func Changes(call string) bool { return admin.Calls["/throttle/"+call].Changes }

// ReadOptions reads the block of a guest in a Caddyfile. Each word sets the field that its pointer
// points to: a text, a number, a duration, or a flag. given are the places of options that cannot be
// given again, to which it adds; it may be nil.
func ReadOptions(d *caddyfile.Dispenser, of string, fields map[string]any, given map[string][]string) error {
	return option.Read(d, of, fields, given)
}

// CertificateOf returns whom the verified client certificate of a request's connection names, or "".
func CertificateOf(r *http.Request) string { return admin.CertificateOf(r) }

// ErrUnknown returns the error of an unknown word, such as of an option or a name, that says
// which known one was probably meant. kind is what the word names.
func ErrUnknown(kind, word string, known ...string) error {
	return option.Unknown(kind, word, "", known)
}
