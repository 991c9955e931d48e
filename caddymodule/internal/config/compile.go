package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A compilation turns a zone of the JSON config into the rule that requests meet. It
// does not change the zone.
type compilation struct {
	Zone          // with defaults
	written *Zone // without them
	rule    *rule.Rule
	plans   map[string]leakybucket.Limit
}

// Compile checks the zone as far as possible without loading matchers and files, and
// returns its rule without these.
func (z *Zone) Compile(plans map[string]leakybucket.Limit) (*rule.Rule, error) {
	if err := CheckZoneName(z.Name); err != nil {
		return nil, err
	}
	c := compilation{Zone: z.WithDefaults(), written: z, rule: &rule.Rule{Name: z.Name}, plans: plans}
	for _, compile := range []func() error{
		c.compileMode, c.checkShare, c.compileLimit, c.compileRoutes, c.compileKey, c.compileOverrides, c.compileCosts,
		c.compileParts, c.compileBlock, c.compileRefusal, c.checkMatchers,
	} {
		if err := compile(); err != nil {
			return nil, fmt.Errorf("zone %q: %w", z.Name, err)
		}
	}
	for _, cost := range constants(z.Cost, c.rule) {
		c.rule.MaxCost = max(c.rule.MaxCost, cost)
	}
	return c.rule, nil
}

// WithDefaults returns the zone with its defaults filled in, so that definitions with
// the same meaning are equal. Key, refusal and read_body are never nil in it.
func (z *Zone) WithDefaults() Zone {
	full := *z
	full.Key = z.Key.withDefaults(z.InFlight.shares())
	full.Refusal = z.Refusal.withDefaults(z.InFlight.shares())
	full.ReadBody = z.ReadBody.withDefaults()
	full.Enforce = cmp.Or(full.Enforce, 100)
	if capacity, leak, found := strings.Cut(z.Limit, " "); found {
		if n, err := leakybucket.ParseCapacity(capacity); err == nil {
			full.Limit = strconv.FormatFloat(n, 'f', -1, 64) + " " + leak
		}
	}
	if z.InFlight != nil {
		full.InFlight = z.InFlight.withDefaults()
	}
	if z.Delay != nil {
		delay := *z.Delay
		delay.Queue = cmp.Or(delay.Queue, defaultQueue)
		full.Delay = &delay
	}
	if z.TrustDevices != nil && z.TrustDevices.For == 0 {
		full.TrustDevices = &TrustDevices{Cookie: z.TrustDevices.Cookie, For: defaultTrust}
	}
	return full
}

// Definition returns a canonical text of the zone: definitions of one name must have
// the same.
func (z *Zone) Definition() (string, error) {
	full := z.WithDefaults()
	raw, err := json.Marshal(&full)
	if err != nil {
		return "", err
	}
	return canonical(raw)
}

// canonical returns JSON without fields of some names. Matchers are raw JSON: a map forgets
// their order and white space.
func canonical(raw []byte, without ...string) (string, error) {
	var value map[string]any
	if err := json.Unmarshal(raw, &value); err != nil {
		return "", err
	}
	for _, name := range without {
		delete(value, name)
	}
	raw, err := json.Marshal(value)
	return string(raw), err
}

// Duplicates are the names of one handler's zones by the rest of their definitions.
type Duplicates map[string]string

// Add refuses a zone that differs from an earlier one only in its name, because it
// would charge each request twice. The definition is the zone's JSON.
func (d Duplicates) Add(name, definition string) error {
	nameless, err := canonical([]byte(definition), "name")
	if err != nil {
		return err
	}
	if other, found := d[nameless]; found {
		return fmt.Errorf("zones %q and %q of one throttle directive are the same but for their names, and would refuse the same requests: remove one", other, name)
	}
	d[nameless] = name
	return nil
}

func (c *compilation) compileLimit() error {
	if c.Limit == "" {
		if c.InFlight == nil {
			return errors.New("no limit given: want limit <capacity> <leak>, such as limit 120 2/s")
		}
		return c.checkBucketless()
	}
	limit, err := leakybucket.ParseLimit(c.Limit)
	if err != nil {
		return About("limit", 0, fmt.Errorf("parsing limit: %w", err))
	}
	c.rule.Limit = limit
	c.rule.MayRefuse(rule.Capacity, rule.Oversize)
	return nil
}

// checkBucketless refuses options that need a bucket in a zone that has none.
func (c *compilation) checkBucketless() error {
	for option, given := range map[string]bool{
		"cost": len(c.Cost) > 0, "settle": c.Settle != nil, "trust_devices": c.TrustDevices != nil, "delay": c.Delay != nil, "block": c.Block != nil,
	} {
		if given {
			return About(option, 0, fmt.Errorf("%s has no meaning without limit: the zone only limits how many requests are in flight", option))
		}
	}
	return nil
}

// compileMode compiles for whom the zone is enforced, and what happens without a store.
func (c *compilation) compileMode() error {
	switch {
	case c.Shadow != nil && c.Enforce != 100:
		return About("enforce", 0, errors.New("enforce and shadow exclude each other: want shadow for a dry run of all keys, or enforce <percent> for one of the others"))
	case c.OnStoreError != "" && !slices.Contains(StorePolicies, c.OnStoreError):
		return About("on_store_error", 0, text.Unknown("word", c.OnStoreError, " after on_store_error", StorePolicies))
	}
	c.rule.Enforce = c.Enforce
	if c.Shadow != nil {
		c.rule.Shadow = rule.ShadowOwn
		if c.Shadow.Together {
			c.rule.Shadow = rule.ShadowBeside
		}
	}
	c.rule.ServerTiming = c.Shadow != nil && c.Shadow.ServerTiming
	return within("enforce", c.Enforce, 1, 100)
}

func (c *compilation) compileRoutes() error {
	seen := make(map[string]bool)
	for i, route := range c.Route {
		var err error
		switch {
		case route.Name == "" || len(route.Path) == 0:
			err = errors.New("incomplete route: want a name and at least one path")
		case route.Name == rule.OtherRoute:
			err = fmt.Errorf("invalid route name %q: paths that match no route have this name", route.Name)
		case seen[route.Name]:
			err = fmt.Errorf("route %q is given twice: want all its paths on one line", route.Name)
		}
		if err != nil {
			return About("route", i, err)
		}
		seen[route.Name] = true
		c.rule.Key.Routes = append(c.rule.Key.Routes, rule.Route{Name: route.Name, Path: slices.Clone(route.Path)})
	}
	return nil
}

// checkShare refuses what makes no sense in a zone with share. It comes before the key is
// compiled, and so before its errors.
func (c *compilation) checkShare() error {
	if !c.InFlight.shares() {
		return nil
	}
	switch {
	case c.Limit != "":
		return About("limit", 0, errors.New("limit and in_flight ... share exclude each other: a zone with share limits how many requests are in flight, so give the bucket a zone of its own"))
	case c.written.Key.Given() == nil && len(c.Override) > 0:
		return About("override", 0, errors.New("override has no meaning with share and without key, because all clients have one key: want exempt client_ip <network> for those who need no slot"))
	case c.written.Key.Given() == nil && c.OverrideFile != "":
		return About("override_file", 0, errors.New("override_file has no meaning with share and without key, because all clients have one key"))
	case c.Enforce != 100:
		return About("enforce", 0, errors.New("enforce has no meaning with share, because all clients take turns for the same slots: want shadow for a dry run"))
	}
	return nil
}

func (c *compilation) compileKey() error {
	if err := c.Key.compile(&c.rule.Key); err != nil {
		return err
	}
	c.rule.EnforcedRefusals = c.rule.EnforcedRefusals.With(rule.EarlyData)
	if c.rule.Key.Missing == rule.Refuse {
		c.rule.MayRefuse(rule.MissingKey)
	}
	if c.rule.Key.Unlisted == rule.Refuse {
		c.rule.MayRefuse(rule.UnlistedKey)
	}
	c.rule.Key.Private = slices.ContainsFunc(c.Key.Sources, func(k KeySource) bool { return k.private() })
	switch {
	case c.Key.Unlisted != "" && len(c.Override) == 0 && c.OverrideFile == "":
		return About("key unlisted", 0, errors.New("unlisted has no meaning without override or override_file"))
	case len(c.Route) > 0 && !namesRoute(c.Key.Sources) && !(c.InFlight.shares() && namesRoute(c.InFlight.Share)):
		return About("route", 0, fmt.Errorf("route %q has no effect: want \"route\" among the sources of the key", c.Route[0].Name))
	}
	return nil
}

func (c *compilation) compileCosts() error {
	costing, err := compileCosts(c.Cost, c.rule, c.Settle != nil || c.InFlight != nil)
	if err != nil {
		return err
	}
	return c.ReadBody.compile(c.rule, costing, c.written.ReadBody != nil)
}

// compileParts compiles the parts of the zone that it may lack, each after those that it asks.
func (c *compilation) compileParts() (err error) {
	costs := constants(c.Cost, c.rule)
	if c.Settle != nil {
		err = c.Settle.compile(c.rule, costs)
	}
	if err == nil && c.TrustDevices != nil {
		err = c.TrustDevices.compile(c.rule, c.Key.Sources)
	}
	if err == nil && c.Delay != nil {
		err = c.Delay.compile(c.rule, costs)
	}
	if err == nil && c.InFlight != nil {
		err = c.InFlight.compile(c.rule, c.written.InFlight, !c.Key.Plain)
	}
	return err
}

func (c *compilation) compileRefusal() error { return c.Refusal.compile(c.rule, c.written.Refusal) }

func (c *compilation) compileOverrides() error {
	var addresses, digests []bool
	for i := range c.rule.Key.Parts {
		part := &c.rule.Key.Parts[i]
		addresses, digests = append(addresses, part.ClientIP), append(digests, part.Digest)
	}
	config := bucketkey.TableConfig{
		Own: c.rule.Limit, Plans: c.plans, Overrides: slices.Clone(c.Override),
		Addresses: addresses, Digests: digests, IPv4Bits: c.Key.IPv4, IPv6Bits: c.Key.IPv6,
	}
	lines, err := override.NewLines(config, c.prepareOverride)
	var wrong *bucketkey.OverrideError
	if errors.As(err, &wrong) {
		return About("override", wrong.Override, err)
	}
	c.rule.Key.Overrides = lines
	if err == nil && (c.OverrideFile != "" || !lines.Load().Empty()) {
		c.rule.MayRefuse(rule.Denied)
	}
	return err
}

// prepareOverride checks an override, and folds names in it as keys have them.
func (c *compilation) prepareOverride(o *bucketkey.Override) error {
	if o.As != "" && c.TrustDevices != nil {
		return errors.New("as and trust_devices exclude each other: a device is trusted with one account")
	}
	if network, err := netip.ParsePrefix(strings.Join(o.Parts, " ")); err == nil && network.Bits() == 0 && o.Limit == "unlimited" {
		return errors.New("all clients would be unlimited, so the zone limits nothing: want a smaller network")
	}
	o.Parts = slices.Clone(o.Parts)
	for at, part := range o.Parts {
		if at < len(c.rule.Key.Parts) && c.rule.Key.Parts[at].Fold != nil && !bucketkey.IsDigest(part) {
			if o.Parts[at] = c.rule.Key.Parts[at].Fold(part); o.Parts[at] == fold.Odd {
				return fmt.Errorf("no name: fold wordpress counts all names such as %q together, in the bucket @odd", part)
			}
		}
	}
	return nil
}

func (c *compilation) compileBlock() error {
	if c.Block == nil {
		return nil
	}
	ladder := new(leakybucket.Ladder)
	for _, step := range c.Block.For {
		ladder.Steps = append(ladder.Steps, time.Duration(step))
	}
	if err := ladder.Validate(); err != nil {
		return About("block", 0, err)
	}
	if c.Block.Everywhere && (len(c.rule.Key.Parts) != 1 || !c.rule.Key.HasAddress()) {
		return About("block", 0, errors.New("block ... everywhere needs the key client_ip alone: other keys do not identify a client in every zone"))
	}
	c.rule.Block, c.rule.Everywhere = ladder, c.Block.Everywhere
	c.rule.MayRefuse(rule.Blocked)
	return nil
}

// checkMatchers refuses matchers that do not mean what they seem to.
func (c *compilation) checkMatchers() error {
	for i, set := range c.Match {
		err := cmp.Or(CheckMatcherSet(set), checkTails(set))
		if err == nil && slices.ContainsFunc(excludedBy(set), func(not caddy.ModuleMap) bool { return CheckExempt(not) != nil }) {
			err = errors.New("match has not with a matcher of all requests, so the zone limits nothing: remove it")
		}
		if err != nil {
			return About("match", i, err)
		}
	}
	for i, set := range c.Exempt {
		if err := cmp.Or(CheckMatcherSet(set), CheckExempt(set)); err != nil {
			return About("exempt", i, err)
		}
	}
	charges := func(match caddy.ModuleMap) bool {
		return !slices.ContainsFunc(c.Exempt, func(set caddy.ModuleMap) bool { return reflect.DeepEqual(match, set) })
	}
	if len(c.Match) > 0 && !slices.ContainsFunc(c.Match, charges) {
		return About("exempt", 0, errors.New("exempt has all that match has, so the zone limits nothing: remove one of them"))
	}
	for i := range c.Cost {
		err := CheckMatcherSets(c.Cost[i].Match)
		if n, plain := leakybucket.ParseCost(c.Cost[i].Value); err == nil && !(plain && n <= 1) {
			for _, set := range c.Cost[i].Match {
				err = cmp.Or(err, checkTails(set))
			}
		}
		if err != nil {
			return About("cost", i, err)
		}
	}
	for i, route := range c.Route {
		if err := cmp.Or(checkPathList(route.Path), checkTailsOf(route.Path)); err != nil {
			return About("route", i, fmt.Errorf("route %q: %w", route.Name, err))
		}
	}
	return nil
}

// Doubts says what is probably not meant by the matchers of the zone.
func (z *Zone) Doubts() (doubts []string) {
	for exempts, sets := range []caddyhttp.RawMatcherSets{z.Match, z.Exempt} {
		for _, set := range sets {
			if doubt := Doubtful(set, exempts == 1); doubt != "" {
				doubts = append(doubts, doubt)
			}
		}
	}
	return doubts
}

// Load completes the rule that Compile has returned. After that nothing changes it.
func (z *Zone) Load(ctx caddy.Context, compiled *rule.Rule, given Given) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("zone %q: %w", z.Name, err)
		}
	}()
	if compiled.Match, err = LoadMatchers(ctx, z, "Match", z.Match); err != nil {
		return err
	}
	if compiled.Exempt, err = LoadMatchers(ctx, z, "Exempt", z.Exempt); err != nil {
		return err
	}
	for i := range z.Cost {
		if compiled.Cost.Lines[i].Match, err = LoadMatchers(ctx, &z.Cost[i], "Match", z.Cost[i].Match); err != nil {
			return err
		}
	}
	for i := range compiled.Key.Routes {
		if err = compiled.Key.Routes[i].Path.Provision(ctx); err != nil {
			return err
		}
	}
	if compiled.Share != nil {
		if compiled.Ranks, err = z.InFlight.loadRanks(ctx, z.Name, &given); err != nil {
			return err
		}
	}
	if compiled.Trust != nil {
		compiled.Trust.Insecure = given.Insecure
		compiled.Trust.Keys = given.Keys()
	}
	if given.Shadow && compiled.Shadow == 0 {
		compiled.Shadow = rule.ShadowGlobal
	}
	if z.Refusal != nil {
		if compiled.Page, err = z.Refusal.load(); err != nil {
			return err
		}
	}
	compiled.Static, err = LoadStatic(ctx, z.ExemptStaticFiles)
	compiled.Static = append(compiled.Static, given.Static...)
	return err
}

// ParsePlans parses the named limits.
func ParsePlans(plans map[string]string) (map[string]leakybucket.Limit, error) {
	limits := make(map[string]leakybucket.Limit)
	for name, text := range plans {
		switch {
		case !zoneName.MatchString(name):
			return nil, fmt.Errorf("invalid plan name %q: want letters, digits, _, . and -", name)
		case name == "unlimited" || name == "deny" || name == "as":
			return nil, fmt.Errorf("invalid plan name %q: the word has a meaning of its own in overrides", name)
		}
		limit, err := leakybucket.ParseLimit(text)
		if err != nil {
			return nil, fmt.Errorf("plan %q: %w", name, err)
		}
		limits[name] = limit
	}
	return limits, nil
}
