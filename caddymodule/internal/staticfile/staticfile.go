// Package staticfile recognizes requests that Caddy answers with a file, and that run no
// program. Begin with [Matcher.Match].
package staticfile

import (
	"cmp"
	"errors"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// A Matcher matches requests that `file_server` answers with a file, and that no
// PHP site runs. If in doubt, it does not match. It is safe for concurrent use.
// [New] makes one.
//
// It asks more of files than Caddy's matcher `file` does: a regular file of the disk, by its
// one plain name, inside the root with all symbolic links resolved, none of which may be
// absolute. The method must be exactly GET or HEAD, without Authorization: a file may have a
// password, too, at which anybody could guess. A path does not match that has a trailing
// slash, an encoded slash, a backslash, a NUL, a dot file or a PHP extension anywhere in
// it, or that cleaning would change.
type Matcher struct {
	root   string
	logger *zap.Logger
	warned atomic.Bool
}

// New returns a matcher of the files under a root, which may hold placeholders.
// If root is empty, the site's root is used, as the directive `root` sets it.
// Requests for which no root is known, or can be read, do not match, nor those of a site with the directive
// `fs`; the first is logged as an error.
func New(ctx caddy.Context, root string) (*Matcher, error) {
	if root != "" && strings.TrimSpace(root) == "" {
		return nil, errors.New("the root of static_files is blank: want a folder, or nothing for the site's root")
	}
	return &Matcher{root: cmp.Or(root, "{http.vars.root}"), logger: ctx.Logger()}, nil
}

// Match reports whether a request asks for a static file. It does not touch the
// request's placeholders.
func (m *Matcher) Match(r *http.Request) bool {
	raw := strings.ToLower(r.URL.RawPath)
	separates := strings.Contains(raw, "%2f") || strings.Contains(raw, "%5c") // /style.css%2f is a folder to PHP sites, and runs their index
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok || separates || r.Header["Authorization"] != nil || !plain(r.URL.Path) || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	root, err := repl.ReplaceOrErr(m.root, true, true)
	var folder *os.Root
	if system, _ := repl.GetString("http.vars.fs"); system == "" && err == nil {
		folder, err = os.OpenRoot(root)
	}
	if folder == nil {
		if !m.warned.Swap(true) {
			m.logger.Error("static files are not exempt, because the site has no root, or none on the disk that Caddy may read: want root * <folder> in the site, or exempt static_files <folder>",
				zap.String("host", r.Host), zap.Error(err))
		}
		return false
	}
	defer func() { _ = folder.Close() }()
	info, err := folder.Stat(filepath.FromSlash(strings.TrimPrefix(r.URL.Path, "/")))
	return err == nil && info.Mode().IsRegular()
}

// plain reports whether a decoded path may be the name of a static file.
func plain(name string) bool {
	if !strings.HasPrefix(name, "/") || path.Clean(name) != name || strings.ContainsAny(name, "\x00\\") {
		return false
	}
	if runtime.GOOS == "windows" && (strings.Contains(name, ":") || caddyhttp.HasWindowsShortName(name)) {
		return false // other names of the same file
	}
	for segment := range strings.SplitSeq(name[1:], "/") {
		// Any extension may be one of PHP's, such as php, phtml and phar: servers with several
		// handlers may run x.php.css.
		if strings.HasPrefix(segment, ".") || strings.Contains(strings.ToLower(segment), ".ph") {
			return false
		}
	}
	return true
}
