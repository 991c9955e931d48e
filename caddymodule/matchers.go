package caddymodule

import (
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/crawler"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
)

// MatchBlocked matches requests of clients that a zone with `block` has banned, or an
// administrator at run time. After the throttle handler, it matches requests that the
// handler found to be blocked. Before it, it matches those that the handler would block,
// as far as this process knows. Shadow zones block nobody.
type MatchBlocked struct {
	// The zone that has blocked the client. Default: any zone. A zone that this
	// config does not define is an error.
	Zone string `json:"zone,omitempty"`

	app *engine.Engine
}

// CaddyModule returns the Caddy module information.
func (MatchBlocked) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.matchers.throttle_blocked",
		New: func() caddy.Module { return new(MatchBlocked) },
	}
}

// Provision remembers the zone, for when all zones are known.
func (m *MatchBlocked) Provision(ctx caddy.Context) error {
	for _, within := range ctx.Modules() {
		switch within.(type) {
		case *App, *Handler:
			return config.ErrAsksThrottle
		}
	}
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	m.app = app.engine
	if m.Zone != "" {
		app.asked = append(app.asked, m.Zone)
	}
	return nil
}

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (m *MatchBlocked) MatchWithError(r *http.Request) (bool, error) {
	res := decision.VerdictOf(r)
	if res.Blocked(m.Zone) {
		return true, nil
	}
	s, b := rule.NewSubject(r), new(rule.Buffers)
	s.Overrides = m.app.Overrides()
	if exempt, err := m.app.ExemptsGlobally(&s); err != nil || exempt {
		return false, err
	}
	if s.Ban(time.Now()) != nil {
		if by := decision.BannedBy(m.zones(), &s); by != nil && by.Shadow == 0 {
			return true, nil
		}
	}
	if m.app.Blocks.Empty() {
		return false, nil
	}
	for z := range m.zones() {
		c, device, can := z.BlockedBucket(&s, b)
		if !can || c.Shadow != 0 || res.Decided(z) {
			continue
		}
		_, runs := m.app.Believe(r.Context(), &c)
		if runs && device != "" {
			c.Key = device
			_, runs = m.app.Believe(r.Context(), &c)
		}
		if runs {
			return true, nil
		}
	}
	return false, nil
}

// zones returns the zones that the matcher asks about.
func (m *MatchBlocked) zones() iter.Seq[*decision.Zone] {
	return func(yield func(*decision.Zone) bool) {
		for name, z := range m.app.Zones {
			if (m.Zone == "" || m.Zone == name) && !yield(z.Zone) {
				return
			}
		}
	}
}

// UnmarshalCaddyfile sets up the matcher from Caddyfile tokens. Syntax:
//
//	throttle_blocked [<zone>]
func (m *MatchBlocked) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	for d.Next() {
		if words := d.RemainingArgs(); len(words) == 1 && m.Zone == "" {
			m.Zone = words[0]
		} else if len(words) > 0 {
			return d.Err("too many words after throttle_blocked: want throttle_blocked [<zone>]")
		}
		if d.NextBlock(0) {
			return d.Err("throttle_blocked takes no block: want throttle_blocked [<zone>]")
		}
	}
	return nil
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
	crawlers, err := m.parse()
	if err != nil {
		return err
	}
	e, err := engine.EngineOf(ctx)
	if err != nil {
		return err
	}
	m.set = e.Crawlers.Join(ctx, crawlers, m.Resolver)
	return nil
}

// parse returns the crawlers that the matcher names.
func (m *VerifiedCrawler) parse() (crawlers []*crawler.Crawler, err error) {
	if len(m.Crawlers) == 0 {
		return nil, fmt.Errorf("verified_crawler names no crawler: want %s, or a URL", strings.Join(crawler.Names(), ", "))
	}
	for _, name := range m.Crawlers {
		c, err := crawler.ParseCrawler(name)
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
		m.Crawlers = append(m.Crawlers, words...)
		if _, err := m.parse(); err != nil {
			return d.WrapErr(err)
		}
		twice := m.Resolver != "" // by another line of the same matcher
		err := tokens.Options(d, "verified_crawler", tokens.Fields{"resolver": &m.Resolver}, func() error {
			if twice {
				return errors.New("resolver is given twice: want one")
			}
			_, err := m.parse()
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner                 = (*MatchBlocked)(nil)
	_ caddyhttp.RequestMatcherWithError = (*MatchBlocked)(nil)
	_ caddyfile.Unmarshaler             = (*MatchBlocked)(nil)
	_ caddy.Provisioner                 = (*VerifiedCrawler)(nil)
	_ caddyhttp.RequestMatcherWithError = (*VerifiedCrawler)(nil)
	_ caddyfile.Unmarshaler             = (*VerifiedCrawler)(nil)
)
