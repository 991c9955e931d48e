package option

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
)

// Matchers that are accepted and never match are worse than an error: their owner finds
// out when the limit is needed. This file refuses them.

// CheckMatching refuses matchers that do not mean what they seem to.
func CheckMatching(match, exempt caddyhttp.RawMatcherSets) error {
	for i, set := range match {
		err := cmp.Or(CheckMatcherSet(set), CheckTails(set))
		if err == nil && slices.ContainsFunc(excludedBy(set), func(not caddy.ModuleMap) bool { return checkSpares(not) != nil }) {
			err = errors.New("match has not with a matcher of all requests, so the zone limits nothing: remove it")
		}
		if err != nil {
			return About("match", i, err)
		}
	}
	if err := CheckExempt(exempt); err != nil {
		return err
	}
	charges := func(match caddy.ModuleMap) bool {
		return !slices.ContainsFunc(exempt, func(set caddy.ModuleMap) bool {
			return maps.EqualFunc(match, set, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
		})
	}
	if len(match) > 0 && !slices.ContainsFunc(match, charges) {
		return About("exempt", 0, errors.New("exempt has all that match has, so the zone limits nothing: remove one of them"))
	}
	return nil
}

// matcherIn returns one matcher of a set, or nothing if there is none that can be read.
func matcherIn[T any](set caddy.ModuleMap, name string) (matcher T) {
	_ = json.Unmarshal(set[name], &matcher)
	return matcher
}

// CheckPathList refuses paths that no request has, as the matcher `path` takes them.
func CheckPathList(paths []string) error {
	for _, path := range paths {
		bare := strings.TrimLeft(path, "~*^")
		switch {
		case strings.HasPrefix(path, "~") || strings.HasPrefix(path, "^"):
			return fmt.Errorf("path %q never matches, since path takes no regular expression: did you mean path_regexp ^%s?", path, bare)
		case strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://"):
			return fmt.Errorf("path %q never matches, since paths have no host: want the path alone, such as /wp-login.php*", path)
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

func CheckTailsOf(paths []string) error {
	for _, path := range paths {
		if strings.HasSuffix(path, ".php") && !strings.ContainsAny(strings.TrimPrefix(path, "*"), "*{[") && !slices.Contains(paths, path+"*") && !slices.Contains(paths, path+"/*") {
			return fmt.Errorf("path %q leaves out %s/x, for which PHP runs the same script: did you mean %[1]s*?", path, path)
		}
	}
	return nil
}

// CheckExempt refuses exemptions that do not mean what they seem to, or of all requests.
func CheckExempt(sets caddyhttp.RawMatcherSets) error {
	for i, set := range sets {
		if err := cmp.Or(CheckMatcherSet(set), checkSpares(set)); err != nil {
			return About("exempt", i, err)
		}
	}
	return nil
}

// checkSpares refuses matchers of all requests.
func checkSpares(set caddy.ModuleMap) error {
	if len(set) != 1 {
		return nil
	}
	if paths := matcherIn[[]string](set, "path"); slices.Contains(paths, "*") || slices.Contains(paths, "/*") {
		return errors.New("exempt path /* exempts all requests, so nothing is limited: want the paths that are not to be charged")
	}
	for _, matcher := range []string{"client_ip", "remote_ip"} {
		for _, word := range rangesOf(set, matcher) {
			if network, err := netip.ParsePrefix(word); err == nil && network.Bits() == 0 {
				return fmt.Errorf("exempt %s %s exempts all clients, so nothing is limited: want the networks that are not to be charged", matcher, word)
			}
		}
	}
	return nil
}

// clientsSend finds the headers that all clients send. Others may be secrets.
var clientsSend = regexp.MustCompile(`(?i)user-agent|cookie`)

// Warnings says what is probably not meant by sets of matchers. An exemption by what anybody
// can send is one that anybody has.
func Warnings(sets caddyhttp.RawMatcherSets, exempt bool) (warnings []string) {
	for _, set := range sets {
		if warning := warningOf(set, exempt); warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return warnings
}

func warningOf(set caddy.ModuleMap, exempts bool) string {
	paths, query := matcherIn[[]string](set, "path"), matcherIn[map[string][]string](set, "query")
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
	for _, value := range matcherIn[caddyhttp.MatchHeader](set, "header")["User-Agent"] {
		if !strings.ContainsAny(value, "*/{") {
			return fmt.Sprintf("header User-Agent %s matches this value alone: for all that contain it, want header User-Agent *%[1]s*", value)
		}
	}
	return ""
}

// checkWords refuses words that no method and no host is.
func checkWords(set caddy.ModuleMap, matcher string) error {
	for i, word := range matcherIn[[]string](set, matcher) {
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
func rangesOf(set caddy.ModuleMap, matcher string) []string {
	return matcherIn[struct {
		Ranges []string `json:"ranges"`
	}](set, matcher).Ranges
}

// compiled are the matchers of Caddy that are compiled when they are provisioned, for which
// they need no other part of the config.
var compiled = []string{"client_ip", "remote_ip", "expression", "path_regexp", "header_regexp", "vars_regexp"}

// checkCompiled refuses matchers that do not compile. Caddy would refuse them only when it
// loads the config, where the error has no line.
func checkCompiled(set caddy.ModuleMap) error {
	for _, name := range compiled {
		if set[name] == nil || strings.Contains(strings.Join(rangesOf(set, name), ""), "{") { // filled in when the config is loaded
			continue
		}
		ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()}) // slow: it registers the metrics of the process
		_, err := ctx.LoadModuleByID("http.matchers."+name, set[name])
		cancel()
		if err != nil {
			why := strings.TrimPrefix(err.Error(), "provision http.matchers."+name+": ")
			why, _, _ = strings.Cut(why, "\n") // of expressions, which Caddy has rewritten
			return fmt.Errorf("%s: %s", name, why)
		}
	}
	return nil
}

// CheckMatcherSet refuses what the functions above do, matchers that look at the method as
// the client sent it, and throttle_blocked, which throttle itself decides. It also checks the
// sets behind `not`.
func CheckMatcherSet(set caddy.ModuleMap) error {
	var err error
	switch {
	case set["throttle_blocked"] != nil:
		return ErrAsksThrottle
	case set["path"] != nil:
		err = CheckPathList(matcherIn[caddyhttp.MatchPath](set, "path"))
	}
	err = cmp.Or(err, checkEmptied(set), checkMethods(set), checkWords(set, "method"), checkWords(set, "host"))
	if err == nil { // Caddy panics if some matchers are malformed
		err = checkCompiled(set)
	}
	if err == nil {
		err = CheckMatcherSets(excludedBy(set))
	}
	return err
}

// wordless are the matchers that mean something without a word.
var wordless = []string{"file", "tls", "throttle_blocked"}

// checkEmptied refuses matchers of which nothing is left but the name. Caddy accepts many of
// them, which then match all requests or none.
func checkEmptied(set caddy.ModuleMap) error {
	nots := excludedBy(set)
	for _, not := range nots {
		if err := checkEmptied(not); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		empty := len(wordsOf(set, name)) == 0 && !slices.Contains(wordless, name)
		if name == "not" {
			empty = len(nots) == 0 || slices.ContainsFunc(nots, func(not caddy.ModuleMap) bool { return len(not) == 0 })
		}
		if empty {
			return fmt.Errorf("%s: nothing stands after it, so it would match all requests or none: is a variable such as {$NAME} unset?", name)
		}
	}
	return nil
}

// checkVariables refuses matchers with a variable that is empty where Caddy runs. The Caddyfile
// may be adapted elsewhere, so this is checked when the config is loaded.
func checkVariables(set caddy.ModuleMap) error {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		for _, word := range wordsOf(set, name) {
			if err := CheckVariable(word); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

var variable = regexp.MustCompile(`\{env\.[^{}]*\}`)

func CheckVariable(word string) error {
	for _, placeholder := range variable.FindAllString(word, -1) {
		if caddy.NewReplacer().ReplaceAll(placeholder, "") == "" {
			return fmt.Errorf("%s is empty: set the variable where Caddy runs, or remove the line", placeholder)
		}
	}
	return nil
}

// wordsOf returns what a matcher of a set says: all of its JSON that is not empty, and keys
// where those are no fields.
func wordsOf(set caddy.ModuleMap, name string) (words []string) {
	keyed := name == "header" || name == "query" || name == "vars"
	var walk func(value any)
	walk = func(value any) {
		switch v := value.(type) {
		case []any:
			for _, element := range v {
				walk(element)
			}
		case map[string]any:
			for key, element := range v {
				if keyed {
					words = append(words, key)
				}
				walk(element)
			}
		case nil:
		default:
			if word := fmt.Sprint(v); word != "" {
				words = append(words, word)
			}
		}
	}
	walk(matcherIn[any](set, name))
	return words
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

// excludedBy returns the sets of matchers behind `not`.
func excludedBy(set caddy.ModuleMap) []caddy.ModuleMap {
	return matcherIn[[]caddy.ModuleMap](set, "not")
}

var ErrAsksThrottle = errors.New("throttle_blocked cannot be used inside throttle: use it outside, among the site's own matchers")

// Caddy's FastCGI client sends "post" as POST, and "get" as POST too. Zones judge a
// request by the method that it sends. checkMethods refuses the ways to ask for
// a method that Caddy judges itself, by what the client sent: an attacker would pass them.

var (
	methodPlaceholder = regexp.MustCompile(`http\.request\.(orig_)?method\b`)
	methodFunction    = regexp.MustCompile(`\bmethod\s*\(`)
)

var errMethodAsSent = errors.New("{method} and expressions with a method see what the client sent, and FastCGI sends post as POST: want the matcher method, such as match method POST")

// checkMethods refuses sets of matchers that look at the method as the client sent it.
// The matcher `method` itself is no such matcher within a zone.
func checkMethods(set caddy.ModuleMap) error {
	for name, raw := range set {
		if name != "not" && methodPlaceholder.Match(raw) || name == "expression" && methodFunction.Match(raw) {
			return errMethodAsSent
		}
	}
	return nil
}

// AsksMethod reports whether a word of a Caddyfile makes a matcher that checkMethods
// refuses.
func AsksMethod(word string) bool {
	return methodPlaceholder.MatchString(word) || methodFunction.MatchString(word)
}

// CheckOuter checks the matchers of the directive itself.
func CheckOuter(set caddy.ModuleMap) error { return cmp.Or(CheckMatcherSet(set), CheckTails(set)) }

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
		if err := cmp.Or(checkEmptied(set), checkVariables(set)); err != nil {
			return nil, fmt.Errorf("%s: %w", strings.ToLower(strings.TrimSuffix(field, "Raw")), err)
		}
	}
	loaded, err := ctx.LoadModule(module, field)
	if err != nil {
		return nil, fmt.Errorf("loading matchers: %w", err)
	}
	var sets caddyhttp.MatcherSets
	if err := sets.FromInterface(loaded); err != nil {
		return nil, err
	}
	return sets, nil
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
