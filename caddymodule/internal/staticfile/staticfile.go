// Package staticfile recognizes requests that Caddy answers with a file, and that run no
// program. Begin with [Matcher.Match].
package staticfile

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
)

const (
	// How long a look-up counts. A file that is deleted counts as a file until
	// then.
	lookUpFor = time.Second

	// The most look-ups that are kept, and the longest name: together at most 2
	// MiB.
	mostLookUps  = 4096
	longestNames = 512
)

const (
	rootVar = "http.vars.root"
	fsVar   = "http.vars.fs"
)

// A Matcher matches requests that `file_server` answers with a file, and that no
// PHP site runs. If in doubt, it does not match. It is safe for concurrent use.
// [New] makes one.
//
// It looks files up where Caddy's matcher `file` does, in the file system that the
// directive `fs` names, and asks more of them: a regular file, by its one plain
// name, inside the root with all symbolic links resolved. The method must be
// exactly GET or HEAD. A path does not match that has a trailing slash, an
// encoded slash, a backslash, a NUL, a dot file or a PHP extension anywhere in
// it, or that cleaning would change.
type Matcher struct {
	root    string // "" if it is a single placeholder
	rootVar string // the name of that
	systems caddy.FileSystems
	logger  *zap.Logger
	seen    *expiring.Map[lookUp, bool]
	warned  atomic.Bool
}

// A lookUp is a file that was asked for.
type lookUp struct{ fs, root, path string }

// New returns a matcher of the files under a root, which may hold placeholders.
// If root is empty, the site's root is used, as the directive `root` sets it.
// Requests for which no root is known do not match; the first is logged as an
// error.
func New(ctx caddy.Context, root string) (*Matcher, error) {
	m := &Matcher{
		root:    root,
		systems: ctx.FileSystems(),
		logger:  ctx.Logger(),
		seen:    expiring.New[lookUp, bool](mostLookUps),
	}
	switch inner := strings.TrimSuffix(strings.TrimPrefix(root, "{"), "}"); {
	case root == "":
		m.rootVar = rootVar
	case strings.TrimSpace(root) == "":
		return nil, errors.New("the root of static_files is blank: want a folder, or nothing for the site's root")
	case len(inner) == len(root)-2 && !strings.ContainsAny(inner, "{}\\"):
		m.rootVar = inner
	}
	return m, nil
}

// Match reports whether a request asks for a static file. It does not touch the
// request's placeholders.
func (m *Matcher) Match(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	if !plain(r.URL.Path) || encodesSeparator(r.URL.RawPath) {
		return false
	}
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return false
	}
	root := m.rootOf(repl)
	if root == "" {
		if !m.warned.Swap(true) {
			m.logger.Error("static files are not exempt, because the site has no root: want root * <folder> in the site, or exempt static_files <folder>",
				zap.String("host", r.Host))
		}
		return false
	}
	system, _ := repl.GetString(fsVar)
	asked := lookUp{system, root, r.URL.Path}
	if len(system)+len(root)+len(r.URL.Path) > longestNames {
		return m.exists(asked)
	}
	now := time.Now()
	exists, known := m.seen.Get(asked, now)
	if !known {
		exists = m.exists(asked)
		m.seen.Put(asked, exists, now.Add(lookUpFor), now)
	}
	return exists
}

func (m *Matcher) rootOf(repl *caddy.Replacer) string {
	if m.rootVar != "" {
		root, _ := repl.GetString(m.rootVar)
		return root
	}
	root, err := repl.ReplaceOrErr(m.root, true, true)
	if err != nil {
		return ""
	}
	return root
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
		if strings.HasPrefix(segment, ".") || runsPHP(segment) {
			return false
		}
	}
	return true
}

// runsPHP reports whether any extension of a name is one of PHP's: servers with
// several handlers may run `x.php.css`.
func runsPHP(name string) bool {
	_, extensions, _ := strings.Cut(name, ".")
	for extension := range strings.SplitSeq(extensions, ".") {
		for _, ofPHP := range []string{"php", "pht", "phar"} {
			if len(extension) >= len(ofPHP) && strings.EqualFold(extension[:len(ofPHP)], ofPHP) {
				return true
			}
		}
	}
	return false
}

// encodesSeparator reports whether a raw path has an encoded slash or backslash.
// `/style.css%2f` is the folder style.css to PHP sites, and runs their index.
func encodesSeparator(raw string) bool {
	raw = strings.ToLower(raw)
	return strings.Contains(raw, "%2f") || strings.Contains(raw, "%5c")
}

// exists looks for the file.
func (m *Matcher) exists(asked lookUp) bool {
	system, ok := m.systems.Get(asked.fs)
	if !ok {
		return false
	}
	root := filepath.Clean(asked.root)
	return regularWithin(system, root, caddyhttp.SanitizedPathJoin(root, asked.path))
}

// regularWithin reports whether a file is regular and, on a disk, inside of the
// root with all symbolic links followed, none of which may be absolute. Other file
// systems resolve links themselves.
func regularWithin(system fs.FS, root, name string) bool {
	file, err := system.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	onDisk, ok := file.(*os.File)
	if !ok {
		return true
	}
	opened, err := system.Open(root)
	if err != nil {
		return false
	}
	defer func() { _ = opened.Close() }()
	folder, ok := opened.(*os.File)
	if !ok {
		return false
	}
	relative, err := filepath.Rel(folder.Name(), onDisk.Name())
	if err != nil {
		return false
	}
	within, err := os.OpenInRoot(folder.Name(), relative)
	return err == nil && within.Close() == nil
}

// UpstreamAnswered reports, after the next handler ran, whether an upstream was
// asked for the response, by reverse_proxy or php_fastcgi. A proxy that only said
// that the request may go on, as forward_auth does, does not count.
func UpstreamAnswered(r *http.Request, response http.Header) bool {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return false
	}
	// Set once the response has been copied to the client.
	if _, copied := repl.Get("http.reverse_proxy.upstream.duration"); copied {
		return true
	}
	if status, _ := repl.Get("http.reverse_proxy.status_code"); status == http.StatusSwitchingProtocols {
		return true
	}
	_, asked := repl.Get("http.reverse_proxy.upstream.address")
	if _, answered := repl.Get("http.reverse_proxy.upstream.latency"); answered {
		// The proxy has begun to copy the response, which then broke off.
		return strings.HasSuffix(strings.Join(response["Via"], ","), " Caddy")
	}
	// An upstream that gave no headers failed, or the client left while it worked.
	return asked
}
