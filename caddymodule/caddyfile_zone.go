package caddymodule

import (
	"fmt"
	"maps"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
//	    unlisted_key client_ip|share|skip|refuse
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
//	    retry_jitter <percent>
//	    status <code>
//	    page <file>
//	    refuse page|error
//	    shadow
//	    enforce <percent of keys>
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
	case "unlisted_key":
		err = parseArg(d, &z.UnlistedKey, parseWord)
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
	case "retry_jitter":
		err = parseArg(d, &z.RetryJitter, parseWhole(1, 100))
	case "status":
		err = parseArg(d, &z.Status, parseWhole(400, 599))
	case "page":
		err = parseArg(d, &z.Page, parseWord)
	case "refuse":
		err = parseArg(d, &z.Refuse, parseWord)
	case "shadow":
		err = parseFlag(d, &z.Shadow)
	case "enforce":
		err = parseArg(d, &z.Enforce, parseWhole(1, 100))
	default:
		err = unrecognized(d, fmt.Sprintf("zone %q", z.Name), "one of match, exempt, key, missing_key, unlisted_key, plain_keys, ipv4_prefix, ipv6_prefix, route, "+
			"capacity, leak, override, cost, max_body, unread_body_cost, settle, debt, retry_after, retry_jitter, status, page, refuse, shadow, enforce")
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
