package limit

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Compile fills in defaults, checks the zone as far as possible without loading matchers and
// files, and compiles all but these. [Zone.Load] comes next.
func (z *Zone) Compile(plans map[string]leakybucket.Limit) error {
	if err := option.CheckName("zone", z.Name); err != nil {
		return err
	}
	readsBody := z.ReadBody != nil
	z.fillIn()
	for _, step := range []func() error{ // each part after those that it asks
		z.checkTogether,
		z.compileLimit,
		func() error { return compileRoutes(z.Route, z.Key) },
		z.Key.compile,
		z.checkKey,
		func() error { return z.compileOverrides(plans) },
		z.compileCosts,
		func() error { return z.ReadBody.compile(z, readsBody) },
		func() error { return z.Settle.compile(z) },
		z.Refund.check,
		func() error { return z.TrustDevices.compile(z) },
		func() error { return z.Delay.check(z) },
		func() error { return z.Block.compile(z) },
		z.Refusal.Compile,
		func() error { return cmp.Or(option.CheckMatch(z.MatchRaw), option.CheckFree("exempt", z.ExemptRaw)) },
		func() error { return z.ReadBy(new(form.Plan)) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("zone %q: %w", z.Name, err)
		}
	}
	return nil
}

// Given is what a zone takes from outside of its definition.
type Given struct {
	Shadow   bool                  // the global options put all zones there
	Static   []*staticfile.Matcher // what they exempt
	Keys     func() *signer.Ring
	Insecure func() // see [TrustDevices]
}

// Load loads what Compile has left out. Once the engine has added it, nothing changes the zone.
func (z *Zone) Load(ctx caddy.Context, given Given) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("zone %q: %w", z.Name, err)
		}
	}()
	if given.Shadow && z.Shadow == nil {
		z.Shadow = new(Shadow)
	}
	if z.TrustDevices != nil {
		z.TrustDevices.insecure, z.TrustDevices.keys = given.Insecure, given.Keys()
	}
	if z.Match, err = option.LoadMatchers(ctx, z, "MatchRaw", z.MatchRaw); err != nil {
		return err
	}
	if z.Exempt, err = option.LoadMatchers(ctx, z, "ExemptRaw", z.ExemptRaw); err != nil {
		return err
	}
	for i := range z.Cost {
		c := &z.Cost[i]
		if c.Match, err = option.LoadMatchers(ctx, c, "MatchRaw", c.MatchRaw); err != nil {
			return err
		}
	}
	for _, route := range z.Route {
		for _, path := range route.Path {
			if err := option.CheckVariable(path); err != nil {
				return fmt.Errorf("route %q: %w", route.Name, err)
			}
		}
	}
	z.Static, err = option.LoadStatic(ctx, z.ExemptStaticFiles)
	z.Static = append(z.Static, given.Static...)
	return err
}

// Warnings says which matchers probably do not mean what they seem to. It comes before Load, after
// which Caddy has dropped their JSON. What costs nothing is as good as exempt. A zone that settles, as
// for statuses of 404, may leave out missing files.
func (z *Zone) Warnings() (warnings []string) {
	free := slices.Clone(z.ExemptRaw)
	if z.Settle == nil {
		free = append(free, option.LeftOut(z.MatchRaw)...)
	}
	for i := range z.Cost {
		if c := &z.Cost[i]; c.source == constant && c.constant == 0 {
			free = append(free, c.MatchRaw...)
		} else if sentByClient.MatchString(c.Value) {
			warnings = append(warnings, "clients choose what their requests cost, and may send 0, unless a handler before throttle sets that: want a {vars.*} of your own")
		}
	}
	return append(warnings, option.Warnings(free)...)
}

// fillIn fills in defaults, so that definitions with the same meaning are equal. Key, refusal and
// read_body are never nil after it.
func (z *Zone) fillIn() {
	z.Key = z.Key.withDefault(len(z.Field) > 0)
	z.ReadBody = option.CopyOf(z.ReadBody)
	z.ReadBody.Most = cmp.Or(z.ReadBody.Most, "64KiB")
	z.Refusal = option.CopyOf(z.Refusal)
	z.Refusal.FillIn(http.StatusTooManyRequests)
	z.Enforce = cmp.Or(z.Enforce, 100)
	if z.Delay != nil {
		z.Delay.Queue = cmp.Or(z.Delay.Queue, 1000)
	}
	if z.Settle != nil {
		z.Settle.Name = http.CanonicalHeaderKey(z.Settle.Name)
	}
	if z.TrustDevices != nil {
		z.TrustDevices.For = cmp.Or(z.TrustDevices.For, caddy.Duration(180*24*time.Hour))
	}
}

// checkTogether checks what is a word or a number, and parts beside each other, while each checks
// itself. Its errors come before those of the parts.
func (z *Zone) checkTogether() error {
	return cmp.Or(
		option.Among("on_store_error", z.OnStoreError, option.StorePolicies...),
		option.Refuse("enforce", z.Shadow != nil && z.Enforce != 100, "enforce and shadow exclude each other: want shadow for a dry run of all keys, or enforce <percent> for one of the others"),
		option.Within("enforce", z.Enforce, 1, 100),
		option.Refuse("limit", z.LimitRaw == "", "no limit given: want limit <capacity> <leak>, such as limit 120 2/s"),
		option.Refuse("refund", len(z.Refund) > 0 && z.Settle != nil, "refund and settle exclude each other: refund gives back what success costs, and settle replaces the charge by another one"),
	)
}

// checkKey refuses what has no meaning with the key, and finds out whether it must be built.
func (z *Zone) checkKey() error {
	if len(z.Route) > 0 && !slices.ContainsFunc(z.Key.Sources, func(k KeySource) bool { return k.Source == "route" }) {
		return option.About("route", 0, fmt.Errorf("route %q has no effect: want \"route\" among the sources of the key", z.Route[0].Name))
	}
	only := &z.Key.parts[0]
	z.Key.verbatim = len(z.Override) == 0 && len(z.Key.parts) == 1 && only.read != nil && only.fold == nil && !only.digest
	z.Key.names = slices.ContainsFunc(z.Key.parts, func(p part) bool { return p.fold != nil })
	z.Key.byIPv4, z.Key.limit = len(z.Override) == 0 && z.Key.IsAddress() && z.Key.IPv4 == 32, z.Limit
	return option.Refuse("key unlisted", z.Key.Unlisted != "" && len(z.Override) == 0, "unlisted has no meaning without override")
}

func (z *Zone) compileLimit() (err error) {
	if z.Limit, err = leakybucket.ParseLimit(z.LimitRaw); err != nil {
		err = fmt.Errorf("parsing limit: %w", err)
	}
	return option.About("limit", 0, err)
}

// compileOverrides compiles the overrides. It comes after the limit and the key.
func (z *Zone) compileOverrides(plans map[string]leakybucket.Limit) (err error) {
	table := perkey.TableConfig{
		Own: z.Limit, Plans: plans, Overrides: slices.Clone(z.Override), IPv4Bits: z.Key.IPv4, IPv6Bits: z.Key.IPv6,
	}
	for i := range z.Key.parts {
		part := &z.Key.parts[i]
		table.Addresses = append(table.Addresses, part.clientIP)
	}
	for i := range table.Overrides {
		if err := z.prepareOverride(&table.Overrides[i]); err != nil {
			return z.Override[i].About(i, err)
		}
	}
	z.Key.Overrides, err = perkey.NewTable(table)
	return err
}

// prepareOverride checks an override, and folds names in it as keys have them.
func (z *Zone) prepareOverride(o *perkey.Override) error {
	if o.As != "" && z.TrustDevices != nil {
		return errors.New("as and trust_devices exclude each other: a device is trusted with one account")
	}
	if network, err := netip.ParsePrefix(strings.Join(o.Parts, " ")); err == nil && network.Bits() == 0 && o.Limit == "unlimited" {
		return errors.New("all clients would be unlimited, so the zone limits nothing: want a smaller network")
	}
	o.Parts = slices.Clone(o.Parts)
	for at, part := range o.Parts[:min(len(o.Parts), len(z.Key.parts))] {
		if err := z.Key.checkValue(at, part); err != nil {
			return err
		}
		if fold := z.Key.parts[at].fold; fold != nil && !perkey.IsDigest(part) {
			if o.Parts[at] = fold(part); o.Parts[at] == oddName {
				return fmt.Errorf("no name: all names such as %q count together, in the bucket @odd", part)
			}
		}
	}
	return nil
}

// checkValue refuses a value that a part of the key never has.
func (k *Key) checkValue(at int, value string) error {
	s := NewSubject(&http.Request{Host: value, Method: value, URL: new(url.URL)})
	switch source := k.parts[at].source; source {
	case "route":
		known := []string{otherRoute}
		for _, route := range k.routes {
			known = append(known, route.Name)
		}
		if !slices.Contains(known, value) {
			return option.Unknown("route", value, "", known)
		}
	case "host", "method", "text":
		if read := k.parts[at].read(&s); !perkey.IsDigest(value) && (read != value || strings.Contains(value, "*")) {
			return fmt.Errorf("no request has the %s %q: want one such as %q", source, value, strings.TrimPrefix(read, "*."))
		}
	}
	if value == "" || strings.HasPrefix(value, "{env.") || strings.HasPrefix(value, "{file.") {
		return fmt.Errorf("no request has %q here: want the value itself, {$NAME} in a Caddyfile, or sha256:<hex>", value)
	}
	return nil
}

// Route is a name for some paths.
type Route struct {
	// The name that stands for the paths in keys. Required.
	Name string `json:"name,omitempty"`

	// The paths, as in the matcher `path`. Required. Paths without a route are `other`.
	Path caddyhttp.MatchPath `json:"path,omitempty"`
}

func compileRoutes(routes []Route, key *Key) error {
	for i, route := range routes {
		var err error
		switch {
		case route.Name == "" || len(route.Path) == 0:
			err = errors.New("incomplete route: want a name and at least one path")
		case route.Name == otherRoute:
			err = fmt.Errorf("invalid route name %q: paths that match no route have this name", route.Name)
		default:
			if err = cmp.Or(option.CheckPathList(route.Path), option.CheckTailsOf(route.Path)); err != nil {
				err = fmt.Errorf("route %q: %w", route.Name, err)
			}
		}
		if err != nil {
			return option.About("route", i, err)
		}
		paths := slices.Clone(route.Path)
		if err := paths.Provision(caddy.Context{}); err != nil {
			return option.About("route", i, err)
		}
		key.routes = append(key.routes, Route{Name: route.Name, Path: paths})
	}
	return nil
}

// Block refuses a key for a while after an overflow.
type Block struct {
	// How long the first block lasts, the next one, and so on; each must be longer
	// than the one before. With `10m` and `1h`, a key that overflows again within
	// 10 minutes of its first block ending is blocked for 1 hour. After staying
	// quiet for as long as its last block, it starts at 10 minutes again. Default:
	// a block lasts until the bucket is empty.
	For []caddy.Duration `json:"for,omitempty"`

	// Refuse the client in every throttle handler of this Caddy. The key must be
	// the client's address alone. Default: only in handlers with this zone.
	Everywhere bool `json:"everywhere,omitempty"`
}

// compile compiles what an overflow begins. It comes after the key.
func (b *Block) compile(z *Zone) error {
	if b == nil {
		return nil
	}
	z.ladder = new(leakybucket.Ladder)
	for _, step := range b.For {
		z.ladder.Steps = append(z.ladder.Steps, time.Duration(step))
	}
	return cmp.Or(
		option.About("block", 0, z.ladder.Validate()),
		option.Refuse("block", b.Everywhere && !z.Key.IsAddress(), "block ... everywhere needs the key client_ip alone: other keys do not identify a client in every zone"),
	)
}
