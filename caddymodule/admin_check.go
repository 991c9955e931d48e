package caddymodule

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocklist"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A checkInput describes a request that is not made.
type checkInput struct {
	ClientIP string            `json:"client_ip"`         // Required.
	Method   string            `json:"method,omitempty"`  // Default: GET
	URL      string            `json:"url"`               // with the host. Required.
	Headers  map[string]string `json:"headers,omitempty"` // one value each
	Body     string            `json:"body,omitempty"`
}

// A checked says what would become of the request.
type checked struct {
	Exempt bool            `json:"exempt,omitempty"` // by the global options
	Banned bool            `json:"banned,omitempty"`
	Zones  []checkedCharge `json:"zones"` // that would charge the request or refuse it
}

// A checkedCharge is a zone's part of it.
type checkedCharge struct {
	bucketState
	Cost   float64 `json:"cost"`
	Fits   bool    `json:"fits"`
	Reason string  `json:"reason,omitempty"` // if it does not fit
}

// adminCheck says which zones would charge a request, if it came to their directive.
// Matchers of directives and the order of routes are not looked at. It charges nothing.
func (a *App) adminCheck(ctx context.Context, in *adminInput) (any, error) {
	c := checkInput{Method: http.MethodGet}
	if err := in.decode(&c); err != nil {
		return nil, err
	}
	r, err := c.request(ctx)
	if err != nil {
		return nil, err
	}
	result := checked{Zones: []checkedCharge{}}
	subject := decision.NewSubject(r)
	if result.Exempt, err = a.exempts(&subject); err != nil || result.Exempt {
		return result, err
	}
	zones, err := a.zonesNamed("")
	if err != nil {
		return nil, err
	}
	for _, z := range zones {
		one, err := c.request(ctx)
		if err != nil {
			return nil, err
		}
		charge, banned, err := a.check(ctx, z, one)
		if err != nil {
			return nil, err
		}
		result.Banned = result.Banned || banned
		if charge != nil {
			result.Zones = append(result.Zones, *charge)
		}
	}
	return result, nil
}

// check returns what one zone would do, or nil if it is not concerned.
func (a *App) check(ctx context.Context, z *runningZone, r *http.Request) (result *checkedCharge, banned bool, err error) {
	p := decision.NewPlan(r, 1)
	defer p.Release()
	p.Overrides = a.overrides.Load()
	banned = p.Banned() > 0
	unknown := func(*leakybucket.Charge) (block blocklist.Block, known bool) { return block, false }
	if err := p.Evaluate(z.Rule, unknown); err != nil {
		return nil, banned, err
	}
	if p.Unread() > 0 {
		p.ReadBody()
		if err := p.Evaluate(z.Rule, unknown); err != nil {
			return nil, banned, err
		}
	}
	outcomes := p.Outcomes()
	if len(outcomes) == 0 {
		return nil, banned, nil
	}
	o := &outcomes[0]
	result = &checkedCharge{Fits: o.Reason() == decision.None, Reason: o.Reason().String()}
	if o.Charge.Limit.Capacity == 0 {
		result.bucketState, _ = a.describe(z, o.Key, o.Shadow)
		return result, banned, nil
	}
	if result.bucketState, err = a.peek(ctx, z, o.Key, o.Shadow); err != nil {
		return nil, banned, err
	}
	limit := o.Charge.Limit
	result.Capacity, result.Leak, result.Cost = limit.Capacity, limit.Leak, o.Charge.Cost
	switch {
	case limit.Oversize(result.Cost):
		result.Fits, result.Reason = false, decision.Oversize.String()
	case result.Blocked > 0:
		result.Fits, result.Reason = false, decision.Blocked.String()
	case limit.Below(o.Charge.Ceiling).TimeToFit(result.Level, result.Cost) > 0:
		result.Fits, result.Reason = false, decision.Capacity.String()
	}
	return result, banned, nil
}

// request returns the request as Caddy would hand it to a handler.
func (c *checkInput) request(ctx context.Context) (*http.Request, error) {
	addr, err := netip.ParseAddr(c.ClientIP)
	if err != nil {
		return nil, badRequest("invalid client_ip %q: want an address", c.ClientIP)
	}
	r, err := http.NewRequestWithContext(ctx, c.Method, c.URL, strings.NewReader(c.Body))
	if err != nil || r.Host == "" || r.URL.Scheme != "http" && r.URL.Scheme != "https" {
		return nil, badRequest("invalid method or url: want an url such as https://example.com/login")
	}
	r.RequestURI, r.RemoteAddr = r.URL.RequestURI(), netip.AddrPortFrom(addr, 1).String()
	for name, value := range c.Headers {
		r.Header.Set(name, value)
	}
	server := new(caddyhttp.Server)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), server)
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, addr.String())
	return r, nil
}
