package engine

import (
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
)

// AddInFlight makes a concurrency limit ready for requests. Definitions of one name are one limit
// and must be equal. It joins the slots and the queue that other configs share. Its matchers are
// loaded within the module whose context it is.
func (e *Engine) AddInFlight(ctx caddy.Context, definition *config.InFlight) (*inflight.Limit, error) {
	if definition == nil {
		return nil, errors.New("an in_flight is null: want an object with a name")
	}
	name, text := definition.Name, definition.Definition()
	if l := e.InFlight[name]; l != nil {
		if l.Definition != text {
			return nil, fmt.Errorf("in_flight %q is defined twice, and differently: a name has the same slots everywhere, so give one of them another name: %s and %s", name, l.Definition, text)
		}
		return l, nil
	}
	if e.Zones[name] != nil {
		return nil, errOneNameSpace(name)
	}
	longest, inAll, err := e.app.Buffer.Bytes()
	if err != nil {
		return nil, err
	}
	l, err := inflight.New(ctx, definition, inflight.Options{
		Env: e, AllShadow: e.app.Shadow, Static: e.Static, Keys: func() *signer.Ring { return e.Signing.Join(ctx) },
		Bodies: e.Control.Bodies, Longest: longest, InAll: inAll, Refusals: &e.Control.Refusals, Exiting: e.Exiting,
		Logger: e.Warner.With(zap.String("in_flight", name)), Lines: e.lines,
	})
	if err != nil {
		return nil, err
	}
	e.InFlight[name] = l
	return l, nil
}

// errOneNameSpace reports a name of a zone and of an in_flight.
func errOneNameSpace(name string) error {
	return fmt.Errorf("%q is the name of a zone and of an in_flight, which metrics and commands could not tell apart: give one of them another name", name)
}
