package caddymodule

import (
	"fmt"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

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
	case "exempt":
		return parseMatchers(d, &a.Exempt)
	case "plan":
		return a.parsePlan(d)
	case "zone":
		z, err := parseZone(d, noNamedMatchers(d))
		a.Zone = append(a.Zone, z)
		return err
	default:
		if err := once(d, seen, option); err != nil {
			return err
		}
	}
	switch d.Val() {
	case "store":
		return a.parseStore(d)
	case "store_timeout":
		return parseArg(d, &a.StoreTimeout, parseDuration)
	case "on_store_error":
		return parseArg(d, &a.OnStoreError, parsePolicy)
	case "nodes":
		return parseArg(d, &a.Nodes, parseWhole(1, mostNodes))
	case "shadow":
		return parseFlag(d, &a.Shadow)
	default:
		return unrecognized(d, "the global option throttle", "one of store, store_timeout, on_store_error, nodes, exempt, plan, zone, shadow")
	}
}

func (a *App) parseStore(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.Err("store has no name: want store memory, or one that this Caddy was built with")
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
//	    ratelimit_headers
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
			if h.Val() == "ratelimit_headers" {
				if handler.RateLimitHeaders {
					return nil, h.Err("ratelimit_headers is given twice")
				}
				if err := parseFlag(h.Dispenser, &handler.RateLimitHeaders); err != nil {
					return nil, err
				}
				continue
			}
			if h.Val() != "zone" {
				return nil, unrecognized(h.Dispenser, "the directive throttle", "zone <name> or ratelimit_headers; what is to hold for all zones stands in the global options")
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
			if !app.defines(z.Name) {
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

// defines reports whether a zone of that name is among the app's own.
func (a *App) defines(name string) bool {
	return slices.ContainsFunc(a.Zone, func(z *Zone) bool { return z.Name == name })
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

// Interface guards
var _ httpcaddyfile.UnmarshalHandlerFunc = parseDirective
