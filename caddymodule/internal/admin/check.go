package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/routes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
)

// answerCheck says which zones would charge a request. It follows the request through the
// routes of the server that listens on its port, or of all servers if none does. It
// charges nothing, and nothing is served.
func answerCheck(ctx context.Context, e *engine.Engine, _ *input, c *wire.CheckQuery) (any, error) {
	servers, err := serversFor(e, c)
	if err != nil {
		return nil, err
	}
	way := &requestCheck{app: e, input: c, result: wire.Check{Zones: []wire.CheckedZone{}}}
	for _, server := range servers {
		r, err := requestOf(ctx, c, server)
		if err != nil {
			return nil, err
		}
		subject := rule.NewSubject(r)
		if way.result.Exempt, err = e.ExemptsGlobally(&subject); err != nil || way.result.Exempt {
			return way.result, err
		}
		if err := way.follow(server, r); err != nil {
			return nil, badRequest("following the request: %w", err)
		}
	}
	return way.result, nil
}

// A requestCheck finds out what becomes of a request at the directives that it reaches.
type requestCheck struct {
	app    *engine.Engine
	input  *wire.CheckQuery
	result wire.Check
}

// reach adds what the zones of a directive would do, and the zones that are not in it and
// refuse the request because their blocks hold everywhere.
func (c *requestCheck) reach(h *engine.Handler, r *http.Request) error {
	if concerned, err := h.Concerns(r); err != nil || !concerned {
		return err
	}
	c.result.Directives++
	j, subject := newJudge(c.app), rule.NewSubject(r)
	subject.Overrides = j.set
	banned := time.Duration(0)
	if ban := subject.Ban(j.now); ban != nil {
		banned = ban.Left(j.now)
		by := decision.BannedBy(slices.Values(h.Zones), &subject)
		c.result.Banned = c.result.Banned || by != nil && by.Shadow == 0
	}
	for _, z := range h.Zones {
		r.Body = io.NopCloser(strings.NewReader(c.input.Body)) // which the zone before has read
		charge, err := j.checkZone(r.Context(), c.app.Zones[z.Name], r)
		if err != nil {
			return err
		}
		if charge != nil && c.result.Banned {
			charge.Verdict = wire.Verdict{Cost: charge.Verdict.Cost, Decision: decision.Refused.String(), Reason: rule.Banned.String(), By: "ban", For: banned.Seconds()}
		}
		c.add(charge)
	}
	for _, z := range c.app.Blockers {
		bucket, _, runs := z.BlockedEverywhere(&subject, new(rule.Buffers), c.app)
		if !runs || c.result.Banned {
			continue
		}
		charge, err := j.chargeOf(r.Context(), c.app.Zones[z.Name], bucket.Key, bucket.Shadow != 0, 1)
		if err != nil {
			return err
		}
		c.add(charge)
	}
	return nil
}

// add adds what a zone would do, if anything. A zone charges a request once.
func (c *requestCheck) add(charge *wire.CheckedZone) {
	if charge == nil || slices.ContainsFunc(c.result.Zones, func(z wire.CheckedZone) bool { return z.Zone == charge.Zone }) {
		return
	}
	charge.Directive = c.result.Directives
	c.result.Zones = append(c.result.Zones, *charge)
}

// serversFor returns the servers that listen on the port of an URL, or all if none does,
// as behind a proxy.
func serversFor(e *engine.Engine, c *wire.CheckQuery) ([]*caddyhttp.Server, error) {
	location, err := url.Parse(c.URL)
	if err != nil || location.Host == "" || location.Scheme != "http" && location.Scheme != "https" {
		return nil, badRequest("invalid url %q: want one such as https://example.com/login", c.URL)
	}
	app, err := e.Ctx.AppIfConfigured("http")
	if err != nil {
		return nil, badRequest("the config has no sites: %w", err)
	}
	config := app.(*caddyhttp.App)
	ports := map[string]int{"http": cmp.Or(config.HTTPPort, caddyhttp.DefaultHTTPPort), "https": cmp.Or(config.HTTPSPort, caddyhttp.DefaultHTTPSPort)}
	port := uint(ports[location.Scheme])
	if given, err := strconv.ParseUint(location.Port(), 10, 16); err == nil {
		port = uint(given)
	}
	all := converted(slices.Sorted(maps.Keys(config.Servers)), func(name string) *caddyhttp.Server { return config.Servers[name] })
	listening := slices.DeleteFunc(slices.Clone(all), func(server *caddyhttp.Server) bool {
		return !slices.ContainsFunc(server.Listen, func(address string) bool {
			at, err := caddy.ParseNetworkAddress(address)
			return err == nil && at.StartPort <= port && port <= at.EndPort
		})
	})
	if len(listening) == 0 {
		return all, nil
	}
	return listening, nil
}

// checkZone returns what one zone would do, or nil if it is not concerned.
func (j judge) checkZone(ctx context.Context, z *engine.Zone, r *http.Request) (*wire.CheckedZone, error) {
	o, err := decision.Preview(r, z.Zone, checkEnv{j.Engine})
	if o == nil || err != nil {
		return nil, err
	}
	charge, err := j.chargeOf(ctx, z, o.Key, o.Shadow != 0, o.Cost)
	if err != nil {
		return nil, err
	}
	if d, why := o.Ruling(); why != rule.None && charge.Verdict.Reason == "" { // known without a bucket
		charge.Verdict = wire.Verdict{Cost: o.Cost, Decision: d.String(), Reason: why.String(), By: "key"}
	}
	return charge, nil
}

// chargeOf returns what becomes of a request of a cost at a bucket, but for bans.
func (j judge) chargeOf(ctx context.Context, z *engine.Zone, key string, shadow bool, cost float64) (*wire.CheckedZone, error) {
	b, s, err := j.peek(ctx, z, key, shadow)
	b.Verdict, b.Dearest = j.verdict(z, &b, s, cost, nil), nil
	return &wire.CheckedZone{Bucket: b}, err
}

// A checkEnv is the engine for a request whose body is in memory already.
type checkEnv struct{ *engine.Engine }

// Look implements decision.Env.
func (checkEnv) Look(r *http.Request, client netip.Prefix, most int64) (*body.Ahead, *body.Body) {
	return body.NewMemory(math.MaxInt64).Look(r, client, most)
}

// requestOf returns the request as a server would hand it to its routes.
func requestOf(ctx context.Context, c *wire.CheckQuery, server *caddyhttp.Server) (*http.Request, error) {
	addr, err := netip.ParseAddr(c.ClientIP)
	if err != nil {
		return nil, badRequest("invalid client_ip %q: want an address", c.ClientIP)
	}
	r, err := http.NewRequestWithContext(ctx, c.Method, c.URL, strings.NewReader(c.Body))
	if err != nil {
		return nil, badRequest("invalid method or url: want an url such as https://example.com/login")
	}
	r.RequestURI, r.RemoteAddr = r.URL.RequestURI(), netip.AddrPortFrom(addr, 1).String()
	if r.URL.Scheme == "https" {
		r.TLS = &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true, ServerName: r.URL.Hostname()}
	}
	for name, value := range c.Headers {
		r.Header.Set(name, value)
	}
	r.URL.Scheme, r.URL.Host = "", "" // as of a request that came over a connection
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), server)
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, addr.String())
	return r, nil
}

// follow lets a request go through the routes of a server to the directives that it would
// come to. Nothing on its way serves it or changes anything outside of it.
func (c *requestCheck) follow(server *caddyhttp.Server, r *http.Request) error {
	stripped := routes.Strip(server)
	end := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	chain, err := routes.Link(c.app.Ctx, stripped, end, func(throttle caddyhttp.MiddlewareHandler) caddyhttp.MiddlewareHandler {
		return directiveCheck{c, throttle.(engine.Directive).Running()}
	})
	if err != nil {
		return err
	}
	// Routes that are invoked are the stripped server's.
	return chain.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(r.Context(), caddyhttp.ServerCtxKey, stripped)))
}

// A directiveCheck stands for a throttle directive in a check.
type directiveCheck struct {
	check   *requestCheck
	handler *engine.Handler
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (d directiveCheck) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if err := d.check.reach(d.handler, r); err != nil {
		return err
	}
	return next.ServeHTTP(w, r)
}
