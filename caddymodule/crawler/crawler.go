// Package crawler is the matcher verified_crawler. Begin with [Matcher].
package crawler

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/crawler/internal/verify"
)

func init() { caddy.RegisterModule(Matcher{}) }

// The lists and the answers of DNS outlive configs, so that a reload forgets none. Both are
// bounded.
var (
	lists   verify.Lists
	lookups = verify.NewLookups()
)

// Matcher matches requests of crawlers that have proved to be what they are:
// the client's address is on the list that the operator publishes, or reverse and
// forward DNS agree that it belongs to the operator. A user agent alone proves nothing.
//
// Lists are fetched over https in the background, when Caddy starts and then once a
// day. DNS is asked in the background, too, for clients whose user agent names a crawler
// that has a domain. So the first visit from an address that is on no list does not match.
type Matcher struct {
	// The crawlers: names such as `googlebot`, or URLs of lists. A list is JSON with
	// `prefixes` of `ipv4Prefix` and `ipv6Prefix`, or text with a network in each line.
	// Required.
	Crawlers []string `json:"crawlers,omitempty"`

	// The DNS server that confirms addresses, as host:port. Default: those of the
	// system.
	Resolver string `json:"resolver,omitempty"`

	set *verify.Set
}

// CaddyModule returns the Caddy module information.
func (Matcher) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.matchers.verified_crawler", New: func() caddy.Module { return new(Matcher) }}
}

// Provision finds the crawlers. It dials nothing: lists are fetched once the config starts.
func (m *Matcher) Provision(ctx caddy.Context) error {
	crawlers, err := m.parse()
	if err != nil {
		return err
	}
	throttle, err := caddymodule.Join(ctx)
	if err != nil {
		return err
	}
	m.set = verify.NewSet(&lists, lookups, crawlers, m.Resolver)
	warn := func(source string, err error) {
		ctx.Logger().Warn("a list of crawlers cannot be used now: the last good one stays in use, if there is one", zap.String("list", source), zap.Error(err))
	}
	throttle.OnStart(func(running context.Context) error {
		context.AfterFunc(running, lists.Use(m.set.Sources, warn))
		return nil
	})
	return nil
}

// parse returns the crawlers that the matcher names.
func (m *Matcher) parse() (crawlers []*verify.Crawler, err error) {
	if len(m.Crawlers) == 0 {
		return nil, fmt.Errorf("verified_crawler names no crawler: want %s, or a URL", strings.Join(verify.Names(), ", "))
	}
	for _, name := range m.Crawlers {
		c, err := verify.ParseCrawler(name)
		if err != nil {
			return nil, err
		}
		crawlers = append(crawlers, c)
	}
	if _, err := netip.ParseAddrPort(m.Resolver); err != nil && m.Resolver != "" {
		return nil, fmt.Errorf("invalid resolver %q: want an address and a port, such as 127.0.0.1:53", m.Resolver)
	}
	return crawlers, nil
}

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (m *Matcher) MatchWithError(r *http.Request) (bool, error) {
	text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	addr, err := netip.ParseAddr(text)
	return err == nil && m.set.Verified(addr, r.UserAgent()), nil
}

// UnmarshalCaddyfile sets up the matcher from Caddyfile tokens. Syntax:
//
//	verified_crawler <name|url>... {
//	    resolver <address:port>
//	}
func (m *Matcher) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	given := make(map[string][]string)
	for d.Next() {
		m.Crawlers = append(m.Crawlers, d.RemainingArgs()...)
		if err := caddymodule.ReadOptions(d, "verified_crawler", map[string]any{"resolver": &m.Resolver}, given); err != nil {
			return err
		}
		if _, err := m.parse(); err != nil {
			return d.WrapErr(err)
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner                 = (*Matcher)(nil)
	_ caddyhttp.RequestMatcherWithError = (*Matcher)(nil)
	_ caddyfile.Unmarshaler             = (*Matcher)(nil)
)
