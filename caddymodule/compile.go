package caddymodule

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fold"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	defaultMaxBody    = 64 << 10
	largestMaxBody    = 16 << 20
	defaultMaxWaiting = 1000
	mostAtOnce        = 1_000_000
)

// A compilation turns a zone of the JSON config into the rule that requests meet. It
// does not change the zone.
type compilation struct {
	Zone          // with defaults
	written *Zone // without them
	rule    *decision.Rule
	plans   map[string]leakybucket.Limit
}

// compile checks the zone as far as possible without loading matchers and files, and
// returns its rule without these.
func (z *Zone) compile(plans map[string]leakybucket.Limit) (*decision.Rule, error) {
	if !zoneName.MatchString(z.Name) {
		return nil, fmt.Errorf("invalid zone name %q: want letters, digits, _, . and -", z.Name)
	}
	c := compilation{Zone: z.withDefaults(), written: z, rule: &decision.Rule{Name: z.Name}, plans: plans}
	for _, compile := range []func() error{
		c.checkShare, c.compileLimit, c.compileNumbers, c.compileWords, c.compileRoutes, c.compileKey,
		c.compileOverrides, c.compileCosts, c.compileSettle, c.compileTrust, c.compileShare, c.compileRanks, c.compileWaits, c.compileBlock, c.checkMatchers,
	} {
		if err := compile(); err != nil {
			return nil, fmt.Errorf("zone %q: %w", z.Name, err)
		}
	}
	return c.rule, nil
}

// withDefaults returns the zone with its defaults filled in, so that definitions with
// the same meaning are equal.
func (z *Zone) withDefaults() Zone {
	full := *z
	if len(full.Share) > 0 {
		full.shareDefaults()
	}
	if len(full.Key) == 0 {
		full.Key = []KeySource{{Source: "client_ip"}}
	}
	for _, n := range zoneNumbers {
		if value := n.of(&full); *value == 0 {
			*value = n.standard
		}
	}
	for _, w := range zoneWords {
		if value := w.of(&full); *value == "" {
			*value = w.words[0]
		}
	}
	if full.LogRefused == "" {
		full.LogRefused = logAll
	}
	if full.RetryAfter == "" {
		full.RetryAfter = retryEmpty
	}
	if full.MaxBody == 0 {
		full.MaxBody = defaultMaxBody
	}
	if full.TrustDevices != nil && full.TrustDevices.For == 0 {
		full.TrustDevices = &TrustDevices{Cookie: full.TrustDevices.Cookie, For: defaultTrust}
	}
	return full
}

// definition returns a canonical text of the zone: definitions of one name must have
// the same.
func (z *Zone) definition() (string, error) {
	full := z.withDefaults()
	raw, err := json.Marshal(&full)
	if err != nil {
		return "", err
	}
	// Matchers are raw JSON. A map forgets their order and white space.
	var value map[string]any
	if err := json.Unmarshal(raw, &value); err != nil {
		return "", err
	}
	raw, err = json.Marshal(value)
	return string(raw), err
}

// twinZones are the names of one handler's zones by the rest of their definitions.
type twinZones map[string]string

// add refuses a zone that differs from an earlier one only in its name, because it
// would charge each request twice. The definition is the zone's JSON.
func (t twinZones) add(name, definition string) error {
	var fields map[string]any
	if err := json.Unmarshal([]byte(definition), &fields); err != nil {
		return err
	}
	delete(fields, "name")
	nameless, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if twin, found := t[string(nameless)]; found {
		return fmt.Errorf("zones %q and %q of one throttle directive are the same but for their names, and would refuse the same requests: remove one", twin, name)
	}
	t[string(nameless)] = name
	return nil
}

// An optionError is about one option of a zone. It tells the Caddyfile adapter which
// line is wrong.
type optionError struct {
	option string
	at     int // index, for options that may be repeated
	error
}

// Unwrap returns the error without the option.
func (e *optionError) Unwrap() error { return e.error }

// about returns err as an error about an option, or nil if err is nil.
func about(option string, at int, err error) error {
	if err == nil {
		return nil
	}
	return &optionError{option, at, err}
}

// A zoneNumber is an option of a zone that is a whole number, with its default and
// range.
type zoneNumber struct {
	option              string
	of                  func(*Zone) *int
	standard, min, most int
}

var zoneNumbers = []zoneNumber{
	{"ipv4_prefix", func(z *Zone) *int { return &z.IPv4Prefix }, 32, 1, 32},
	{"ipv6_prefix", func(z *Zone) *int { return &z.IPv6Prefix }, 64, 1, 128},
	{"status", func(z *Zone) *int { return &z.Status }, http.StatusTooManyRequests, 400, 599},
	{"enforce", func(z *Zone) *int { return &z.Enforce }, 100, 1, 100},
	{"retry_jitter", func(z *Zone) *int { return &z.RetryJitter }, 0, 0, 100},
	{"in_flight", func(z *Zone) *int { return &z.InFlight }, 0, 0, mostAtOnce},
	{"max_waiting", func(z *Zone) *int { return &z.MaxWaiting }, defaultMaxWaiting, 1, mostAtOnce},
}

// keyPolicies are the words of missing_key and unlisted_key.
var keyPolicies = []string{string(decision.ByClientIP), string(decision.Share), string(decision.Skip), string(decision.Refuse)}

// zoneWords are the options of a zone with one of a few words. The first word is the
// default.
var zoneWords = []struct {
	option string
	of     func(*Zone) *string
	words  []string
}{
	{"missing_key", func(z *Zone) *string { return &z.MissingKey }, keyPolicies},
	{"unlisted_key", func(z *Zone) *string { return &z.UnlistedKey }, append([]string{""}, keyPolicies...)},
	{"on_store_error", func(z *Zone) *string { return &z.OnStoreError }, append([]string{""}, storePolicies...)},
	{"refuse", func(z *Zone) *string { return &z.Refuse }, []string{refusePage, refuseError}},
	{"support_code", func(z *Zone) *string { return &z.SupportCode }, []string{switchOn, switchOff}},
}

func (c *compilation) compileLimit() error {
	if c.InFlight != 0 && c.Capacity == 0 && c.Leak == "" {
		return c.checkBucketless()
	}
	if c.Capacity == 0 {
		return errors.New("no capacity given: want capacity <number>, how much a bucket holds")
	}
	if c.Leak == "" {
		return errors.New("no leak given: want leak <number>/<s|m|h|d>, how fast a bucket drains")
	}
	leak, err := leakybucket.ParseRate(c.Leak)
	if err != nil {
		return about("leak", 0, fmt.Errorf("parsing leak: %w", err))
	}
	c.rule.Limit = leakybucket.Limit{Capacity: c.Capacity, Leak: leak}
	return about("leak", 0, c.rule.Limit.Validate())
}

// checkBucketless refuses options that need a bucket in a zone that has none.
func (c *compilation) checkBucketless() error {
	for _, o := range []struct {
		option string
		given  bool
	}{
		{"cost", len(c.Cost) > 0},
		{"unread_body_cost", c.UnreadBodyCost != nil},
		{"settle", c.Settle != nil},
		{"debt", c.Debt != nil},
		{"trust_devices", c.TrustDevices != nil},
		{"delay", c.Delay != nil},
		{"block", c.Block != nil},
		{"retry_after", c.written.RetryAfter != ""},
		{"retry_jitter", c.RetryJitter != 0},
	} {
		if o.given {
			return about(o.option, 0, fmt.Errorf("%s has no meaning without capacity and leak: the zone only limits how many requests are in flight", o.option))
		}
	}
	return nil
}

func (c *compilation) compileNumbers() error {
	for _, n := range zoneNumbers {
		if value := *n.of(&c.Zone); value < n.min || value > n.most {
			return about(n.option, 0, fmt.Errorf("invalid %s %d: want a number from %d to %d", n.option, value, n.min, n.most))
		}
	}
	c.rule.Status, c.rule.Enforce = c.Status, c.Enforce
	c.rule.InFlight, c.rule.MaxWaiting = c.InFlight, c.MaxWaiting
	c.rule.RetryJitter = float64(c.RetryJitter) / 100
	c.rule.Key.IPv4Bits, c.rule.Key.IPv6Bits = c.IPv4Prefix, c.IPv6Prefix
	return nil
}

func (c *compilation) compileWords() error {
	for _, w := range zoneWords {
		if value := *w.of(&c.Zone); !slices.Contains(w.words, value) {
			return about(w.option, 0, fmt.Errorf("invalid %s %q: want one of %s", w.option, value, strings.TrimPrefix(strings.Join(w.words, ", "), ", ")))
		}
	}
	if _, err := parseLogRefused(c.LogRefused); err != nil {
		return about("log_refused", 0, err)
	}
	switch {
	case c.UnlistedKey != "" && len(c.Override) == 0 && c.OverrideFile == "":
		return about("unlisted_key", 0, errors.New("unlisted_key has no meaning without override or override_file"))
	case c.ShadowTogether && !c.Shadow:
		return about("shadow", 0, errors.New("shadow_together has no meaning without shadow"))
	case c.Shadow && c.Enforce != 100:
		return about("enforce", 0, errors.New("enforce and shadow exclude each other: want shadow for a dry run of all keys, or enforce <percent> for one of the others"))
	case c.Page != "" && c.PageHTML != nil:
		return about("page", 0, errors.New("page and page_html exclude each other: want page, which is a file, or page_html, which is its content"))
	case (c.Page != "" || c.PageHTML != nil) && c.PageStyle != nil:
		return about("page", 0, errors.New("page_style and page or page_html exclude each other: a page of your own has its own style"))
	case (c.Page != "" || c.PageHTML != nil || c.PageStyle != nil) && c.Refuse == refuseError:
		return about("page", 0, errors.New("page and refuse error exclude each other: error routes write their own page"))
	}
	if c.PageStyle != nil {
		if err := c.PageStyle.style().Validate(); err != nil {
			return about("page", 0, fmt.Errorf("parsing page: %w", err))
		}
	}
	c.rule.Key.Missing, c.rule.Key.Unlisted = decision.Policy(c.MissingKey), decision.Policy(c.UnlistedKey)
	c.rule.AsError = c.Refuse == refuseError
	if c.Shadow {
		c.rule.Shadow = decision.ShadowOwn
	}
	if c.ShadowTogether {
		c.rule.Shadow = decision.ShadowBeside
	}
	c.rule.ServerTiming, c.rule.ZoneHeader, c.rule.SupportCode = c.ServerTiming, c.ZoneHeader, c.SupportCode == switchOn
	if c.Message != "" {
		if err := checkMessage(c.Message); err != nil {
			return about("message", 0, err)
		}
	}
	c.rule.Message = c.Message
	switch c.RetryAfter {
	case retryEmpty:
		c.rule.RetryEmpty = true
	case retryFit:
	default:
		floor, err := caddy.ParseDuration(c.RetryAfter)
		if err != nil || floor <= 0 {
			return about("retry_after", 0, fmt.Errorf("invalid retry_after %q: want empty, fit, or a duration such as 30s", c.RetryAfter))
		}
		c.rule.RetryFloor = floor
	}
	return nil
}

// longestMessage is how many letters a message may have, which are read on phones.
const longestMessage = 300

// markup is what WordPress's editor takes for HTML. It drops messages with that.
var markup = regexp.MustCompile(`</?[^>]*>`)

// checkMessage refuses messages that people would not see, or not as they were meant.
func checkMessage(text string) error {
	letters := utf8.RuneCountInString(text)
	switch {
	case strings.TrimSpace(text) == "":
		return errors.New("the message is blank: want what a refused person should read")
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("invalid message %q: want one line of plain text", text)
	case markup.MatchString(text):
		return fmt.Errorf("invalid message %q: want plain text without HTML; page <file> is for that", text)
	case letters > longestMessage:
		return fmt.Errorf("the message has %d letters: want at most %d", letters, longestMessage)
	}
	return nil
}

func (c *compilation) compileRoutes() error {
	seen := make(map[string]bool)
	for i, route := range c.Route {
		var err error
		switch {
		case route.Name == "" || len(route.Path) == 0:
			err = errors.New("incomplete route: want a name and at least one path")
		case route.Name == decision.OtherRoute:
			err = fmt.Errorf("invalid route name %q: paths that match no route have this name", route.Name)
		case seen[route.Name]:
			err = fmt.Errorf("route %q is given twice: want all its paths on one line", route.Name)
		}
		if err != nil {
			return about("route", i, err)
		}
		seen[route.Name] = true
		c.rule.Key.Routes = append(c.rule.Key.Routes, decision.Route{Name: route.Name, Path: slices.Clone(route.Path)})
	}
	return nil
}

func (c *compilation) compileOverrides() error {
	var addresses, digests []bool
	for i := range c.rule.Key.Parts {
		part := &c.rule.Key.Parts[i]
		addresses, digests = append(addresses, part.ClientIP), append(digests, part.Digest)
	}
	config := bucketkey.TableConfig{
		Own: c.rule.Limit, Plans: c.plans, Overrides: slices.Clone(c.Override),
		Addresses: addresses, Digests: digests, IPv4Bits: c.IPv4Prefix, IPv6Bits: c.IPv6Prefix,
	}
	lines, err := override.NewLines(config, c.prepareOverride)
	var wrong *bucketkey.OverrideError
	if errors.As(err, &wrong) {
		return about("override", wrong.Override, err)
	}
	c.rule.Key.Overrides = lines
	return err
}

// prepareOverride checks an override, and folds names in it as keys have them.
func (c *compilation) prepareOverride(o *bucketkey.Override) error {
	if o.As != "" && c.TrustDevices != nil {
		return errors.New("as and trust_devices exclude each other: a device is trusted with one account")
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

// compileWaits checks the options of queues and slots.
func (c *compilation) compileWaits() error {
	if c.Delay != nil {
		if err := c.checkDelay(*c.Delay); err != nil {
			return about("delay", 0, err)
		}
	}
	switch {
	case c.MaxWait < 0:
		return about("max_wait", 0, fmt.Errorf("invalid max_wait %v: want a duration above 0, such as 10s", time.Duration(c.MaxWait)))
	case c.MaxWait > 0 && c.Delay == nil && !c.rule.Bucketless():
		return about("max_wait", 0, errors.New("max_wait has no meaning without delay: a request that fits passes at once"))
	}
	switch {
	case c.RequestBuffer < 0 || c.RequestBuffer > mostBuffered:
		return about("request_buffer", 0, fmt.Errorf("invalid request_buffer %d: want from 1 byte to 64MiB", c.RequestBuffer))
	case c.RequestBuffer > 0 && c.InFlight == 0:
		return about("request_buffer", 0, errors.New("request_buffer has no meaning without in_flight: it buffers the body before a slot is taken"))
	}
	c.rule.Delay, c.rule.MaxWait = c.Delay, time.Duration(c.MaxWait)
	switch {
	case c.WarmUp < 0:
		return about("warm_up", 0, fmt.Errorf("invalid warm_up %v: want a duration above 0, such as 30s", time.Duration(c.WarmUp)))
	case c.WarmUp > 0 && c.InFlight == 0:
		return about("warm_up", 0, errors.New("warm_up has no meaning without in_flight: it lets the slots grow"))
	}
	c.rule.RequestBuffer, c.rule.WarmUp = c.RequestBuffer, time.Duration(c.WarmUp)
	if c.written.MaxWaiting != 0 && !c.rule.LetsWait() {
		return about("max_waiting", 0, errors.New("max_waiting has no meaning: requests wait only with delay, or with in_flight and max_wait"))
	}
	return nil
}

// checkDelay refuses delays that never delay a request.
func (c *compilation) checkDelay(undelayed float64) error {
	if !(undelayed >= 0) {
		return fmt.Errorf("invalid delay %v: want a number of units that pass undelayed, or nothing", undelayed)
	}
	if c.Settle != nil && c.Settle.After {
		return errors.New("delay and settle ... after exclude each other: a request that reserves nothing has no place in the queue")
	}
	least := 0.0
	if costs := c.constants(c.rule); len(costs) > 0 {
		least = slices.Min(costs)
	}
	if undelayed+least >= c.rule.Limit.Capacity {
		return fmt.Errorf("delay %v delays nothing: every request that fits a capacity of %v passes undelayed; want a larger capacity, since the queue is part of it", undelayed, c.rule.Limit.Capacity)
	}
	return nil
}

// longestWait returns how long a request of the rule may wait.
func longestWait(r *decision.Rule) time.Duration {
	if r.Delay == nil {
		return r.MaxWait
	}
	longest := r.Limit.Delay(r.Limit.Capacity, *r.Delay)
	if r.MaxWait > 0 {
		longest = min(longest, r.MaxWait)
	}
	return longest
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
		return about("block", 0, err)
	}
	if c.Block.Everywhere && (len(c.rule.Key.Parts) != 1 || !c.rule.Key.HasAddress()) {
		return about("block", 0, errors.New("block ... everywhere needs the key client_ip alone: other keys do not identify a client in every zone"))
	}
	c.rule.Block = ladder
	return nil
}

// checkMatchers refuses matchers that do not mean what they seem to.
func (c *compilation) checkMatchers() error {
	for i, set := range c.Match {
		err := checkMatcherSet(set)
		if err == nil {
			err = checkTails(set)
		}
		if err != nil {
			return about("match", i, err)
		}
	}
	for i, set := range c.Exempt {
		if err := checkMatcherSet(set); err != nil {
			return about("exempt", i, err)
		}
	}
	for i := range c.Cost {
		err := checkMatcherSets(c.Cost[i].Match)
		if n, plain := leakybucket.ParseCost(c.Cost[i].Value); err == nil && !(plain && n <= 1) {
			for _, set := range c.Cost[i].Match {
				err = cmp.Or(err, checkTails(set))
			}
		}
		if err != nil {
			return about("cost", i, err)
		}
	}
	for i, route := range c.Route {
		err := checkPathList(route.Path)
		if err == nil {
			err = checkTailsOf(route.Path)
		}
		if err != nil {
			return about("route", i, fmt.Errorf("route %q: %w", route.Name, err))
		}
	}
	return nil
}

// load adds matchers, the page and static files to the zone's rule.
func (z *Zone) load(ctx caddy.Context, rule *decision.Rule) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("zone %q: %w", z.Name, err)
		}
	}()
	if rule.Match, err = loadMatchers(ctx, z, "Match", z.Match); err != nil {
		return err
	}
	if rule.Exempt, err = loadMatchers(ctx, z, "Exempt", z.Exempt); err != nil {
		return err
	}
	for i := range z.Cost {
		if rule.Cost.Lines[i].Match, err = loadMatchers(ctx, &z.Cost[i], "Match", z.Cost[i].Match); err != nil {
			return err
		}
	}
	for i := range rule.Key.Routes {
		if err = rule.Key.Routes[i].Path.Provision(ctx); err != nil {
			return err
		}
	}
	if err = z.loadRanks(ctx, rule); err != nil {
		return err
	}
	if rule.Page, err = z.loadPage(); err != nil {
		return err
	}
	if static, err := z.ExemptStaticFiles.load(ctx); err != nil {
		return err
	} else if static != nil {
		rule.Static = append(rule.Static, static)
	}
	return nil
}

// loadMatchers provisions the matcher sets in a field of a module. If there are none,
// it returns nil.
func loadMatchers(ctx caddy.Context, module any, field string, raw caddyhttp.RawMatcherSets) (decision.Matchers, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	for _, set := range raw {
		if len(set) == 0 {
			return nil, errors.New("loading matchers: a set without matchers would match everything")
		}
	}
	loaded, err := ctx.LoadModule(module, field)
	if err != nil {
		return nil, fmt.Errorf("loading matchers: %w", err)
	}
	sets := new(caddyhttp.MatcherSets)
	if err := sets.FromInterface(loaded); err != nil {
		return nil, err
	}
	return sets, nil
}

// parsePlans parses the named limits.
func parsePlans(plans map[string]string) (map[string]leakybucket.Limit, error) {
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
