package caddyfile

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/refusal"
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
	take := func(to *string) { // nothing at the end, which is an error where a word is missing
		if len(words) > 0 {
			*to, words = words[0], words[1:]
		}
	}
	for len(words) > 0 {
		var source limit.KeySource
		if take(&source.Source); source.Source == "text" {
			take(&source.Text)
		} else if source.TakesName() {
			take(&source.Name)
		}
		if source.Folds() && len(words) > 0 && words[0] == "fold" {
			if len(words) == 1 {
				return nil, errors.New("\"fold\" needs a word after it: want fold wordpress or fold email")
			}
			source.Fold, words = words[1], words[2:]
		}
		key = append(key, source)
	}
	return key, nil
}

// made makes what an option sets.
func made[T any](option **T) *T {
	*option = new(T)
	return *option
}

func parseKey(r *zoneReader) (err error) {
	if r.CountRemainingArgs() == 0 {
		return r.Err("parsing key: no source: want " + limit.KeySources)
	}
	k := made(&r.zone.Key)
	details := option.Fields{"missing": (*string)(&k.Missing), "unlisted": (*string)(&k.Unlisted), "plain": &k.Plain, "ipv4": &k.IPv4, "ipv6": &k.IPv6}
	if k.Sources, err = parseSources(r.words(details)); err != nil {
		return r.Errf("parsing key: %w", err)
	}
	return r.details(details)
}

func parseOverride(r *zoneReader) error {
	words := r.RemainingArgs()
	var o perkey.Override
	n := len(words)
	if n >= 4 && words[n-2] == "as" {
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
	s := made(&r.zone.Settle)
	details := option.Fields{"after": &s.After, "debt": &s.Debt}
	words := r.words(details)
	if len(words) == 0 {
		return r.Errf("settle has no value: want %s", r.syntax())
	}
	s.Source = limit.SettleSource(words[0])
	switch last := len(words) - 1; {
	case s.Source == "bytes" && last == 1:
		s.Unit = words[1]
	case s.Source == "header" && last == 1:
		s.Name = words[1]
	case s.Source == "status" && last > 1:
		s.Status = words[1:last]
		err = option.Set(&s.Cost, words[last])
	case last > 0:
		err = fmt.Errorf("wrong words after %s", s.Source)
	}
	if err != nil {
		return r.Errf("parsing settle: %w; the syntax is %s", err, r.syntax())
	}
	return r.details(details)
}

const wantRefund = "want refund status <code|class>..., refund header <Field> <value> or refund cookie <glob>"

// parseRefund reads a response matcher as Caddy does, or the cookie that a response sets.
func parseRefund(r *zoneReader) error {
	switch word := nextWord(r.Dispenser); word {
	case "", "status", "header":
	case "cookie":
		words := r.RemainingArgs()
		if len(words) != 2 {
			return r.Errf("wrong number of words after refund cookie: want refund cookie <glob>, and a line for each cookie")
		}
		r.zone.Refund = append(r.zone.Refund, limit.Refund{Cookie: words[1]})
		return nil
	default:
		return r.Errf("unknown word %q after refund: %s", word, wantRefund)
	}
	matchers := make(map[string]caddyhttp.ResponseMatcher)
	if err := caddyhttp.ParseNamedResponseMatcher(r.NewFromNextSegment(), matchers); err != nil {
		return fmt.Errorf("parsing refund: %w: %s; in a block, status and header apply together", err, wantRefund)
	}
	r.zone.Refund = append(r.zone.Refund, limit.Refund{Match: new(matchers["refund"])})
	return nil
}

// parsePage reads the words after page: a file, whose name is relative to the Caddyfile that names
// it, or a block that brands the built-in page.
func parsePage(h httpcaddyfile.Helper, own *refusal.Options) error {
	if h.CountRemainingArgs() > 0 {
		var name string
		if err := option.ParseArg(h.Dispenser, &name); err != nil {
			return err
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(h.File()), name)
		}
		// The page itself, so that an edited one is a changed config, and a missing one an error with a line.
		page, err := os.ReadFile(name)
		if err != nil {
			return h.Errf("reading page: %w: want the name of an HTML file, relative to the Caddyfile", err)
		}
		own.PageHTML = new(string(page))
		return nil
	}
	style := made(&own.PageStyle)
	return option.Read(h.Dispenser, "page", option.Fields{"title": &style.Title, "accent": &style.Accent, "text": &style.Text}, nil)
}

// nextWord returns the next word of a line, or "", and reads nothing.
func nextWord(d *caddyfile.Dispenser) string {
	peek := *d
	if !peek.NextArg() {
		return ""
	}
	return peek.Val()
}

// staticFiles is the one word after exempt that is not a matcher.
const staticFiles = "static_files"

// namedMatcher reads the next word on the line, and returns its matchers if it is a matcher
// such as @name or /path.
func namedMatcher(h httpcaddyfile.Helper) (caddy.ModuleMap, bool, error) {
	set, matched, err := h.MatcherToken()
	return set, matched, wrongName(h, err)
}

// outerMatchers reads the matcher of a directive, up to the directive's name.
func outerMatchers(h httpcaddyfile.Helper) (caddyhttp.RawMatcherSets, error) {
	h.Next()
	set, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, wrongName(h, err)
	}
	h.Next() // the directive's name
	if set == nil {
		return nil, nil
	}
	match := caddyhttp.RawMatcherSets{set}
	return match, option.At(nil, option.Place(h.Dispenser), option.CheckMatch(match))
}

// wrongName adds to Caddy's error about a named matcher what would be right.
func wrongName(h httpcaddyfile.Helper, err error) error {
	switch {
	case err == nil:
		return nil
	case h.State == nil:
		return h.Errf("matcher %q is in the global options, where there are no named matchers: write the matchers themselves, such as path /login*", h.Val())
	}
	return h.Errf("%w: want one that the site defines, such as @login path /wp-login.php*", err)
}

// parseMatchers adds a set of matchers, all of which must match. They stand in a
// block or on the line, or are one of the site's by its name. Errors name the option.
func parseMatchers(h httpcaddyfile.Helper, word string, sets *caddyhttp.RawMatcherSets) (err error) {
	here, name := option.Place(h.Dispenser), nextWord(h.Dispenser)
	var set caddy.ModuleMap
	if !strings.HasPrefix(name, "@") {
		set, err = parseMatcherSet(h.Dispenser, word)
	} else if set, _, err = namedMatcher(h); err == nil && h.NextArg() {
		err = h.Errf("unexpected %q after %s %s: want one name a line; lines are alternatives", h.Val(), word, name)
	}
	if err != nil {
		return err
	}
	if len(set) == 0 {
		return fmt.Errorf("%s has no matchers: want at least one, such as path /wp-login.php*, %s", strings.TrimSpace(word), here)
	}
	*sets = append(*sets, set)
	return nil
}

// parseMatcherSet reads matchers as Caddy does, with better errors about unknown words.
func parseMatcherSet(d *caddyfile.Dispenser, word string) (caddy.ModuleMap, error) {
	words := d.NewFromNextSegment()
	words.Next()
	for words.NextArg() || words.NextBlock(0) {
		if words.Token().Quoted() {
			continue // an expression
		}
		if _, err := caddy.GetModule("http.matchers." + words.Val()); err != nil {
			return nil, unknownMatcher(words, word)
		}
		words.NextSegment()
	}
	words.Reset()
	words.Next()
	return caddyhttp.ParseCaddyfileNestedMatcherSet(words)
}

func unknownMatcher(d *caddyfile.Dispenser, after string) error {
	if d.Val() == staticFiles {
		return d.Errf("%s comes alone after exempt: want exempt %[1]s [<root>]", staticFiles)
	}
	_, noAddress := netip.ParseAddr(strings.Split(d.Val(), "/")[0])
	switch {
	case strings.HasPrefix(d.Val(), "/"):
		return d.Errf("unknown matcher %q in %s: did you mean path %[1]s?", d.Val(), after)
	case noAddress == nil:
		return d.Errf("unknown matcher %q in %s: did you mean client_ip %[1]s?", d.Val(), after)
	}
	var known []string
	if after == "exempt" {
		known = []string{staticFiles}
	}
	for _, module := range caddy.GetModules("http.matchers") {
		if name := module.ID.Name(); name != "throttle_blocked" { // which no option takes
			known = append(known, name)
		}
	}
	return d.WrapErr(option.Unknown("matcher", d.Val(), " in "+after, known))
}
