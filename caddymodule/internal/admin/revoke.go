package admin

import (
	"context"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
)

// answerRevoke replaces the keys, so that no device is trusted and no pass is good any
// more.
func answerRevoke(a *engine.Engine, ctx context.Context, in *adminInput) (any, error) {
	if err := in.decode(new(struct{})); err != nil {
		return nil, err
	}
	if a.Signing.Ring == nil {
		return nil, badRequest("no zone has trust_devices, and none sends passes")
	}
	if err := a.Signing.Rotate(ctx, time.Now()); err != nil {
		return nil, err
	}
	return wire.Revoked{Revoked: true}, nil
}
