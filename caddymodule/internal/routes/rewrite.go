package routes

import (
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// A Rewrite is what a handler makes of the paths of requests.
type Rewrite struct {
	Place string   // of the handler
	Text  string   // of it, in words of a Caddyfile
	Zones []string // of throttle that have seen the requests before it, and not after it

	// Makes are the paths that it makes, in which * stands for anything.
	Makes []string

	// Strips is a prefix that is removed. Then there is none of Makes.
	Strips string
}

// rewrite returns what a rewrite of a route makes of paths. Not ok are those that leave
// paths as they are, and those of front controllers, which read the path as sent.
func (h *Handler) rewrite(route *caddyhttp.Route) (made Rewrite, ok bool) {
	var config struct {
		URI        string            `json:"uri"`
		Strip      string            `json:"strip_path_prefix"`
		Suffix     string            `json:"strip_path_suffix"`
		Substring  []json.RawMessage `json:"uri_substring"`
		PathRegexp []json.RawMessage `json:"path_regexp"`
	}
	if h.Name != "rewrite" || json.Unmarshal(h.Raw, &config) != nil {
		return made, false
	}
	uri, _, _ := strings.Cut(config.URI, "?")
	made.Text = "rewrite " + config.URI
	switch {
	case config.Suffix != "" || len(config.Substring) > 0 || len(config.PathRegexp) > 0:
		made.Text, made.Makes = "uri", []string{"*"}
	case strings.Contains(uri, "{http.matchers.file."):
		made.Makes = tried(route)
	case uri != "" && uri != "{http.request.uri.path}" && uri != "{http.request.uri}" && !isIndex(uri):
		made.Makes = []string{wild(uri)}
	case config.Strip != "":
		made.Strips = "/" + strings.TrimPrefix(config.Strip, "/")
		made.Text = "uri strip_prefix " + made.Strips
	}
	return made, made.Makes != nil || made.Strips != ""
}

// tried returns the files that a route looks for, but for the path itself and for indexes.
func tried(route *caddyhttp.Route) (files []string) {
	for _, set := range route.MatcherSetsRaw {
		var file struct {
			Try []string `json:"try_files"`
		}
		_ = json.Unmarshal(set["file"], &file) // Caddy says what is wrong
		for _, try := range file.Try {
			if !strings.HasPrefix(try, "{http.request.uri.path}") && !isIndex(try) {
				files = append(files, "/"+strings.TrimPrefix(wild(try), "/"))
			}
		}
	}
	return files
}

// isIndex reports whether a path is that of an index, such as a front controller.
func isIndex(file string) bool {
	return slices.Contains([]string{"index.php", "index.html", "index.htm"}, path.Base(file))
}

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// wild returns a text with * for each placeholder.
func wild(text string) string { return placeholder.ReplaceAllString(text, "*") }

// MayMake reports whether the rewrite may make a request that matchers match of one that
// they do not match. Matchers that ask for no address know of no rewrite.
func (r *Rewrite) MayMake(matchers caddyhttp.RawMatcherSets) bool {
	return slices.ContainsFunc(matchers, r.mayMakeOne)
}

func (r *Rewrite) mayMakeOne(set caddy.ModuleMap) bool {
	if raw := set["path"]; raw != nil {
		var patterns caddyhttp.MatchPath
		_ = json.Unmarshal(raw, &patterns) // Caddy says what is wrong
		return slices.ContainsFunc(patterns, r.mayMakePath)
	}
	if raw := set["path_regexp"]; raw != nil {
		var expression caddyhttp.MatchPathRE
		_ = json.Unmarshal(raw, &expression)
		return r.mayMakeMatching(expression.Pattern)
	}
	for _, name := range []string{"expression", "vars", "vars_regexp"} {
		if strings.Contains(string(set[name]), "http.request.uri") || strings.Contains(string(set[name]), "path(") {
			return true
		}
	}
	return false
}

func (r *Rewrite) mayMakePath(pattern string) bool {
	pattern = strings.ToLower(pattern)
	if r.Strips == "" {
		return slices.ContainsFunc(r.Makes, func(made string) bool { return meet(strings.ToLower(made), pattern) })
	}
	shortest := strings.ReplaceAll(pattern, "*", "")
	return !meet(strings.ToLower(r.Strips)+"/"+strings.TrimPrefix(shortest, "/"), pattern)
}

func (r *Rewrite) mayMakeMatching(pattern string) bool {
	if r.Strips != "" {
		return strings.Contains(pattern, "^") // else it matches the longer path, too
	}
	compiled, err := regexp.Compile(pattern)
	return err == nil && slices.ContainsFunc(r.Makes, func(made string) bool {
		return strings.Contains(made, "*") || compiled.MatchString(made)
	})
}

// meet reports whether a text matches two patterns, in which * stands for anything.
func meet(a, b string) bool {
	switch {
	case a == "" || b == "":
		return strings.Trim(a+b, "*") == ""
	case a[0] == '*':
		return meet(a[1:], b) || b[0] != '*' && meet(a, b[1:])
	case b[0] == '*':
		return meet(a, b[1:]) || meet(a[1:], b)
	}
	return a[0] == b[0] && meet(a[1:], b[1:])
}
