package engine

import (
	"context"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/crawler"
)

// configCrawlers are what the matchers of one config need. The lists and the answers of DNS
// outlive it, so that a reload forgets none.
type configCrawlers struct {
	lists   *crawler.Lists
	lookups *crawler.Lookups
	storage crawler.Storage // nil if no matcher asks
	sources []string        // of all matchers
}

// Join returns what a matcher asks, of which the lists will be fetched.
func (c *configCrawlers) Join(ctx caddy.Context, known []*crawler.Crawler, resolver string) *crawler.Set {
	set := crawler.NewSet(c.lists, c.lookups, known, resolver)
	c.storage, c.sources = ctx.Storage(), append(c.sources, set.Sources...)
	return set
}

// start begins to fetch lists, until ctx is done. It waits for copies in storage, but not for
// long.
func (c *configCrawlers) start(ctx context.Context, logger *zap.Logger) {
	if c.storage == nil {
		return
	}
	slices.Sort(c.sources)
	release := c.lists.Use(slices.Compact(c.sources), &crawler.Config{Storage: c.storage, Warn: func(source string, err error) {
		logger.Warn("a list of crawlers cannot be used now: its last good copy stays in use, if there is one", zap.String("list", source), zap.Error(err))
	}}, patience)
	context.AfterFunc(ctx, release)
}
