package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

// signingKeys are the keys that device cookies and passes are signed with, as one config
// has them. They are read from Caddy's storage when the config starts.
type signingKeys struct {
	*signer.Ring
	stop context.CancelFunc
}

// lastKeys remembers the signing keys of the config that started last, so that a
// reload keeps them although storage fails meanwhile.
type lastKeys struct{ atomic.Pointer[signer.Ring] }

// Destruct implements caddy.Destructor.
func (*lastKeys) Destruct() error { return nil }

// patience is how long a config waits for its keys when it starts. A storage that takes
// longer must not keep sites from being served.
const patience = time.Second

// SigningKeys returns the config's keys, which all its zones share.
func (a *Engine) SigningKeys(ctx caddy.Context) (*signer.Ring, error) {
	if a.Signing.Ring == nil {
		last, err := stores.Join(signingKey, func() (*lastKeys, error) { return new(lastKeys), nil })
		if err != nil {
			return nil, err
		}
		a.lastKeys = last
		a.Signing.Ring = signer.New(ctx.Storage(), last.Load())
	}
	return a.Signing.Ring, nil
}

// start reads the keys, and keeps them up to date until stop is called.
func (s *signingKeys) start(last *lastKeys, logger *zap.Logger) {
	if s.Ring == nil {
		return
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go s.Run(ctx, func(err error) {
		logger.Error("reading the keys of device cookies and passes; it is tried again every minute, and meanwhile neither may be issued", zap.Error(err))
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.Tried():
	case <-timer.C:
	}
	last.Store(s.Ring)
}

// WarnInsecure logs, once, that a log-in succeeded over plain HTTP.
func (z *Zone) WarnInsecure() {
	switch {
	case z.warnedInsecure.Swap(true):
	case z.Share != nil:
		z.Counts.Logger.Warn("a log-in succeeded over plain HTTP, where no passes are sent, so nobody is a member: serve the site over HTTPS, or list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto")
	default:
		z.Counts.Logger.Warn("a log-in succeeded over plain HTTP, where devices cannot be trusted: serve the site over HTTPS, or list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto")
	}
}

// Interface guards
var _ caddy.Destructor = (*lastKeys)(nil)
