package caddymodule

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

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
		return d.Err("too few words after override: want override <part>... <plan>|<capacity> <leak>|unlimited|deny")
	}
	parts := len(words) - limit
	z.Override = append(z.Override, bucketkey.Override{Parts: words[:parts], Limit: strings.Join(words[parts:], " ")})
	return nil
}

func (z *Zone) parseCost(d *caddyfile.Dispenser, matcher matcherToken) error {
	set, matched, err := matcher()
	if err == nil && asksThrottle(set) {
		err = errAsksThrottle
	}
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

func parseDelay(d *caddyfile.Dispenser) (*float64, error) {
	undelayed := new(float64)
	if d.CountRemainingArgs() == 0 {
		return undelayed, nil
	}
	err := parseArg(d, &undelayed, parseUnits)
	return undelayed, err
}

func parseDuration(word string) (caddy.Duration, error) {
	duration, err := caddy.ParseDuration(word)
	if err != nil || duration <= 0 {
		return 0, fmt.Errorf("invalid duration %q: want one above 0, such as 10s", word)
	}
	return caddy.Duration(duration), nil
}

func parseBlock(d *caddyfile.Dispenser) (*Block, error) {
	block := new(Block)
	words := d.RemainingArgs()
	if last := len(words) - 1; last >= 0 && words[last] == "everywhere" {
		block.Everywhere, words = true, words[:last]
	}
	for _, word := range words {
		duration, err := parseDuration(word)
		if err != nil {
			return nil, d.Errf("parsing block: %w; want block [<duration>...] [everywhere]", err)
		}
		block.For = append(block.For, duration)
	}
	return block, nil
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
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(words)
	if err != nil || !asksThrottle(set) {
		return set, err
	}
	words.Reset()
	found := false
	for !found && words.Next() {
		found = words.Val() == "throttle_blocked"
	}
	return nil, words.WrapErr(errAsksThrottle)
}

// asksThrottle reports whether a set asks what throttle has decided.
func asksThrottle(set caddy.ModuleMap) bool {
	var excluded []caddy.ModuleMap
	if not := set["not"]; not != nil && json.Unmarshal(not, &excluded) != nil {
		return false
	}
	return set["throttle_blocked"] != nil || slices.ContainsFunc(excluded, asksThrottle)
}
