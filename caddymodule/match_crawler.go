package caddymodule

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/crawler"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

func init() {
	caddy.RegisterModule(VerifiedCrawler{})
}

// VerifiedCrawler matches requests of crawlers that have proved to be what they are:
// the client's address is on the list that the operator publishes, or reverse and
// forward DNS agree that it belongs to the operator. A user agent alone proves nothing.
//
// Lists are fetched over https in the background, when Caddy starts and then once a
// day. The last good copy is kept in Caddy's storage. DNS is asked in the background,
// too, for clients whose user agent names a crawler that has a domain. So the first
// visit from an address that is on no list does not match.
type VerifiedCrawler struct {
	// The crawlers: names such as `googlebot`, or URLs of lists. A list is JSON with
	// `prefixes` of `ipv4Prefix` and `ipv6Prefix`, or text with a network in each line.
	// Required.
	Crawlers []string `json:"crawlers,omitempty"`

	// The DNS server that confirms addresses, as host:port. Default: those of the
	// system.
	Resolver string `json:"resolver,omitempty"`

	set *crawler.Set
}

// CaddyModule returns the Caddy module information.
func (VerifiedCrawler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.matchers.verified_crawler",
		New: func() caddy.Module { return new(VerifiedCrawler) },
	}
}

// Provision finds the crawlers. It dials nothing.
func (m *VerifiedCrawler) Provision(ctx caddy.Context) error {
	known, sources, err := m.parse()
	if err != nil {
		return err
	}
	app, err := enclosingApp(ctx)
	if err != nil {
		return err
	}
	shared, err := app.engine.joinCrawlers(ctx)
	if err != nil {
		return err
	}
	m.set = crawler.NewSet(&shared.lists, &shared.lookups, known, sources, m.Resolver)
	app.engine.crawlers.sources = append(app.engine.crawlers.sources, m.set.Sources()...)
	return nil
}

// enclosingApp returns the app that is being provisioned, or the config's.
func enclosingApp(ctx caddy.Context) (*App, error) {
	for _, within := range ctx.Modules() {
		if app, ok := within.(*App); ok {
			return app, nil
		}
	}
	app, err := ctx.App("throttle")
	if err != nil {
		return nil, err
	}
	return app.(*App), nil
}

// parse returns the known crawlers and the lists that the matcher names.
func (m *VerifiedCrawler) parse() (known []*crawler.Crawler, sources []string, err error) {
	if len(m.Crawlers) == 0 {
		return nil, nil, fmt.Errorf("verified_crawler names no crawler: want %s, or a URL", strings.Join(crawler.Names(), ", "))
	}
	for _, name := range m.Crawlers {
		switch c, list, err := parseCrawler(name); {
		case err != nil:
			return nil, nil, err
		case c != nil && !slices.Contains(known, c):
			known = append(known, c)
		case c == nil && !slices.Contains(sources, list):
			sources = append(sources, list)
		}
	}
	if m.Resolver != "" {
		if _, err := netip.ParseAddrPort(m.Resolver); err != nil {
			return nil, nil, fmt.Errorf("invalid resolver %q: want an address and a port, such as 127.0.0.1:53", m.Resolver)
		}
	}
	return known, sources, nil
}

// parseCrawler returns the crawler of a name, or the list that it is.
func parseCrawler(word string) (*crawler.Crawler, string, error) {
	if scheme, _, is := strings.Cut(word, "://"); is {
		u, err := url.Parse(word)
		switch {
		case strings.EqualFold(scheme, "http"):
			return nil, "", fmt.Errorf("list %q would come over plain http, where anybody can change it: want https://", word)
		case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil:
			return nil, "", fmt.Errorf("invalid list %q: want a URL such as https://example.com/bots.json", word)
		}
		return nil, word, nil
	}
	name := strings.ReplaceAll(strings.ToLower(word), "_", "-")
	if c := crawler.Find(name); c != nil {
		return c, "", nil
	}
	_, notAddress := netip.ParseAddr(word)
	if _, notNetwork := netip.ParsePrefix(word); notAddress == nil || notNetwork == nil {
		return nil, "", fmt.Errorf("unknown crawler %q: for addresses, want client_ip %[1]s", word)
	}
	if meant := text.Nearest(name, crawler.Names()); meant != "" {
		return nil, "", fmt.Errorf("unknown crawler %q: did you mean %s?", word, meant)
	}
	return nil, "", fmt.Errorf("unknown crawler %q: want %s, or the list of another one, such as https://example.com/bots.json", word, strings.Join(crawler.Names(), ", "))
}

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (m *VerifiedCrawler) MatchWithError(r *http.Request) (bool, error) {
	text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	text, _, _ = strings.Cut(text, "%") // the zone of a link-local address
	addr, err := netip.ParseAddr(text)
	return err == nil && m.set.Verified(addr, r.UserAgent()), nil
}

// UnmarshalCaddyfile sets up the matcher from Caddyfile tokens. Syntax:
//
//	verified_crawler <name|url>... {
//	    resolver <address:port>
//	}
func (m *VerifiedCrawler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	for d.Next() {
		words := d.RemainingArgs()
		if len(words) == 0 {
			return d.Err("verified_crawler names no crawler: want verified_crawler <name>..., such as verified_crawler googlebot bingbot")
		}
		for _, name := range words {
			if _, _, err := parseCrawler(name); err != nil {
				return d.WrapErr(err)
			}
		}
		m.Crawlers = append(m.Crawlers, words...)
		for nesting := d.Nesting(); d.NextBlock(nesting); {
			if option := d.Val(); option != "resolver" {
				return d.Errf("unrecognized option %q of verified_crawler: want resolver <address:port>", option)
			}
			if m.Resolver != "" {
				return d.Err("resolver is given twice: want one")
			}
			if !d.AllArgs(&m.Resolver) {
				return d.Err("wrong number of words after resolver: want resolver <address:port>, such as resolver 127.0.0.1:53")
			}
			if _, _, err := m.parse(); err != nil {
				return d.WrapErr(err)
			}
		}
	}
	return nil
}

// sharedCrawlers holds the lists and the answers of DNS. They outlive configs, so that
// a reload forgets none.
type sharedCrawlers struct {
	lists   crawler.Lists
	lookups crawler.Lookups
}

// Destruct implements caddy.Destructor. Whatever runs has been stopped by the configs
// that started it.
func (*sharedCrawlers) Destruct() error { return nil }

// configCrawlers are what the matchers of one config need.
type configCrawlers struct {
	*sharedCrawlers // nil if no matcher asks
	storage         crawler.Storage
	sources         []string
	stop            []func()
}

// joinCrawlers returns what all matchers share.
func (a *engine) joinCrawlers(ctx caddy.Context) (*sharedCrawlers, error) {
	if a.crawlers.sharedCrawlers == nil {
		shared, err := stores.Join(crawlersKey, func() (*sharedCrawlers, error) { return new(sharedCrawlers), nil })
		if err != nil {
			return nil, err
		}
		a.crawlers.sharedCrawlers, a.crawlers.storage = shared, ctx.Storage()
	}
	return a.crawlers.sharedCrawlers, nil
}

// start begins to fetch lists and to ask DNS. It waits for copies in storage, but not
// for long.
func (c *configCrawlers) start(logger *zap.Logger) {
	if c.sharedCrawlers == nil {
		return
	}
	slices.Sort(c.sources)
	ready, release := c.lists.Use(slices.Compact(c.sources), &crawler.Config{Storage: c.storage, Warn: func(source string, err error) {
		logger.Warn("a list of crawlers cannot be used now: its last good copy stays in use, if there is one", zap.String("list", source), zap.Error(err))
	}})
	c.stop = []func(){release, c.lookups.Start()}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ready:
	case <-timer.C:
	}
}

// end undoes start.
func (c *configCrawlers) end() {
	for _, stop := range c.stop {
		stop()
	}
	c.stop = nil
}

// Interface guards
var (
	_ caddy.Provisioner                 = (*VerifiedCrawler)(nil)
	_ caddyhttp.RequestMatcherWithError = (*VerifiedCrawler)(nil)
	_ caddyfile.Unmarshaler             = (*VerifiedCrawler)(nil)
	_ caddy.Destructor                  = (*sharedCrawlers)(nil)
)
