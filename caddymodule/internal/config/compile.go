package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Compile checks the zone as far as possible without loading matchers and files, and
// returns its rule without these. It does not change the zone.
func (z *Zone) Compile(plans map[string]leakybucket.Limit) (*rule.Rule, error) {
	if err := CheckZoneName(z.Name); err != nil {
		return nil, err
	}
	full, r := z.WithDefaults(), &rule.Rule{Name: z.Name}
	err := cmp.Or( // each part after those that it asks; all are compiled, and the first error counts
		among("on_store_error", full.OnStoreError, StorePolicies...),
		full.Shadow.compile(r, full.Enforce),
		full.checkTogether(z),
		compileLimit(full.Limit, r),
		compileRoutes(full.Route, &r.Key),
		full.Key.compile(&r.Key),
		full.checkKey(),
		compileOverrides(full.Override, r, plans, full.TrustDevices != nil),
		compileCosts(full.Cost, r, full.Settle != nil || full.InFlight != nil),
		full.ReadBody.compile(r, z.ReadBody != nil),
		full.Settle.compile(r),
		compileRefunds(full.Refund, r),
		full.TrustDevices.compile(r, full.Key.Sources),
		full.Delay.compile(r),
		full.InFlight.compile(r, z.InFlight, !full.Key.Plain),
		full.Block.compile(r),
		full.Refusal.compile(r, z.Refusal),
		checkMatching(full.Match, full.Exempt),
	)
	if err != nil {
		return nil, fmt.Errorf("zone %q: %w", z.Name, err)
	}
	r.Key.Listed = len(z.Override) > 0 || z.OverrideFile != ""
	return r, nil
}

// Load completes the rule that Compile has returned. After that only override_file changes it.
func (z *Zone) Load(ctx caddy.Context, r *rule.Rule, given Given) error {
	if given.Shadow && r.Shadow == 0 {
		r.Shadow = rule.ShadowGlobal
	}
	if r.Trust != nil {
		r.Trust.Insecure, r.Trust.Keys = given.Insecure, given.Keys()
	}
	err := cmp.Or(
		z.loadMatching(ctx, r, &given),
		loadCosts(ctx, z.Cost, r),
		z.InFlight.load(ctx, r, &given),
	)
	if err != nil {
		return fmt.Errorf("zone %q: %w", z.Name, err)
	}
	return nil
}

func (z *Zone) loadMatching(ctx caddy.Context, r *rule.Rule, given *Given) (err error) {
	if r.Match, err = LoadMatchers(ctx, z, "Match", z.Match); err != nil {
		return err
	}
	if r.Exempt, err = LoadMatchers(ctx, z, "Exempt", z.Exempt); err != nil {
		return err
	}
	r.Static, err = LoadStatic(ctx, z.ExemptStaticFiles)
	r.Static = append(r.Static, given.Static...)
	return err
}

// WithDefaults returns the zone with its defaults filled in, so that definitions with
// the same meaning are equal. Key, refusal and read_body are never nil in it.
func (z *Zone) WithDefaults() Zone {
	full := Zone{
		Key:      &Key{Missing: string(rule.ByClientIP), IPv4: 32, IPv6: 64},
		ReadBody: &ReadBody{Most: "64KiB"},
		Refusal:  &Refusal{Status: http.StatusTooManyRequests, RetryAfter: retryEmpty, Log: logAll},
		Enforce:  100,
	}
	key := KeySource{Source: "client_ip"}
	switch {
	case z.InFlight.shares():
		key = KeySource{Source: "text", Text: "all"}
		full.InFlight = &InFlight{Wait: caddy.Duration(5 * time.Second), Queue: 200}
		full.Refusal.Status = http.StatusServiceUnavailable
	case z.InFlight != nil:
		full.InFlight = &InFlight{Queue: 1000}
	}
	if len(z.Key.Given()) == 0 {
		full.Key.Sources = []KeySource{key}
	}
	if z.Delay != nil {
		full.Delay = &Delay{Queue: 1000}
	}
	if z.TrustDevices != nil {
		full.TrustDevices = &TrustDevices{For: caddy.Duration(180 * 24 * time.Hour)}
	}
	given, _ := json.Marshal(z) // its matchers have been JSON before
	_ = json.Unmarshal(given, &full)
	if capacity, leak, found := strings.Cut(z.Limit, " "); found {
		if n, err := leakybucket.ParseCapacity(capacity); err == nil {
			full.Limit = strconv.FormatFloat(n, 'f', -1, 64) + " " + leak
		}
	}
	return full
}

// checkTogether checks parts beside each other, while each checks itself. It refuses a zone
// without a limit or slots, and what makes no sense without one of these, or with share. The
// zone has its defaults, and written has not. Its errors come before those of the parts.
func (z *Zone) checkTogether(written *Zone) error {
	shares := z.InFlight.shares()
	keyless := shares && written.Key.Given() == nil
	limited := func(option string, given bool) error {
		return refuse(option, given && z.Limit == "", "%s has no meaning without limit: the zone only limits how many requests are in flight", option)
	}
	return cmp.Or(
		refuse("limit", shares && z.Limit != "", "limit and in_flight ... share exclude each other: a zone with share limits how many requests are in flight, so give the bucket a zone of its own"),
		refuse("override", keyless && len(z.Override) > 0, "override has no meaning with share and without key, because all clients have one key: want exempt client_ip <network> for those who need no slot"),
		refuse("override_file", keyless && z.OverrideFile != "", "override_file has no meaning with share and without key, because all clients have one key"),
		refuse("enforce", shares && z.Enforce != 100, "enforce has no meaning with share, because all clients take turns for the same slots: want shadow for a dry run"),
		refuse("limit", z.Limit == "" && z.InFlight == nil, "no limit given: want limit <capacity> <leak>, such as limit 120 2/s"),
		limited("cost", len(z.Cost) > 0),
		limited("settle", z.Settle != nil),
		limited("refund", len(z.Refund) > 0),
		refuse("refund", len(z.Refund) > 0 && z.Settle != nil, "refund and settle exclude each other: refund gives back what success costs, and settle replaces the charge by another one"),
		limited("trust_devices", z.TrustDevices != nil),
		limited("delay", z.Delay != nil),
		limited("block", z.Block != nil),
	)
}

// checkKey refuses what has no meaning with the key.
func (z *Zone) checkKey() error {
	if len(z.Route) > 0 && !namesRoute(z.Key.Sources) && !(z.InFlight.shares() && namesRoute(z.InFlight.Share)) {
		return About("route", 0, fmt.Errorf("route %q has no effect: want \"route\" among the sources of the key", z.Route[0].Name))
	}
	return refuse("key unlisted", z.Key.Unlisted != "" && len(z.Override) == 0 && z.OverrideFile == "", "unlisted has no meaning without override or override_file")
}

// Given is what the rule of a zone takes from outside of its definition.
type Given struct {
	Shadow     bool                  // the global options put all zones there
	Static     []*staticfile.Matcher // what they exempt
	Keys       func() *signer.Ring
	Passes     *clientpass.Memory
	PassesFull func() // see [clientpass.Zone]
	Insecure   func() // see [clientpass.Zone] and [device.Trust]
}

// compileLimit compiles the limit, which a zone with in_flight need not have.
func compileLimit(limit string, r *rule.Rule) (err error) {
	if limit == "" {
		return nil
	}
	if r.Limit, err = leakybucket.ParseLimit(limit); err != nil {
		err = fmt.Errorf("parsing limit: %w", err)
	}
	return About("limit", 0, err)
}
