package admin

import (
	"context"
	"errors"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
)

// answerRevoke replaces the key, so that no device is trusted and no pass is good any
// more.
func answerRevoke(ctx context.Context, e *engine.Engine, in *Input) (any, error) {
	if err := in.decode(new(struct{})); err != nil {
		return nil, err
	}
	if e.Signing.Ring == nil {
		return nil, badRequest("no zone has trust_devices, and none sends passes")
	}
	switch err := e.Signing.Rotate(ctx); {
	case errors.Is(err, signer.ErrFixed):
		return nil, badRequest("%w", err)
	case err != nil:
		return nil, err
	}
	in.note(e, "revoke", "")
	return wire.Revoked{Revoked: true}, nil
}
