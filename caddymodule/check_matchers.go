package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Matchers that are accepted and never match are worse than an error: their owner finds
// out when the limit is needed. This file refuses them.

// checkPaths refuses paths that no request has, in any matcher `path` of a set.
func checkPaths(set caddy.ModuleMap) error {
	if raw := set["path"]; raw != nil {
		var paths caddyhttp.MatchPath
		if err := json.Unmarshal(raw, &paths); err != nil {
			return fmt.Errorf("reading the matcher path: %w", err)
		}
		if err := checkPathList(paths); err != nil {
			return err
		}
	}
	for _, excluded := range excludedBy(set) {
		if err := checkPaths(excluded); err != nil {
			return err
		}
	}
	return nil
}

// checkPathList refuses paths that no request has, as the matcher `path` takes them.
func checkPathList(paths []string) error {
	if len(paths) == 0 {
		return errors.New("path has no paths: want at least one, such as path /wp-login.php*")
	}
	for _, path := range paths {
		bare := strings.TrimLeft(path, "~*^")
		switch {
		case strings.HasPrefix(path, "~") || strings.HasPrefix(path, "^"):
			return fmt.Errorf("path %q never matches, since path takes no regular expression: did you mean path_regexp ^%s?", path, bare)
		case strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://"):
			return fmt.Errorf("path %q never matches, since paths have no host: did you mean %s?", path, pathOf(path))
		case strings.Contains(path, "?") && !strings.Contains(path, "{"):
			before, _, _ := strings.Cut(path, "?")
			return fmt.Errorf("path %q never matches, since paths end before the question mark: want path %s, and query <name>=<value> for the rest", path, before)
		case slices.Contains(matcherWords, path):
			return errTwoMatchers("path", path)
		case strings.HasSuffix(path, ",") || strings.Contains(path, ",/"):
			return fmt.Errorf("path %q has a comma in it: want spaces between paths", path)
		case path == "" || !strings.ContainsAny(path[:1], `/*{[\`):
			return fmt.Errorf("path %q never matches, since paths begin with a slash: did you mean /%s?", path, path)
		}
	}
	return nil
}

// matcherWords are matchers that owners put behind another one on the same line.
var matcherWords = []string{"path", "method", "header", "host", "client_ip", "remote_ip", "query", "not", "path_regexp", "header_regexp"}

func errTwoMatchers(matcher, word string) error {
	return fmt.Errorf("%s %q never matches: for two matchers at once, want a block, and each on a line of its own", matcher, word)
}

// pathOf returns the path of an URL.
func pathOf(location string) string {
	parsed, err := url.Parse(location)
	if err != nil || parsed.Path == "" {
		return "/"
	}
	return parsed.Path
}

// checkTails refuses matchers for limits that name a PHP script without a star at its
// end: PHP runs the script for /script.php/x, too, so clients would evade the limit.
func checkTails(set caddy.ModuleMap) error {
	var paths caddyhttp.MatchPath
	if raw := set["path"]; raw == nil || json.Unmarshal(raw, &paths) != nil {
		return nil
	}
	return checkTailsOf(paths)
}

func checkTailsOf(paths []string) error {
	for _, path := range paths {
		if strings.HasSuffix(path, ".php") && !strings.ContainsAny(path, "*{[") && !slices.Contains(paths, path+"*") && !slices.Contains(paths, path+"/*") {
			return fmt.Errorf("path %q leaves out %s/x, for which PHP runs the same script: did you mean %[1]s*?", path, path)
		}
	}
	return nil
}

// checkSyntax refuses matchers that Caddy would refuse only when it loads the config,
// where the error has no line, and methods and hosts that no request has.
func checkSyntax(set caddy.ModuleMap) error {
	for _, matcher := range []string{"method", "host"} {
		if err := checkWords(matcher, set[matcher]); err != nil {
			return err
		}
	}
	for _, matcher := range []string{"client_ip", "remote_ip"} {
		if err := checkRanges(matcher, set[matcher]); err != nil {
			return err
		}
	}
	if err := checkExpressions(set); err != nil {
		return err
	}
	for _, excluded := range excludedBy(set) {
		if err := checkSyntax(excluded); err != nil {
			return err
		}
	}
	return nil
}

// checkWords refuses words that no method and no host is.
func checkWords(matcher string, raw json.RawMessage) error {
	var words []string
	if raw == nil || json.Unmarshal(raw, &words) != nil {
		return nil
	}
	for i, word := range words {
		if i > 0 && slices.Contains(matcherWords, word) {
			return errTwoMatchers(matcher, word)
		}
		if strings.Contains(word, ",") {
			return fmt.Errorf("%s %q has a comma in it: want blanks between %[1]ss", matcher, word)
		}
	}
	return nil
}

// checkRanges refuses addresses that a matcher of addresses cannot read.
func checkRanges(matcher string, raw json.RawMessage) error {
	var addresses struct {
		Ranges []string `json:"ranges"`
	}
	if raw == nil || json.Unmarshal(raw, &addresses) != nil {
		return nil
	}
	for _, word := range addresses.Ranges {
		if slices.Contains(matcherWords, word) {
			return errTwoMatchers(matcher, word)
		}
		_, notAddress := netip.ParseAddr(word)
		_, notNetwork := netip.ParsePrefix(word)
		if notAddress != nil && notNetwork != nil && !strings.ContainsAny(word, "%{") {
			return fmt.Errorf("invalid address %q after %s: want an IP address or a network such as 203.0.113.0/24", word, matcher)
		}
	}
	return nil
}

// checkExpressions refuses regular expressions that do not compile.
func checkExpressions(set caddy.ModuleMap) error {
	type expression struct {
		Pattern string `json:"pattern"`
	}
	var ofPath expression
	if raw := set["path_regexp"]; raw != nil && json.Unmarshal(raw, &ofPath) == nil {
		if _, err := regexp.Compile(ofPath.Pattern); err != nil {
			return fmt.Errorf("path_regexp %q: %w", ofPath.Pattern, err)
		}
	}
	var ofHeaders map[string]expression
	if raw := set["header_regexp"]; raw != nil && json.Unmarshal(raw, &ofHeaders) == nil {
		for _, header := range slices.Sorted(maps.Keys(ofHeaders)) {
			if _, err := regexp.Compile(ofHeaders[header].Pattern); err != nil {
				return fmt.Errorf("header_regexp %q: %w", ofHeaders[header].Pattern, err)
			}
		}
	}
	return nil
}

// checkMatcherSet refuses what the functions above do, matchers that look at the method as
// the client sent it, and throttle_blocked, which throttle itself decides.
func checkMatcherSet(set caddy.ModuleMap) error {
	if asksThrottle(set) {
		return errAsksThrottle
	}
	if err := checkPaths(set); err != nil {
		return err
	}
	if err := checkSyntax(set); err != nil {
		return err
	}
	return checkMethods(set)
}

// checkMatcherSets checks each set of matchers.
func checkMatcherSets(sets caddyhttp.RawMatcherSets) error {
	for _, set := range sets {
		if err := checkMatcherSet(set); err != nil {
			return err
		}
	}
	return nil
}

// asksThrottle reports whether a set contains throttle_blocked.
func asksThrottle(set caddy.ModuleMap) bool {
	return set["throttle_blocked"] != nil || slices.ContainsFunc(excludedBy(set), asksThrottle)
}

// excludedBy returns the sets of matchers behind `not`.
func excludedBy(set caddy.ModuleMap) (excluded []caddy.ModuleMap) {
	if not := set["not"]; not != nil && json.Unmarshal(not, &excluded) != nil {
		return nil
	}
	return excluded
}
