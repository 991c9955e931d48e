package engine

import (
	"slices"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/crawler"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

// CrawlersKey is where they are in the pool.
const CrawlersKey = "crawlers"

// sharedCrawlers holds the lists and the answers of DNS. They outlive configs, so that
// a reload forgets none.
type sharedCrawlers struct {
	Lists   crawler.Lists
	Lookups *crawler.Lookups
}

// Destruct implements caddy.Destructor. Whatever runs has been stopped by the configs
// that started it.
func (*sharedCrawlers) Destruct() error { return nil }

// configCrawlers are what the matchers of one config need.
type configCrawlers struct {
	*sharedCrawlers // nil if no matcher asks
	storage         crawler.Storage
	Sources         []string // of all matchers
	release         func()   // of lists
}

// Join returns what all matchers share.
func (c *configCrawlers) Join(ctx caddy.Context) (_ *sharedCrawlers, err error) {
	if c.sharedCrawlers == nil {
		if c.sharedCrawlers, err = stores.Join(CrawlersKey, func() (*sharedCrawlers, error) {
			return &sharedCrawlers{Lookups: crawler.NewLookups()}, nil
		}); err != nil {
			return nil, err
		}
		c.storage = ctx.Storage()
	}
	return c.sharedCrawlers, nil
}

// start begins to fetch lists. It waits for copies in storage, but not for long.
func (c *configCrawlers) start(logger *zap.Logger) {
	if c.sharedCrawlers == nil {
		return
	}
	slices.Sort(c.Sources)
	c.release = c.Lists.Use(slices.Compact(c.Sources), &crawler.Config{Storage: c.storage, Warn: func(source string, err error) {
		logger.Warn("a list of crawlers cannot be used now: its last good copy stays in use, if there is one", zap.String("list", source), zap.Error(err))
	}}, patience)
}

// end undoes start.
func (c *configCrawlers) end() {
	if c.release != nil {
		c.release()
	}
}

func (c *configCrawlers) leave() error {
	if c.sharedCrawlers == nil {
		return nil
	}
	return stores.Leave(CrawlersKey)
}

// Interface guards
var _ caddy.Destructor = (*sharedCrawlers)(nil)
