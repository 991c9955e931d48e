package caddyfile

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
)

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
	if err := option.CheckOuter(set); err != nil || set == nil {
		return nil, tokens.Wrap(h.Dispenser, err)
	}
	return caddyhttp.RawMatcherSets{set}, nil
}

// wrongName adds to Caddy's error about a named matcher what would be right.
func wrongName(h httpcaddyfile.Helper, err error) error {
	switch {
	case err == nil:
		return nil
	case h.State == nil:
		return h.Errf("matcher %q stands in the global options, where there are no named matchers: write the matchers themselves, such as path /login*", h.Val())
	}
	return h.Errf("%w: want one that the site defines, such as @login path /wp-login.php*", err)
}

// parseMatchers adds a set of matchers, all of which must match. They stand in a
// block or on the line, or are one of the site's by its name. Errors name the option.
func parseMatchers(h httpcaddyfile.Helper, word string, sets *caddyhttp.RawMatcherSets) (err error) {
	here, name := tokens.Place(h.Dispenser), nextWord(h.Dispenser)
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
		return fmt.Errorf("%s has no matchers: want at least one, such as path /wp-login.php*, %s", word, here)
	}
	*sets = append(*sets, set)
	return nil
}

// parseMatcherSet reads matchers as Caddy does, with better errors about unknown
// words and about matchers that throttle cannot use.
func parseMatcherSet(d *caddyfile.Dispenser, word string) (caddy.ModuleMap, error) {
	here, segment := tokens.Place(d), d.NextSegment()
	words := caddyfile.NewDispenser(segment)
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
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(words)
	if err != nil {
		return nil, err
	}
	if err := option.CheckMatcherSet(set); err != nil {
		return nil, fmt.Errorf("%w, %s", err, here)
	}
	return set, nil
}

func unknownMatcher(d *caddyfile.Dispenser, after string) error {
	if d.Val() == staticFiles {
		return d.Errf("%s stands alone, behind exempt: want exempt %[1]s [<root>]", staticFiles)
	}
	known := []string{staticFiles}
	for _, module := range caddy.GetModules("http.matchers") {
		known = append(known, module.ID.Name())
	}
	return d.WrapErr(option.Unknown("matcher", d.Val(), " in "+after, known))
}
