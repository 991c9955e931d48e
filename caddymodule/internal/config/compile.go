package config

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Compile checks the zone as far as possible without loading matchers and files, and
// returns its rule without these. It does not change the zone.
func (z *Zone) Compile(plans map[string]leakybucket.Limit) (*limit.Rule, error) {
	if err := CheckName("zone", z.Name); err != nil {
		return nil, err
	}
	full, r := z.WithDefaults(), &limit.Rule{Name: z.Name}
	err := firstError( // each part after those that it asks
		func() error { return among("on_store_error", full.OnStoreError, StorePolicies...) },
		func() error { return full.Shadow.compile(r, full.Enforce) },
		full.checkTogether,
		func() error { return compileLimit(full.Limit, r) },
		func() error { return compileRoutes(full.Route, &r.Key) },
		func() error { return compileFields(full.Field, r) },
		func() error { return full.Key.compile(&r.Key) },
		full.checkKey,
		func() error { return compileOverrides(full.Override, r, plans, full.TrustDevices != nil) },
		func() error { return compileCosts(full.Cost, r, full.Settle != nil) },
		func() error { return full.ReadBody.compile(r, z.ReadBody != nil) },
		func() error { return full.Settle.compile(r) },
		func() error { return compileRefunds(full.Refund, r) },
		func() error { return full.TrustDevices.compile(r, full.Key.Sources) },
		func() error { return full.Delay.compile(r) },
		func() error { return full.Block.compile(r) },
		func() error { return full.Refusal.compile(&r.Refusal, z.Refusal) },
		func() error { return checkMatching(full.Match, full.Exempt) },
		func() error { return r.ReadBy(new(form.Plan)) },
	)
	if err != nil {
		return nil, fmt.Errorf("zone %q: %w", z.Name, err)
	}
	r.Key.Listed = len(z.Override) > 0 || z.OverrideFile != ""
	return r, nil
}

// firstError takes steps until one fails.
func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Load completes the rule that Compile has returned. After that only override_file changes it.
func (z *Zone) Load(ctx caddy.Context, r *limit.Rule, given Given) error {
	r.Shadow = r.Shadow || given.Shadow
	if r.Trust != nil {
		r.Trust.Insecure, r.Trust.Keys = given.Insecure, given.Keys()
	}
	err := firstError(
		func() error { return z.loadMatching(ctx, r, &given) },
		func() error { return loadCosts(ctx, z.Cost, r) },
	)
	if err != nil {
		return fmt.Errorf("zone %q: %w", z.Name, err)
	}
	return nil
}

func (z *Zone) loadMatching(ctx caddy.Context, r *limit.Rule, given *Given) (err error) {
	if r.Match, err = LoadMatchers(ctx, z, "Match", z.Match); err != nil {
		return err
	}
	if r.Exempt, err = LoadMatchers(ctx, z, "Exempt", z.Exempt); err != nil {
		return err
	}
	for _, route := range z.Route {
		for _, path := range route.Path {
			if err := checkVariable(path); err != nil {
				return fmt.Errorf("route %q: %w", route.Name, err)
			}
		}
	}
	r.Static, err = LoadStatic(ctx, z.ExemptStaticFiles)
	r.Static = append(r.Static, given.Static...)
	return err
}

// WithDefaults returns the zone with its defaults filled in, so that definitions with
// the same meaning are equal. Key, refusal and read_body are never nil in it.
func (z *Zone) WithDefaults() Zone {
	full := *z
	full.Key = z.Key.withDefault(KeySource{Source: "client_ip"}, len(z.Field) > 0)
	full.ReadBody = orNew(z.ReadBody)
	full.ReadBody.Most = cmp.Or(full.ReadBody.Most, "64KiB")
	full.Refusal = orNew(z.Refusal)
	full.Refusal.Status = cmp.Or(full.Refusal.Status, http.StatusTooManyRequests)
	full.Refusal.RetryAfter = cmp.Or(full.Refusal.RetryAfter, retryEmpty)
	full.Refusal.Log = cmp.Or(full.Refusal.Log, logAll)
	full.Enforce = cmp.Or(z.Enforce, 100)
	if z.Delay != nil {
		full.Delay = orNew(z.Delay)
		full.Delay.Queue = cmp.Or(z.Delay.Queue, 1000)
	}
	if z.TrustDevices != nil {
		full.TrustDevices = orNew(z.TrustDevices)
		full.TrustDevices.For = cmp.Or(z.TrustDevices.For, caddy.Duration(180*24*time.Hour))
	}
	if capacity, leak, found := strings.Cut(z.Limit, " "); found {
		if n, err := leakybucket.ParseCapacity(capacity); err == nil {
			full.Limit = strconv.FormatFloat(n, 'f', -1, 64) + " " + leak
		}
	}
	return full
}

// checkTogether checks parts beside each other, while each checks itself. Its errors come
// before those of the parts.
func (z *Zone) checkTogether() error {
	return cmp.Or(
		refuse("limit", z.Limit == "", "no limit given: want limit <capacity> <leak>, such as limit 120 2/s"),
		refuse("refund", len(z.Refund) > 0 && z.Settle != nil, "refund and settle exclude each other: refund gives back what success costs, and settle replaces the charge by another one"),
	)
}

// checkKey refuses what has no meaning with the key.
func (z *Zone) checkKey() error {
	if len(z.Route) > 0 && !namesRoute(z.Key.Sources) {
		return About("route", 0, fmt.Errorf("route %q has no effect: want \"route\" among the sources of the key", z.Route[0].Name))
	}
	return refuse("key unlisted", z.Key.Unlisted != "" && len(z.Override) == 0 && z.OverrideFile == "", "unlisted has no meaning without override or override_file")
}

// Given is what the rule of a zone takes from outside of its definition.
type Given struct {
	Shadow   bool                  // the global options put all zones there
	Static   []*staticfile.Matcher // what they exempt
	Keys     func() *signer.Ring
	Insecure func() // see [device.Trust]
}

// compileFields compiles the fields of which a request must carry one.
func compileFields(names []string, r *limit.Rule) error {
	plan, wanted := new(form.Plan), make(map[form.Field]bool)
	for _, name := range names {
		field, err := plan.Field(name)
		if err == nil && wanted[field] {
			err = fmt.Errorf("field %q is given twice: names are compared by their letters and digits", name)
		}
		if err != nil {
			return About("field", 0, err)
		}
		wanted[field] = true
	}
	r.Fields = names
	return nil
}

func compileLimit(limit string, r *limit.Rule) (err error) {
	if r.Limit, err = leakybucket.ParseLimit(limit); err != nil {
		err = fmt.Errorf("parsing limit: %w", err)
	}
	return About("limit", 0, err)
}
