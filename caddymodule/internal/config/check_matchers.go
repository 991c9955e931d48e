package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// CheckPaths refuses paths that no request has, in any matcher `path` of a set.
func CheckPaths(set caddy.ModuleMap) error {
	if raw := set["path"]; raw != nil {
		var paths caddyhttp.MatchPath
		if err := json.Unmarshal(raw, &paths); err != nil {
			return fmt.Errorf("reading the matcher path: %w", err)
		}
		if err := CheckPathList(paths); err != nil {
			return err
		}
	}
	for _, excluded := range excludedBy(set) {
		if err := CheckPaths(excluded); err != nil {
			return err
		}
	}
	return nil
}

// CheckPathList refuses paths that no request has, as the matcher `path` takes them.
func CheckPathList(paths []string) error {
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
		case slices.Contains(MatcherWords, path):
			return errTwoMatchers("path", path)
		case strings.HasSuffix(path, ",") || strings.Contains(path, ",/"):
			return fmt.Errorf("path %q has a comma in it: want spaces between paths", path)
		case path == "" || !strings.ContainsAny(path[:1], `/*{[\`):
			return fmt.Errorf("path %q never matches, since paths begin with a slash: did you mean /%s?", path, path)
		}
	}
	return nil
}

// MatcherWords are matchers that owners put behind another one on the same line.
var MatcherWords = []string{"path", "method", "header", "host", "client_ip", "remote_ip", "query", "not", "path_regexp", "header_regexp"}

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

// CheckTails refuses matchers for limits that name a PHP script without what may follow its
// name: PHP runs the script for /script.php/x, too, so clients would evade the limit.
func CheckTails(set caddy.ModuleMap) error {
	var paths caddyhttp.MatchPath
	if raw := set["path"]; raw != nil && json.Unmarshal(raw, &paths) == nil {
		if err := checkTailsOf(paths); err != nil {
			return err
		}
	}
	var expression caddyhttp.MatchPathRE
	if raw := set["path_regexp"]; raw != nil && json.Unmarshal(raw, &expression) == nil && strings.HasSuffix(expression.Pattern, "php$") {
		return fmt.Errorf("path_regexp %q leaves out .php/x, for which PHP runs the same script: did you mean %s(/|$)?", expression.Pattern, strings.TrimSuffix(expression.Pattern, "$"))
	}
	return nil
}

func checkTailsOf(paths []string) error {
	for _, path := range paths {
		if strings.HasSuffix(path, ".php") && !strings.ContainsAny(strings.TrimPrefix(path, "*"), "*{[") && !slices.Contains(paths, path+"*") && !slices.Contains(paths, path+"/*") {
			return fmt.Errorf("path %q leaves out %s/x, for which PHP runs the same script: did you mean %[1]s*?", path, path)
		}
	}
	return nil
}

// CheckExempt refuses exemptions of all requests.
func CheckExempt(set caddy.ModuleMap) error {
	if len(set) != 1 {
		return nil
	}
	var paths caddyhttp.MatchPath
	if raw := set["path"]; raw != nil && json.Unmarshal(raw, &paths) == nil && (slices.Contains(paths, "*") || slices.Contains(paths, "/*")) {
		return errors.New("exempt path /* exempts all requests, so nothing is limited: want the paths that are not to be charged")
	}
	for _, matcher := range []string{"client_ip", "remote_ip"} {
		for _, word := range rangesOf(set[matcher]) {
			if network, err := netip.ParsePrefix(word); err == nil && network.Bits() == 0 {
				return fmt.Errorf("exempt %s %s exempts all clients, so nothing is limited: want the networks that are not to be charged", matcher, word)
			}
		}
	}
	return nil
}

// Paths returns the patterns of the path matchers in sets that Caddy has not loaded yet.
func Paths(sets caddyhttp.RawMatcherSets) (all []string) {
	for _, set := range sets {
		var paths []string
		_ = json.Unmarshal(set["path"], &paths) // none if there is no such matcher
		all = append(all, paths...)
	}
	return all
}

// clientsSend finds the headers that all clients send. Others may be secrets.
var clientsSend = regexp.MustCompile(`(?i)user-agent|cookie`)

// Doubtful says what is probably not meant by a set of matchers, or "". An exemption by what
// anybody can send is one that anybody has.
func Doubtful(set caddy.ModuleMap, exempts bool) string {
	var paths caddyhttp.MatchPath
	_ = json.Unmarshal(set["path"], &paths) // none if there is no such matcher
	var headers caddyhttp.MatchHeader
	_ = json.Unmarshal(set["header"], &headers)
	var query map[string][]string
	_ = json.Unmarshal(set["query"], &query)
	sent := string(set["header"]) + string(set["header_regexp"]) + string(set["expression"])
	guarded := !exempts || set["client_ip"] != nil || set["remote_ip"] != nil || set["verified_crawler"] != nil || set["not"] != nil
	switch {
	case slices.Equal(paths, []string{"/"}):
		return "path / is the front page alone: for all requests, leave the matcher out"
	case len(query) > 1 && !exempts:
		return "a query of several parameters matches requests that have all of them: for any of them, want a line of match for each"
	case guarded:
	case clientsSend.MatchString(sent):
		return "anybody can send the header by which requests are exempt: exempt addresses with client_ip, or crawlers with verified_crawler"
	case set["file"] != nil:
		return "exempt file exempts PHP scripts, too, since they are files: want exempt static_files"
	case slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(path, "*.") }):
		return "paths such as /index.php/x.css run PHP and end as an exemption has it: want exempt static_files"
	case slices.ContainsFunc(paths, func(path string) bool { return strings.Contains(path, ".php") }):
		return "anybody can call the script that is exempt by its path: exempt those who may with client_ip"
	}
	for _, value := range headers["User-Agent"] {
		if !strings.ContainsAny(value, "*/{") {
			return fmt.Sprintf("header User-Agent %s matches this value alone: for all that contain it, want header User-Agent *%[1]s*", value)
		}
	}
	return ""
}

// CheckSyntax refuses matchers that Caddy would refuse only when it loads the config,
// where the error has no line, and methods and hosts that no request has.
func CheckSyntax(set caddy.ModuleMap) error {
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
	var protocol string
	if raw := set["protocol"]; raw != nil && json.Unmarshal(raw, &protocol) == nil && !slices.Contains(protocols, protocol) {
		return fmt.Errorf("protocol %q never matches: want one of %s", protocol, strings.Join(protocols, ", "))
	}
	if err := checkExpressions(set); err != nil {
		return err
	}
	for _, excluded := range excludedBy(set) {
		if err := CheckSyntax(excluded); err != nil {
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
		if i > 0 && slices.Contains(MatcherWords, word) {
			return errTwoMatchers(matcher, word)
		}
		if strings.Contains(word, ",") {
			return fmt.Errorf("%s %q has a comma in it: want blanks between %[1]ss", matcher, word)
		}
	}
	return nil
}

// rangesOf returns the addresses of a matcher of addresses.
func rangesOf(raw json.RawMessage) []string {
	var addresses struct {
		Ranges []string `json:"ranges"`
	}
	if raw == nil || json.Unmarshal(raw, &addresses) != nil {
		return nil
	}
	return addresses.Ranges
}

// checkRanges refuses addresses that a matcher of addresses cannot read.
func checkRanges(matcher string, raw json.RawMessage) error {
	for _, word := range rangesOf(raw) {
		if slices.Contains(MatcherWords, word) {
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

// protocols are all that the matcher `protocol` can match.
var protocols = []string{"http", "https", "grpc", "http/1.0", "http/1.0+", "http/1.1", "http/1.1+", "http/2", "http/2+", "http/3", "http/3+"}

// compiled are the matchers of Caddy that are compiled when they are provisioned, for which
// they need no other part of the config.
var compiled = []string{"expression", "path_regexp", "header_regexp", "vars_regexp"}

// checkExpressions refuses matchers that do not compile.
func checkExpressions(set caddy.ModuleMap) error {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	for _, name := range compiled {
		if set[name] == nil {
			continue
		}
		if _, err := ctx.LoadModuleByID("http.matchers."+name, set[name]); err != nil {
			why := strings.TrimPrefix(err.Error(), "provision http.matchers."+name+": ")
			why, _, _ = strings.Cut(why, "\n") // of expressions, which Caddy has rewritten
			return fmt.Errorf("%s: %s", name, why)
		}
	}
	return nil
}

// CheckMatcherSet refuses what the functions above do, matchers that look at the method as
// the client sent it, and throttle_blocked, which throttle itself decides.
func CheckMatcherSet(set caddy.ModuleMap) error {
	if asksThrottle(set) {
		return ErrAsksThrottle
	}
	if err := CheckPaths(set); err != nil {
		return err
	}
	if err := checkMethods(set); err != nil {
		return err
	}
	return CheckSyntax(set)
}

// CheckMatcherSets checks each set of matchers.
func CheckMatcherSets(sets caddyhttp.RawMatcherSets) error {
	for _, set := range sets {
		if err := CheckMatcherSet(set); err != nil {
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

var ErrAsksThrottle = errors.New("throttle_blocked cannot be used inside throttle: use it outside, among the site's own matchers")
