package option

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
)

// Matchers that are accepted and never match are worse than an error: their owner finds
// out when the limit is needed. This file refuses them.

// CheckMatch checks which requests are limited.
func CheckMatch(sets caddyhttp.RawMatcherSets) error {
	return checkEach("match", sets, func(set caddy.ModuleMap) error { return cmp.Or(checkSet(set), CheckTails(set)) })
}

// checkEach checks the sets of an option, if it is one.
func checkEach(option string, sets caddyhttp.RawMatcherSets, check func(caddy.ModuleMap) error) error {
	for i, set := range sets {
		if err := check(set); err != nil {
			return About(option, i, err)
		}
	}
	return nil
}

// emptyValue finds an empty value of a header or a parameter.
var emptyValue = regexp.MustCompile(`[\[,]\s*""`)

// CheckFree checks what an option frees or gives priority. An unset variable must not make a secret one
// that anybody can send.
func CheckFree(option string, sets caddyhttp.RawMatcherSets) error {
	return checkEach(option, sets, func(set caddy.ModuleMap) error {
		if emptyValue.Match(slices.Concat(set["header"], set["query"])) {
			return errors.New("anybody can send an empty header or parameter: is a variable such as {$NAME} unset?")
		}
		return checkSet(set)
	})
}

// CheckMatcherSets checks each set of matchers.
func CheckMatcherSets(sets caddyhttp.RawMatcherSets) error {
	return checkEach("", sets, checkSet)
}

// checkSet refuses what the functions below do, matchers that look at the method as
// the client sent it, and those that ask what throttle itself decides. It also checks the
// sets behind `not`.
func checkSet(set caddy.ModuleMap) error {
	for name, raw := range set {
		if name == "throttle_blocked" || bytes.Contains(raw, []byte("http.throttle.")) {
			return ErrAsksThrottle
		}
	}
	return cmp.Or(CheckPathList(matcherIn[[]string](set, "path")), checkWords(set), checkEmptied(set), checkMethods(set), CheckMatcherSets(matcherIn[caddyhttp.RawMatcherSets](set, "not")))
}

// matcherIn returns one matcher of a set, or nothing if there is none that can be read.
func matcherIn[T any](set caddy.ModuleMap, name string) (matcher T) {
	_ = json.Unmarshal(set[name], &matcher)
	return matcher
}

// CheckPathList refuses paths that no request has, as the matcher `path` takes them.
func CheckPathList(paths []string) error {
	for _, path := range paths {
		if path == "" || !strings.ContainsAny(path[:1], `/*{[\`) || strings.HasSuffix(path, ",") || strings.Contains(path, ",/") || strings.Contains(path, "?") && !strings.Contains(path, "{") {
			return fmt.Errorf("path %q never matches: want paths that begin with a slash, without a query, and with blanks between them; other matchers go on lines of their own, in a block", path)
		}
	}
	return nil
}

// checkWords refuses methods and hosts that no request has.
func checkWords(set caddy.ModuleMap) error {
	for _, method := range matcherIn[[]string](set, "method") {
		if method != strings.ToUpper(method) || strings.ContainsAny(method, ",{") {
			return fmt.Errorf("method %q never matches: want words in upper case, with blanks between them, such as GET POST", method)
		}
	}
	for _, host := range matcherIn[[]string](set, "host") {
		if !strings.Contains(host, "{") && (strings.ContainsAny(host, ",/[") || strings.Count(host, ":") == 1) {
			return fmt.Errorf("host %q never matches: want names without scheme, port and brackets, with blanks between them", host)
		}
	}
	return nil
}

// CheckTails refuses matchers for limits that name a PHP script without what may follow its
// name: PHP runs the script for /script.php/x, too, so clients would evade the limit.
func CheckTails(set caddy.ModuleMap) error {
	if err := CheckTailsOf(matcherIn[caddyhttp.MatchPath](set, "path")); err != nil {
		return err
	}
	if pattern := matcherIn[caddyhttp.MatchPathRE](set, "path_regexp").Pattern; strings.HasSuffix(pattern, "php$") {
		return fmt.Errorf("path_regexp %q leaves out .php/x, for which PHP runs the same script: did you mean %s(/|$)?", pattern, strings.TrimSuffix(pattern, "$"))
	}
	return nil
}

// CheckTailsOf refuses paths that name a script of PHP but not what may follow its name.
func CheckTailsOf(paths []string) error {
	for _, path := range paths {
		if strings.HasSuffix(path, ".php") && !strings.ContainsAny(strings.TrimPrefix(path, "*"), "*{[") && !slices.Contains(paths, path+"*") && !slices.Contains(paths, path+"/*") {
			return fmt.Errorf("path %q leaves out %s/x, for which PHP runs the same script: did you mean %[1]s*?", path, path)
		}
	}
	return nil
}

// clientsSend finds the headers that all clients send, or send with any value. Others may be secrets.
var clientsSend = regexp.MustCompile(`(?i)user-agent|cookie|\["\*"]`)

// AnybodySends reports whether a set matches by a header that anybody can send.
func AnybodySends(set caddy.ModuleMap) bool {
	return !identifies(set) && clientsSend.MatchString(string(set["header"])+string(set["header_regexp"])+string(set["expression"]))
}

// identifies reports whether a set looks at what clients cannot choose, or may do so.
func identifies(set caddy.ModuleMap) bool {
	return set["client_ip"] != nil || set["remote_ip"] != nil || set["verified_crawler"] != nil || set["not"] != nil
}

// Warnings says what is probably not meant by exemptions: one by what anybody can send is one
// that anybody has.
func Warnings(exempt caddyhttp.RawMatcherSets) (warnings []string) {
	for _, set := range exempt {
		paths := matcherIn[[]string](set, "path")
		switch {
		case identifies(set):
		case AnybodySends(set):
			warnings = append(warnings, "anybody can send the header by which requests are exempt: exempt addresses with client_ip, or crawlers with verified_crawler")
		case set["file"] != nil, slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(path, "*.") }):
			warnings = append(warnings, "the exemption has PHP scripts, too, as they are files, and /index.php/x.css runs one: want exempt static_files")
		case slices.ContainsFunc(paths, func(path string) bool { return strings.Contains(path, ".php") }):
			warnings = append(warnings, "anybody can call the script that is exempt by its path: exempt those who may with client_ip")
		}
	}
	return warnings
}

// LeftOut returns the sets behind `not` by which a limit leaves out static files: it is as if they
// were exempt.
func LeftOut(match caddyhttp.RawMatcherSets) (sets caddyhttp.RawMatcherSets) {
	for _, set := range match {
		for _, not := range matcherIn[caddyhttp.RawMatcherSets](set, "not") {
			paths := matcherIn[[]string](not, "path")
			if not["file"] != nil || slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(path, "*.") && !strings.Contains(path, ".php") }) {
				sets = append(sets, not)
			}
		}
	}
	return sets
}

// wordless are the matchers that mean something without a word.
var wordless = []string{"file", "tls", "throttle_blocked"}

var (
	fieldName = regexp.MustCompile(`"[^"]*":`)
	saysMore  = regexp.MustCompile(`[^][{}",:\s]`)
	variable  = regexp.MustCompile(`\{env\.[^{}]*\}`)
)

// checkEmptied refuses matchers of which nothing is left but the name. Caddy accepts many of
// them, which then match all requests or none.
func checkEmptied(set caddy.ModuleMap) error {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		says := strings.ReplaceAll(string(set[name]), "null", "")
		if name != "header" && name != "query" && name != "vars" { // whose names are no fields
			says = fieldName.ReplaceAllString(says, "")
		}
		empty := !saysMore.MatchString(says) && !slices.Contains(wordless, name)
		if name == "not" {
			nots := matcherIn[caddyhttp.RawMatcherSets](set, "not")
			empty = len(nots) == 0 || slices.ContainsFunc(nots, func(not caddy.ModuleMap) bool { return len(not) == 0 })
		}
		if empty {
			return fmt.Errorf("%s: nothing stands after it, so it would match all requests or none: is a variable such as {$NAME} unset?", name)
		}
	}
	return nil
}

// CheckVariable refuses a text with a variable that is empty where Caddy runs. The Caddyfile may be
// adapted elsewhere, so this is checked when the config is loaded.
func CheckVariable(text string) error {
	for _, placeholder := range variable.FindAllString(text, -1) {
		if caddy.NewReplacer().ReplaceAll(placeholder, "") == "" {
			return fmt.Errorf("%s is empty: set the variable where Caddy runs, or remove the line", placeholder)
		}
	}
	return nil
}

// ErrAsksThrottle is the error of a matcher that would ask the zone it is for.
var ErrAsksThrottle = errors.New("throttle_blocked and {http.throttle.*} cannot be used inside throttle or in_flight: use them in the matchers of other directives")

// Caddy's FastCGI client sends "post" as POST, and "get" as POST too. Zones judge a
// request by the method that it sends. checkMethods refuses the ways to ask for
// a method that Caddy judges itself, by what the client sent: an attacker would pass them.

var (
	methodPlaceholder = regexp.MustCompile(`http\.request\.(orig_)?method\b`)
	methodFunction    = regexp.MustCompile(`\bmethod\s*\(`)
)

// checkMethods refuses sets of matchers that look at the method as the client sent it.
// The matcher `method` itself is no such matcher within a zone.
func checkMethods(set caddy.ModuleMap) error {
	for name, raw := range set {
		if name != "not" && methodPlaceholder.Match(raw) || name == "expression" && methodFunction.Match(raw) {
			return errors.New("{method} and expressions with a method see what the client sent, and FastCGI sends post as POST: want the matcher method, such as match method POST")
		}
	}
	return nil
}

// LoadMatch checks and provisions the field Match of a handler.
func LoadMatch(ctx caddy.Context, handler any, raw caddyhttp.RawMatcherSets) (caddyhttp.MatcherSets, error) {
	if err := CheckMatch(raw); err != nil {
		return nil, err
	}
	return LoadMatchers(ctx, handler, "Match", raw)
}

// LoadMatchers provisions the matcher sets in a field of a module. If there are none,
// it returns nil.
func LoadMatchers(ctx caddy.Context, module any, field string, raw caddyhttp.RawMatcherSets) (caddyhttp.MatcherSets, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	for _, set := range raw {
		if len(set) == 0 {
			return nil, errors.New("loading matchers: a set without matchers would match everything")
		}
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if err := CheckVariable(string(set[name])); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", strings.ToLower(strings.TrimSuffix(field, "Raw")), name, err)
			}
		}
	}
	loaded, err := ctx.LoadModule(module, field)
	if err != nil {
		return nil, fmt.Errorf("loading matchers: %w", err)
	}
	var sets caddyhttp.MatcherSets
	err = sets.FromInterface(loaded)
	return sets, err
}

// StaticFiles exempts files from being charged. Only the one plain name of a file
// counts, because PHP sites run index.php for most others. Names with a trailing or
// encoded slash, a backslash, a dot file or a PHP extension anywhere are charged, and
// so are symbolic links that are absolute or lead out of the root.
type StaticFiles struct {
	// The folder with the files. It may have placeholders. Default: the site's
	// root, as the directive `root` sets it.
	Root string `json:"root,omitempty"`
}

// LoadStatic returns the matchers of static files.
func LoadStatic(ctx caddy.Context, files []StaticFiles) (matchers []*staticfile.Matcher, err error) {
	for _, f := range files {
		m, err := staticfile.New(ctx, f.Root)
		if err != nil {
			return nil, err
		}
		matchers = append(matchers, m)
	}
	return matchers, nil
}
