package caddymodule

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("throttle", parseGlobal)
	httpcaddyfile.RegisterHandlerDirective("throttle", parseDirective)
	// Before anything rewrites the request, so that keys and matchers see the
	// path that the client sent, as the access log does.
	httpcaddyfile.RegisterDirectiveOrder("throttle", httpcaddyfile.Before, "redir")
}

// parseGlobal sets up the app from the global option. Syntax:
//
//	throttle {
//	    store <name> { ... }
//	    exempt { <request matchers> }
//	    plan <name> <capacity> <leak>
//	    zone <name> { ... }
//	    shadow
//	}
func parseGlobal(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // the option's name
	if existing != nil {
		return nil, d.Err("throttle is given twice in the global options: put both into one block")
	}
	if d.NextArg() {
		return nil, d.Errf("unexpected %q: want a block", d.Val())
	}
	d = expanded(d)
	app := new(App)
	seen := make(map[string]bool)
	d.Next()
	for d.NextBlock(0) {
		if err := app.parseOption(d, seen); err != nil {
			return nil, err
		}
	}
	if err := app.checkZones(d); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "throttle", Value: caddyconfig.JSON(app, nil)}, nil
}

// expanded returns a dispenser of the same segment in which the shorthands for
// placeholders are spelled out, as Caddy does it for sites.
func expanded(d *caddyfile.Dispenser) *caddyfile.Dispenser {
	segment := d.NextSegment()
	httpcaddyfile.NewShorthandReplacer().ApplyToSegment(&segment)
	return caddyfile.NewDispenser(segment)
}

func (a *App) parseOption(d *caddyfile.Dispenser, seen map[string]bool) error {
	switch option := d.Val(); option {
	case "store":
		if err := once(d, seen, option); err != nil {
			return err
		}
		return a.parseStore(d)
	case "exempt":
		return parseMatchers(d, &a.Exempt)
	case "plan":
		return a.parsePlan(d)
	case "zone":
		z, err := parseZone(d, noNamedMatchers(d))
		a.Zone = append(a.Zone, z)
		return err
	case "shadow":
		if err := once(d, seen, option); err != nil {
			return err
		}
		return parseFlag(d, &a.Shadow)
	default:
		return unrecognized(d, "the global option throttle", "one of store, exempt, plan, zone, shadow")
	}
}

func (a *App) parseStore(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.Err("store has no name: want store memory")
	}
	name := d.Val()
	if _, err := caddy.GetModule("throttle.stores." + name); err != nil {
		return d.Errf("unknown store %q: want memory, or one that this Caddy was built with", name)
	}
	unmarshaler, err := caddyfile.UnmarshalModule(d, "throttle.stores."+name)
	if err != nil {
		return err
	}
	a.StoreRaw = caddyconfig.JSONModuleObject(unmarshaler, "module", name, nil)
	return nil
}

func (a *App) parsePlan(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) != 3 {
		return d.Errf("%d words after plan: want plan <name> <capacity> <leak>, such as plan partner 100 10/s", len(words))
	}
	name := words[0]
	if _, twice := a.Plan[name]; twice {
		return d.Errf("plan %q is given twice", name)
	}
	plan := map[string]string{name: words[1] + " " + words[2]}
	if _, err := parsePlans(plan); err != nil {
		return d.WrapErr(err)
	}
	if a.Plan == nil {
		a.Plan = plan
	}
	a.Plan[name] = plan[name]
	return nil
}

// checkZones reports here, with the line, what would otherwise be an error
// without one when the config is loaded.
func (a *App) checkZones(d *caddyfile.Dispenser) error {
	plans, err := parsePlans(a.Plan)
	if err != nil {
		return d.WrapErr(err)
	}
	places := make(map[string]string)
	for _, z := range a.Zone {
		if place, twice := places[z.Name]; twice {
			return fmt.Errorf("zone %q is defined twice in the global options, %s and %s", z.Name, place, z.place)
		}
		places[z.Name] = z.place
		if _, err := z.compiled(plans); err != nil {
			return err
		}
	}
	return nil
}

// compiled returns a compiled copy of the zone: the config itself must stay as
// it was written.
func (z *Zone) compiled(plans map[string]leakybucket.Limit) (*Zone, error) {
	copied := *z
	if err := copied.compile(plans); err != nil {
		return nil, fmt.Errorf("%w, %s", err, copied.place)
	}
	copied.place = z.place
	return &copied, nil
}

// parseDirective sets up the handler from Caddyfile tokens. Syntax:
//
//	throttle [<matcher>] <zone>
//	throttle [<matcher>] <zone> <key>... <capacity> <leak>
//	throttle [<matcher>] {
//	    zone <name>
//	    zone <name> { ... }
//	}
func parseDirective(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // the directive's name
	handler := new(Handler)
	if words := h.RemainingArgs(); len(words) > 0 {
		z, err := parseLine(h.Dispenser, words)
		if err != nil {
			return nil, err
		}
		handler.Zone = []*Zone{z}
		if h.NextBlock(0) {
			return nil, h.Err("a zone on the line and a block exclude each other: put the zone into the block")
		}
	} else {
		for h.NextBlock(0) {
			if h.Val() != "zone" {
				return nil, unrecognized(h.Dispenser, "the directive throttle", "zone <name>; what is to hold for all zones stands in the global options")
			}
			z, err := parseZone(h.Dispenser, namedMatchers(h))
			if err != nil {
				return nil, err
			}
			handler.Zone = append(handler.Zone, z)
		}
	}
	return handler, handler.check(h)
}

// parseLine reads a whole zone from one line.
func parseLine(d *caddyfile.Dispenser, words []string) (*Zone, error) {
	z := &Zone{Name: words[0], place: place(d)}
	switch len(words) {
	case 1:
		return z, nil
	case 2:
		return nil, d.Errf("%q stands alone after the zone: want throttle <zone>, or throttle <zone> <key>... <capacity> <leak>", words[1])
	}
	last := len(words) - 2
	capacity, err := leakybucket.ParseCapacity(words[last])
	if err != nil {
		return nil, d.Errf("%w: want throttle <zone> <key>... <capacity> <leak>", err)
	}
	z.Capacity, z.Leak = capacity, words[last+1]
	if z.Key, err = parseKey(words[1:last]); err != nil {
		return nil, d.WrapErr(err)
	}
	return z, nil
}

// check reports here, with the line, what would otherwise be an error without
// one when the config is loaded.
func (handler *Handler) check(h httpcaddyfile.Helper) error {
	if len(handler.Zone) == 0 {
		return h.Err("no zone given: want throttle <zone>, throttle <zone> <key>... <capacity> <leak>, or a block with zones")
	}
	app := new(App)
	if global, ok := h.Option("throttle").(httpcaddyfile.App); ok {
		if err := caddy.StrictUnmarshalJSON(global.Value, app); err != nil {
			return h.WrapErr(err)
		}
	}
	plans, err := parsePlans(app.Plan)
	if err != nil {
		return h.WrapErr(err)
	}
	defined, _ := h.State["throttle"].(map[string]*Zone)
	if defined == nil {
		defined = make(map[string]*Zone)
		for _, z := range app.Zone {
			z.place = "in the global options"
			if defined[z.Name], err = z.compiled(plans); err != nil {
				return err
			}
		}
		h.State["throttle"] = defined
	}
	names := make(map[string]bool)
	for _, z := range handler.Zone {
		if names[z.Name] {
			return fmt.Errorf("zone %q is given twice in one throttle directive, %s", z.Name, z.place)
		}
		names[z.Name] = true
		if z.reference() {
			if !global(app, z.Name) {
				return fmt.Errorf("unknown zone %q, %s: no zone of that name is defined in the global options; define it there, or give it a capacity and a leak here", z.Name, z.place)
			}
			continue
		}
		compiled, err := z.compiled(plans)
		if err != nil {
			return err
		}
		if err := compiled.agree(defined[z.Name]); err != nil {
			return err
		}
		defined[z.Name] = compiled
	}
	return nil
}

func global(app *App, name string) bool {
	for _, z := range app.Zone {
		if z.Name == name {
			return true
		}
	}
	return false
}

// agree reports a definition of the same name that is another one.
func (z *Zone) agree(other *Zone) error {
	if other == nil {
		return nil
	}
	mine, err := z.definition()
	if err != nil {
		return err
	}
	if theirs, err := other.definition(); err != nil || mine != theirs {
		return fmt.Errorf("zone %q is defined twice, and differently, %s and %s: a name is one budget, so give one of them another name", z.Name, other.place, z.place)
	}
	return nil
}

// matcherToken reads a matcher such as @name or /path if the next word on the
// line is one; the word is read in any case.
type matcherToken func() (caddy.ModuleMap, bool, error)

// namedMatchers is the matcherToken of a site.
func namedMatchers(h httpcaddyfile.Helper) matcherToken {
	return func() (caddy.ModuleMap, bool, error) {
		set, matched, err := h.MatcherToken()
		if err != nil {
			err = fmt.Errorf("%w: want one that the site defines", err)
		}
		return set, matched, err
	}
}

// noNamedMatchers is the matcherToken of the global options, where there are
// none.
func noNamedMatchers(d *caddyfile.Dispenser) matcherToken {
	return func() (caddy.ModuleMap, bool, error) {
		if d.NextArg() && strings.ContainsAny(d.Val()[:min(1, len(d.Val()))], "@/*") {
			return nil, false, fmt.Errorf("matcher %q stands in the global options, where there are no named matchers: put the matchers into a block", d.Val())
		}
		return nil, false, nil
	}
}

// parseZone sets up a zone from Caddyfile tokens. Syntax:
//
//	zone <name> {
//	    match { <request matchers> }
//	    exempt { <request matchers> }
//	    key <source>...
//	    missing_key client_ip|share|skip|refuse
//	    plain_keys
//	    ipv4_prefix <bits>
//	    ipv6_prefix <bits>
//	    route <name> <path>...
//	    capacity <n>
//	    leak <n>/<s|m|h|d>
//	    override <part>... <plan>|<capacity> <leak>|unlimited|blocked
//	    cost [<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit> { <request matchers> }
//	    max_body <size>
//	    unread_body_cost <n>
//	    settle seconds|bytes <unit>|header <Name>|status <code|class>... <n> [after]
//	    debt <n>
//	    retry_after empty|fit|<duration>
//	    status <code>
//	    page <file>
//	    refuse page|error
//	    shadow
//	}
func parseZone(d *caddyfile.Dispenser, matcher matcherToken) (*Zone, error) {
	z := new(Zone)
	if err := parseArg(d, &z.Name, parseWord); err != nil {
		return nil, err
	}
	z.place = place(d)
	z.places = make(map[string][]string)
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := z.parseOption(d, seen, matcher); err != nil {
			return nil, err
		}
	}
	return z, nil
}

func (z *Zone) parseOption(d *caddyfile.Dispenser, seen map[string]bool, matcher matcherToken) (err error) {
	option := d.Val()
	z.places[option] = append(z.places[option], place(d))
	switch option {
	case "match":
		return parseMatchers(d, &z.Match)
	case "exempt":
		return parseMatchers(d, &z.Exempt)
	case "route":
		return z.parseRoute(d)
	case "override":
		return z.parseOverride(d)
	case "cost":
		return z.parseCost(d, matcher)
	}
	if err := once(d, seen, option); err != nil {
		return err
	}
	switch option {
	case "key":
		z.Key, err = parseKey(d.RemainingArgs())
		if err == nil && len(z.Key) == 0 {
			err = fmt.Errorf("key has no source: want %s", keySources)
		}
		if err != nil {
			err = d.WrapErr(err)
		}
	case "missing_key":
		err = parseArg(d, &z.MissingKey, parseWord)
	case "plain_keys":
		err = parseFlag(d, &z.PlainKeys)
	case "ipv4_prefix":
		err = parseArg(d, &z.IPv4Prefix, parseWhole(1, 32))
	case "ipv6_prefix":
		err = parseArg(d, &z.IPv6Prefix, parseWhole(1, 128))
	case "capacity":
		err = parseArg(d, &z.Capacity, leakybucket.ParseCapacity)
	case "leak":
		err = parseArg(d, &z.Leak, parseLeak)
	case "max_body":
		err = parseArg(d, &z.MaxBody, parseSize)
	case "unread_body_cost":
		err = parseArg(d, &z.UnreadBodyCost, parseUnits)
	case "settle":
		z.Settle, err = parseSettle(d)
	case "debt":
		err = parseArg(d, &z.Debt, parseUnits)
	case "retry_after":
		err = parseArg(d, &z.RetryAfter, parseWord)
	case "status":
		err = parseArg(d, &z.Status, parseWhole(400, 599))
	case "page":
		err = parseArg(d, &z.Page, parseWord)
	case "refuse":
		err = parseArg(d, &z.Refuse, parseWord)
	case "shadow":
		err = parseFlag(d, &z.Shadow)
	default:
		err = unrecognized(d, fmt.Sprintf("zone %q", z.Name), "one of match, exempt, key, missing_key, plain_keys, ipv4_prefix, ipv6_prefix, route, "+
			"capacity, leak, override, cost, max_body, unread_body_cost, settle, debt, retry_after, status, page, refuse, shadow")
	}
	return err
}

func (z *Zone) parseRoute(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	if len(words) < 2 {
		return d.Err("too few words after route: want route <name> <path>...")
	}
	z.Route = append(z.Route, Route{Name: words[0], Path: words[1:]})
	return nil
}

func (z *Zone) parseOverride(d *caddyfile.Dispenser) error {
	words := d.RemainingArgs()
	limit := 1 // how many words the limit has
	if n := len(words); n > 0 && strings.Contains(words[n-1], "/") {
		limit = 2
	}
	if len(words) <= limit {
		return d.Err("too few words after override: want override <part>... <plan>|<capacity> <leak>|unlimited|blocked")
	}
	parts := len(words) - limit
	z.Override = append(z.Override, leakybucket.Override{Parts: words[:parts], Limit: strings.Join(words[parts:], " ")})
	return nil
}

func (z *Zone) parseCost(d *caddyfile.Dispenser, matcher matcherToken) error {
	set, matched, err := matcher()
	if err != nil {
		return d.WrapErr(err)
	}
	if matched && !d.NextArg() || d.Val() == "cost" {
		return d.Err("cost has no value: want cost [<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit>")
	}
	cost := Cost{Value: d.Val()}
	switch words := d.RemainingArgs(); {
	case len(words) == 1 && cost.Value == "body_items":
		cost.Path = words[0]
	case len(words) == 1 && cost.Value == "body_bytes":
		cost.Unit = words[0]
	case len(words) > 1 && (cost.Value == "body_items" || cost.Value == "body_bytes"):
		return d.Errf("unexpected %q after cost %s %s: want the matchers in a block", words[1], cost.Value, words[0])
	case len(words) > 0:
		return d.Errf("unexpected %q after cost %s: want the matchers in a block", words[0], cost.Value)
	}
	block, err := parseMatcherSet(d, "cost")
	if err != nil {
		return err
	}
	if len(set) > 0 && len(block) > 0 {
		return d.Errf("cost %s has a matcher on its line and a block: want one of them", cost.Value)
	}
	maps.Copy(block, set)
	if len(block) > 0 {
		cost.Match = caddyhttp.RawMatcherSets{block}
	}
	z.Cost = append(z.Cost, cost)
	return nil
}

func parseSettle(d *caddyfile.Dispenser) (*Settle, error) {
	words := d.RemainingArgs()
	settle := new(Settle)
	if last := len(words) - 1; last >= 0 && words[last] == "after" {
		settle.After, words = true, words[:last]
	}
	if len(words) == 0 {
		return nil, d.Err("settle has no source: want settle seconds, bytes <unit>, header <Name> or status <code|class>... <n>, and perhaps after")
	}
	settle.Source, words = words[0], words[1:]
	switch last := len(words) - 1; {
	case settle.Source == "seconds" && last == -1:
	case settle.Source == "bytes" && last == 0:
		settle.Unit = words[0]
	case settle.Source == "header" && last == 0:
		settle.Name = words[0]
	case settle.Source == "status" && last >= 1:
		cost, plain := leakybucket.ParseCost(words[last])
		if !plain || cost == 0 {
			return nil, d.Errf("invalid cost %q at the end of settle status: want a number above 0", words[last])
		}
		settle.Status, settle.Cost = words[:last], cost
	default:
		return nil, d.Errf("settle %s: want settle seconds, bytes <unit>, header <Name> or status <code|class>... <n>, and perhaps after", strings.Join(append([]string{settle.Source}, words...), " "))
	}
	return settle, nil
}

// parseMatchers adds a set of matchers: all in one block must match.
func parseMatchers(d *caddyfile.Dispenser, sets *caddyhttp.RawMatcherSets) error {
	option := d.Val()
	set, err := parseMatcherSet(d, option)
	if err != nil {
		return err
	}
	if len(set) == 0 {
		return d.Errf("%s has no matchers: want at least one, such as path /wp-login.php*", option)
	}
	*sets = append(*sets, set)
	return nil
}

// parseMatcherSet reads matchers as Caddy does, and says more about words that
// are none.
func parseMatcherSet(d *caddyfile.Dispenser, option string) (caddy.ModuleMap, error) {
	segment := d.NextSegment()
	words := caddyfile.NewDispenser(segment)
	words.Next()
	for words.NextArg() || words.NextBlock(0) {
		if words.Token().Quoted() {
			continue // an expression
		}
		if _, err := caddy.GetModule("http.matchers." + words.Val()); err != nil {
			return nil, words.Errf("unknown matcher %q in %s: want request matchers, such as path /wp-login.php* or method POST", words.Val(), option)
		}
		words.NextSegment()
	}
	words.Reset()
	words.Next()
	return caddyhttp.ParseCaddyfileNestedMatcherSet(words)
}

// parseArg reads the one word after an option.
func parseArg[T any](d *caddyfile.Dispenser, target *T, parse func(string) (T, error)) error {
	option := d.Val()
	words := d.RemainingArgs()
	switch {
	case len(words) == 0:
		return d.Errf("nothing stands after %s: want one word", option)
	case len(words) > 1:
		return d.Errf("unexpected %q after %s %s: want one word", words[1], option, words[0])
	}
	value, err := parse(words[0])
	if err != nil {
		return d.Errf("parsing %s: %w", option, err)
	}
	*target = value
	return nil
}

func parseFlag(d *caddyfile.Dispenser, target *bool) error {
	option := d.Val()
	if d.NextArg() {
		return d.Errf("unexpected %q after %s: it takes no word", d.Val(), option)
	}
	*target = true
	return nil
}

func parseWord(word string) (string, error) {
	if word == "" {
		return "", errors.New("the word is empty")
	}
	return word, nil
}

// parseLeak checks a rate and keeps it as it was written, since JSON has it so.
func parseLeak(word string) (string, error) {
	_, err := leakybucket.ParseRate(word)
	return word, err
}

// parseUnits reads an amount in units of cost.
func parseUnits(word string) (*float64, error) {
	units, plain := leakybucket.ParseCost(word)
	if !plain {
		return nil, fmt.Errorf("invalid number %q: want one such as 2 or 0.5", word)
	}
	return &units, nil
}

func parseSize(word string) (int64, error) {
	size, err := humanize.ParseBytes(word)
	if err != nil || size < 1 || size > largestMaxBody {
		return 0, fmt.Errorf("invalid size %q: want one such as 64KiB, up to 16MiB", word)
	}
	return int64(size), nil
}

func parseWhole(least, most int) func(string) (int, error) {
	return func(word string) (int, error) {
		n, err := strconv.Atoi(word)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("invalid number %q: want one from %d to %d", word, least, most)
		}
		return n, nil
	}
}

func once(d *caddyfile.Dispenser, seen map[string]bool, option string) error {
	if seen[option] {
		return d.Errf("%s is given twice", option)
	}
	seen[option] = true
	return nil
}

// theirWords are what other limiters call things.
var theirWords = map[string]string{
	"rate":     "leak <n>/<s|m|h|d> is how fast a bucket drains",
	"burst":    "capacity <n> is how much a bucket holds; nginx's burst=10 is capacity 11",
	"events":   "capacity <n> is how many may come at once, and leak <n>/<s|m|h|d> how many in the long run",
	"requests": "capacity <n> is how many may come at once, and leak <n>/<s|m|h|d> how many in the long run",
	"limit":    "capacity <n> is how much a bucket holds, and leak <n>/<s|m|h|d> how fast it drains",
	"window":   "a leaky bucket has no window; leak <n>/<s|m|h|d> is how fast it drains",
	"period":   "a leaky bucket has no period; leak <n>/<s|m|h|d> is how fast it drains",
}

func unrecognized(d *caddyfile.Dispenser, where, want string) error {
	if hint, known := theirWords[d.Val()]; known {
		return d.Errf("unrecognized option %q in %s: %s", d.Val(), where, hint)
	}
	return d.Errf("unrecognized option %q in %s: want %s", d.Val(), where, want)
}

// place says where the dispenser is, in the words of its errors.
func place(d *caddyfile.Dispenser) string { return strings.TrimPrefix(d.Err("").Error(), ", ") }

// Interface guards
var _ httpcaddyfile.UnmarshalHandlerFunc = parseDirective
