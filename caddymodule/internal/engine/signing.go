package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
)

// signingKeys are the keys that device cookies and passes are signed with, as one config has
// them. They are read from Caddy's storage when the config starts, unless the config has the
// only one.
type signingKeys struct {
	*signer.Ring        // nil if nothing is signed
	Fixed        string // the secret of the config, or empty

	// last are those of the config that started last, so that a reload keeps them although
	// storage fails meanwhile.
	last *atomic.Pointer[signer.Ring]
}

// patience is how long a config waits for its keys when it starts. A storage that takes
// longer must not keep sites from being served.
const patience = time.Second

// Join returns the config's keys, which all its zones share.
func (s *signingKeys) Join(ctx caddy.Context) *signer.Ring {
	switch {
	case s.Ring != nil:
	case s.Fixed != "":
		s.Ring = signer.Fixed(s.Fixed)
	default:
		s.Ring = signer.New(ctx.Storage(), s.last.Load())
	}
	return s.Ring
}

// start reads the keys, and keeps them up to date until ctx is done.
func (s *signingKeys) start(ctx context.Context, logger *zap.Logger) {
	if s.Ring == nil || s.Fixed != "" {
		return // the config has the only key, or needs none
	}
	waiting, tried := context.WithTimeout(ctx, patience)
	go s.Run(ctx, tried, func(err error) {
		logger.Error("reading the signing keys; it is tried again every minute, and meanwhile no device cookie or pass may be issued", zap.Error(err))
	})
	<-waiting.Done()
	s.last.Store(s.Ring)
}
