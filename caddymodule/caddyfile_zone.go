package caddymodule

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

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
//	    override <part>... <plan>|<capacity> <leak>|unlimited|deny
//	    cost [<matcher>] <n>|<placeholder>|body_items [<path>]|body_bytes <unit> { <request matchers> }
//	    max_body <size>
//	    unread_body_cost <n>
//	    settle seconds|bytes <unit>|header <Name>|status <code|class>... <n> [after]
//	    debt <n>
//	    delay [<undelayed>]
//	    max_wait <duration>
//	    max_waiting <n>
//	    in_flight <n>
//	    block [<duration>...] [everywhere]
//	    on_store_error local|allow|deny
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
	case "delay":
		z.Delay, err = parseDelay(d)
	case "max_wait":
		err = parseArg(d, &z.MaxWait, parseDuration)
	case "max_waiting":
		err = parseArg(d, &z.MaxWaiting, parseWhole(1, mostAtOnce))
	case "in_flight":
		err = parseArg(d, &z.InFlight, parseWhole(1, mostAtOnce))
	case "block":
		z.Block, err = parseBlock(d)
	case "on_store_error":
		err = parseArg(d, &z.OnStoreError, parseWord)
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
			"capacity, leak, override, cost, max_body, unread_body_cost, settle, debt, delay, max_wait, max_waiting, in_flight, block, on_store_error, retry_after, retry_jitter, status, page, refuse, shadow, enforce")
	}
	return err
}
