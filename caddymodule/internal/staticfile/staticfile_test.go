package staticfile_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/fcgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func init() {
	caddy.RegisterModule(observer{})
	httpcaddyfile.RegisterHandlerDirective("observe", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		o := new(observer)
		return o, o.UnmarshalCaddyfile(h.Dispenser)
	})
	httpcaddyfile.RegisterDirectiveOrder("observe", httpcaddyfile.Before, "redir")
}

// An observer stands where throttle does, and says what the matcher does.
type observer struct {
	Root    string `json:"root,omitempty"`
	matcher *staticfile.Matcher
}

func (observer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.observe", New: func() caddy.Module { return new(observer) }}
}

func (o *observer) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&o.Root)
	return nil
}

func (o *observer) Provision(ctx caddy.Context) (err error) {
	o.matcher, err = staticfile.New(ctx, o.Root)
	return err
}

func (o *observer) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	w.Header().Set("Seen-Static", fmt.Sprint(o.matcher.Match(r)))
	return next.ServeHTTP(w, r)
}

// A site is a Caddy with a PHP site in this process.
type site struct {
	testing.TB
	ctx    caddy.Context
	server *caddyhttp.Server
	asked  atomic.Int64 // how often PHP ran
	root   string
}

// newSite runs a Caddyfile in which {php} and {root} are filled in.
func newSite(t testing.TB, directives string) *site {
	t.Helper()
	s := &site{TB: t, root: t.TempDir()}
	ran := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.asked.Add(1)
		fmt.Fprint(w, "index.php ran")
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() { _ = fcgi.Serve(listener, ran) }()
	backend := httptest.NewServer(ran)
	t.Cleanup(backend.Close)
	directives = strings.NewReplacer("{php}", listener.Addr().String(), "{root}", s.root, "{http}", backend.Listener.Addr().String()).Replace(directives)
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("http:// {\n"+directives+"\n}\n"), nil)
	check.OK(t, err)
	var config caddy.Config
	check.OK(t, json.Unmarshal(adapted, &config))
	silent := &caddy.CustomLog{}
	silent.WriterRaw = json.RawMessage(`{"output":"discard"}`)
	config.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": silent}}
	ctx, err := caddy.ProvisionContext(&config)
	check.OK(t, err)
	app, err := ctx.App("http")
	check.OK(t, err)
	s.ctx = ctx
	s.server = app.(*caddyhttp.App).Servers["srv0"]
	return s
}

// write makes a file below the root.
func (s *site) write(name string) {
	s.Helper()
	name = filepath.Join(s.root, filepath.FromSlash(name))
	check.OK(s, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte("a file"), 0o644)))
}

// ask sends a request line as it is. It reports whether the matcher took it for
// a static file, and whether an upstream has answered.
func (s *site) ask(line string) (static, ran bool) {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line + " HTTP/1.1\r\nHost: example.com\r\n\r\n")))
	if err != nil {
		return false, false // net/http answers 400
	}
	r.RemoteAddr = "203.0.113.7:1234"
	before := s.asked.Load()
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return w.Header().Get("Seen-Static") == "true", s.asked.Load() > before
}

const phpSite = "root * {root}\nobserve\nphp_fastcgi {php}\nfile_server"

var files = []string{
	"style.css", "img/logo.svg", "img/a b.png", "img/[1].png", "img/q?.png", "weird%2f.css", "noextension", "phpinfo.css", "a.PhpX/b.css",
	"index.php", "admin/index.php", "x.php.css", "x.phtml", "x.PHAR", "x.pht", "x.phps", "x.php5", "x.php/y.css", "x.css.php",
	".env", ".git/config", ".well-known/x.txt", "dir/.hidden/x.css", "back\\slash.css", "..css", "dir/index.html",
}

func TestStaticFilesThatExistMatch(t *testing.T) {
	s := newSite(t, phpSite)
	for _, name := range files {
		s.write(name)
	}
	for _, line := range []string{
		"GET /style.css", "HEAD /style.css", "GET /style.css?s=x", "GET /img/logo.svg", "GET /img/a%20b.png",
		"GET /img/[1].png", "GET /img/q%3F.png", "GET /noextension", "GET /phpinfo.css", "GET /%73tyle.css", "GET /dir/index.html",
	} {
		static, ran := s.ask(line)
		check.That(t, static && !ran, "%s: got %v, %v, want a static file that no upstream answers", line, static, ran)
	}
}

// hostile are request lines that look like a static file, or whose cleaned path
// is one.
func hostile() (lines []string) {
	for _, target := range []string{
		"/", "/index.php", "/nothing.css", "/style.css/", "/style.css/?s=x", "/style.css%2f", "/style.css%2f?s=x", "/style.css%2F",
		"/style.css%00", "/style.css%00.php", "/style.css%5c", "/style.css\\", "/style.css/.", "/style.css/..", "/style.css/./", "/style.css/x",
		"//style.css", "/./style.css", "/img/../style.css", "/img/%2e%2e/style.css", "/img%2f..%2fstyle.css", "/img%2flogo.svg", "/img//logo.svg",
		"/img", "/img/", "/dir", "/dir/", "/x.php.css", "/x.php%2ecss", "/x.phtml", "/x.PHAR", "/x.pht", "/x.phps", "/x.php5", "/x.php/y.css", "/X.PHP/y.css",
		"/x.css.php", "/a.PhpX/b.css", "/style.css/x.php", "/index.php/style.css", "/index.php/style.css/", "/admin", "/admin/", "/.env", "/.git/config",
		"/.well-known/x.txt", "/dir/.hidden/x.css", "/back%5cslash.css", "/..css", "/%2e%2e/%2e%2e/etc/passwd", "/weird%252f.css/", "/style.css;x", "/style.css%20",
		"/style.css.", "/style.css%0a", "/*", "/img/*.svg", "/st%3Fle.css", "/%5Bs%5Dtyle.css", "/out.css", "/outside/secret.css", "/loop.css", "/dangling.css",
		"/in.css/", "/toindex.css/", "/style.css?/../index.php/", "http://example.com/style.css/", "http://example.com//style.css",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "get", "Get", "OPTIONS", "PUT", "DELETE", "PROPFIND", "TRACE"} {
			lines = append(lines, method+" "+target)
		}
	}
	return lines
}

// hostileSite has all the files, and symbolic links in and out of its root.
func hostileSite(t testing.TB, directives string) *site {
	s := newSite(t, directives)
	for _, name := range files {
		s.write(name)
	}
	outside := t.TempDir()
	for link, target := range map[string]string{
		"out.css": filepath.Join(outside, "secret.css"), "outside": outside, "loop.css": "loop.css", "dangling.css": "nowhere.css",
		"in.css": "style.css", "toindex.css": "index.php", "absolute.css": filepath.Join(s.root, "style.css"),
	} {
		check.OK(t, os.Symlink(target, filepath.Join(s.root, link)))
	}
	check.OK(t, os.WriteFile(filepath.Join(outside, "secret.css"), nil, 0o644))
	return s
}

func TestNothingThatReachesTheUpstreamMatches(t *testing.T) {
	for name, directives := range map[string]string{
		"php_fastcgi":             phpSite,
		"try_files and a proxy":   "root * {root}\nobserve\ntry_files {path} /index.php\n@php path *.php\nreverse_proxy @php {http}\nfile_server",
		"proxy of what is absent": "root * {root}\nobserve\n@absent not file\nreverse_proxy @absent {http}\nfile_server",
		"root of the matcher":     "root * {root}\nmap {host} {folder} {\ndefault {root}\n}\nobserve * {folder}\nphp_fastcgi {php}\nfile_server",
	} {
		t.Run(name, func(t *testing.T) {
			s := hostileSite(t, directives)
			statics := 0
			for _, line := range hostile() {
				static, ran := s.ask(line)
				check.That(t, !static || !ran, "%s is exempt, and runs the upstream", line)
				if static {
					statics++
				}
			}
			static, ran := s.ask("GET /in.css")
			check.That(t, static && !ran, "a link within the root is no static file")
			static, _ = s.ask("GET /absolute.css")
			check.That(t, !static, "an absolute link is a static file")
			check.Equal(t, statics, 2, "static files among the hostile paths: GET and HEAD /style.css?/../index.php/")
		})
	}
}

func FuzzNothingThatReachesTheUpstreamMatches(f *testing.F) {
	s := hostileSite(f, phpSite)
	for _, line := range hostile() {
		method, target, _ := strings.Cut(line, " ")
		f.Add(method, target)
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		if strings.ContainsAny(method+target, " \r\n") {
			t.Skip("no request line")
		}
		static, ran := s.ask(method + " " + target)
		check.That(t, !static || !ran, "%s %s is exempt, and runs the upstream", method, target)
	})
}

func TestWithoutARootOnTheDiskNothingMatches(t *testing.T) {
	for _, directives := range []string{"observe\nrespond ok", "root * .\nvars fs another\nobserve\nrespond ok", "root * ./missing\nobserve\nrespond ok"} {
		s := newSite(t, directives)
		static, _ := s.ask("GET /staticfile.go") // it exists in the working directory
		check.That(t, !static, "%s: a file of the working directory is exempt", directives)
	}
}
