package caddyfile

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// parseExempt reads the words after exempt: matchers, or static_files, which are none of them.
func (r *reader) parseExempt(sets *caddyhttp.RawMatcherSets, static *[]option.StaticFiles) error {
	if nextWord(r.Dispenser) != staticFiles {
		return parseMatchers(r.Helper, r.Val(), sets)
	}
	words := r.RemainingArgs()
	if len(words) > 2 || len(words) == 2 && strings.TrimSpace(words[1]) == "" {
		return r.Errf("unexpected %q after exempt %s: want exempt %[2]s [<root>]", words[len(words)-1], staticFiles)
	}
	*static = append(*static, option.StaticFiles{Root: strings.Join(words[1:], "")})
	r.places["exempt"] = r.places["exempt"][:len(r.places["exempt"])-1]
	return nil
}

// parseSources reads key sources.
func parseSources(words []string) (key []limit.KeySource, err error) {
	for used := 0; used < len(words); {
		source := limit.KeySource{Source: words[used]}
		used++
		switch {
		case used == len(words): // which is an error where a word is missing
		case source.Source == "text":
			source.Text = words[used]
			used++
		case slices.Contains(limit.NamedSources, source.Source):
			source.Name = words[used]
			used++
		}
		if source.Folds() && used < len(words) && words[used] == "fold" {
			if used++; used == len(words) {
				return nil, errors.New("\"fold\" needs a word after it: want fold wordpress or fold email")
			}
			source.Fold = words[used]
			used++
		}
		key = append(key, source)
	}
	return key, nil
}

func parseKey(r *zoneReader) (err error) {
	if r.CountRemainingArgs() == 0 {
		return r.Err("parsing key: no source: want " + limit.KeySources)
	}
	k := new(limit.Key)
	r.zone.Key = k
	details := tokens.Fields{"missing": (*string)(&k.Missing), "unlisted": (*string)(&k.Unlisted), "plain": &k.Plain, "ipv4": &k.IPv4, "ipv6": &k.IPv6}
	if k.Sources, err = parseSources(r.words(details)); err != nil {
		return r.Errf("parsing key: %w", err)
	}
	return r.details(details)
}

func parseReadBody(r *zoneReader) error {
	b := new(limit.ReadBody)
	r.zone.ReadBody = b
	return r.detailed(tokens.Fields{"else": &b.Else}, 1, &b.Most)
}

func parseDelay(r *zoneReader) error {
	d := new(limit.Delay)
	r.zone.Delay = d
	return r.detailed(tokens.Fields{"wait": &d.Wait, "queue": &d.Queue}, 0, &d.Undelayed)
}

func parseBlock(r *zoneReader) error {
	b := new(limit.Block)
	r.zone.Block = b
	details := tokens.Fields{"everywhere": &b.Everywhere}
	words := r.words(details)
	b.For = make([]caddy.Duration, len(words))
	for i, word := range words {
		if err := tokens.Set(&b.For[i], word); err != nil {
			return r.Errf("parsing block: %w", err)
		}
	}
	return r.details(details)
}

func parseTrust(r *zoneReader) error {
	t := new(limit.TrustDevices)
	r.zone.TrustDevices = t
	return r.detailed(nil, 1, &t.Cookie, &t.For)
}

func parseRefusal(r *zoneReader) error {
	f := new(refusal.Options)
	r.zone.Refusal = f
	return r.details(tokens.Fields{
		"status": &f.Status, "message": &f.Message, "error": &f.Error, "retry_after": &f.RetryAfter,
		"code": &f.Code, "log": &f.Log,
		"page": func() error { return parsePage(r.Helper, f) },
	})
}

func parseRoute(r *zoneReader) error {
	words := r.RemainingArgs()
	if len(words) < 2 {
		return r.Err("too few words after route: want route <name> <path>...")
	}
	r.zone.Route = append(r.zone.Route, limit.Route{Name: words[0], Path: words[1:]})
	return nil
}

func parseLimit(r *zoneReader) error {
	words := r.RemainingArgs()
	r.zone.LimitRaw = strings.Join(words, " ")
	if _, err := leakybucket.ParseLimit(r.zone.LimitRaw); err != nil && len(words) != 2 {
		return r.Err("wrong number of words after limit: want limit <capacity> <leak>, such as limit 120 2/s")
	}
	return nil
}

func parseOverride(r *zoneReader) error {
	words := r.RemainingArgs()
	var o perkey.Override
	n := len(words)
	switch {
	case n >= 3 && words[n-1] == "as":
		return r.Errf("parsing override: as has no name: want %s", r.syntax())
	case n >= 4 && words[n-2] == "as":
		o.As, words = words[n-1], words[:n-2]
	}
	limit := 1 // how many words the limit has
	if n = len(words); n > 0 && strings.Contains(words[n-1], "/") {
		limit = 2
	}
	if n <= limit {
		return r.Errf("parsing override: too few words: want %s", r.syntax())
	}
	o.Parts, o.Limit = words[:n-limit], strings.Join(words[n-limit:], " ")
	r.zone.Override = append(r.zone.Override, o)
	return nil
}

func parseCost(r *zoneReader) error {
	set, matched, err := namedMatcher(r.Helper)
	if err != nil {
		return err
	}
	if matched && !r.NextArg() || r.Val() == "cost" {
		return r.Err("cost has no value: want " + r.syntax())
	}
	cost := limit.Cost{Value: r.Val()}
	switch words := r.RemainingArgs(); {
	case len(words) == 1 && cost.Value == "body_items":
		cost.Path = words[0]
	case len(words) == 1 && cost.Value == "body_bytes":
		cost.Unit = words[0]
	case len(words) > 0:
		return r.Errf("unexpected %q after cost %s: want the matchers in a block, each on a line of its own", words[0], cost.Value)
	}
	block, err := parseMatcherSet(r.Dispenser, "cost")
	if err != nil {
		return err
	}
	if len(set) > 0 && len(block) > 0 {
		return r.Errf("cost %s has a matcher on its line and a block: want one of them", cost.Value)
	}
	maps.Copy(block, set)
	if len(block) > 0 {
		cost.MatchRaw = caddyhttp.RawMatcherSets{block}
	}
	r.zone.Cost = append(r.zone.Cost, cost)
	return nil
}

func parseSettle(r *zoneReader) (err error) {
	s := new(limit.Settle)
	r.zone.Settle = s
	details := tokens.Fields{"after": &s.After, "debt": &s.Debt}
	words := r.words(details)
	last := len(words) - 1
	if last < 0 {
		return r.Errf("settle has no value: want %s", r.syntax())
	}
	s.Source = limit.SettleSource(words[0])
	switch {
	case s.Source == "bytes" && last == 1:
		s.Unit = words[1]
	case s.Source == "header" && last == 1:
		s.Name = words[1]
	case s.Source == "status" && last > 1:
		s.Status = words[1:last]
		err = tokens.Set(&s.Cost, words[last])
	case last > 0:
		err = fmt.Errorf("wrong words after %s", s.Source)
	}
	if err != nil {
		return r.Errf("parsing settle: %w; the syntax is %s", err, r.syntax())
	}
	return r.details(details)
}

// parseRefund reads a response matcher as Caddy does, or the cookie that a response sets.
func parseRefund(r *zoneReader) error {
	peek := *r.Dispenser
	words := peek.RemainingArgs()
	if len(words) > 0 && words[0] == "cookie" {
		if words = r.RemainingArgs(); len(words) != 2 {
			return r.Errf("wrong number of words after refund cookie: want refund cookie <glob>, and a line for each cookie")
		}
		r.zone.Refund = append(r.zone.Refund, limit.Refund{Cookie: words[1]})
		return nil
	}
	if len(words) > 0 && words[0] != "status" && words[0] != "header" {
		return r.Errf("unknown word %q after refund: want refund status <code|class>..., refund header <Field> <value> or refund cookie <glob>", words[0])
	}
	matchers := make(map[string]caddyhttp.ResponseMatcher)
	if err := caddyhttp.ParseNamedResponseMatcher(r.NewFromNextSegment(), matchers); err != nil {
		return fmt.Errorf("parsing refund, with one matcher on a line or several in a block: %w", err)
	}
	match := matchers["refund"]
	r.zone.Refund = append(r.zone.Refund, limit.Refund{Match: &match})
	return nil
}

// parsePage reads the words after page: a file, or a block that brands the built-in
// page.
func parsePage(h httpcaddyfile.Helper, own *refusal.Options) error {
	if h.CountRemainingArgs() > 0 {
		var name string
		if err := tokens.ParseArg(h.Dispenser, &name); err != nil {
			return err
		}
		page, err := readPage(h.File(), name)
		own.PageHTML = &page
		return tokens.Wrap(h.Dispenser, err)
	}
	style := new(refusal.Style)
	own.PageStyle = style
	here := tokens.Place(h.Dispenser)
	err := tokens.Options(h.Dispenser, "page", tokens.Fields{"title": &style.Title, "accent": &style.Accent, "text": &style.Text}, func() error { return style.Validate() }, nil)
	if err == nil && *style == (refusal.Style{}) {
		err = fmt.Errorf("page has no value: want a file, or a block of title, accent and text, %s", here)
	}
	return err
}

// readPage reads a file that is named in a Caddyfile, relative to that. So an edited page is
// a changed config, and a missing one an error with a line.
func readPage(caddyfile, name string) (string, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(caddyfile), name)
	}
	page, err := os.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("reading page: %w: want the name of an HTML file, relative to the Caddyfile", err)
	}
	return string(page), nil
}

// nextWord returns the next word of a line, or "", and reads nothing.
func nextWord(d *caddyfile.Dispenser) string {
	peek := *d
	if !peek.NextArg() {
		return ""
	}
	return peek.Val()
}
