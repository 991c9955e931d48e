// Package inspector is the page that shows what throttle does, and changes it. Begin with
// [Inspector]. What it shows comes from the admin API.
package inspector

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/routes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
)

func init() {
	caddy.RegisterModule(Inspector{})
	httpcaddyfile.RegisterHandlerDirective("throttle_inspector", parse)
	// Users log in before, and a handle that serves the rest of the site comes after.
	httpcaddyfile.RegisterDirectiveOrder("throttle_inspector", httpcaddyfile.Before, "invoke")
}

// Inspector serves a page that shows what throttle does, and can change it while Caddy
// runs, as the commands of `caddy throttle` do. It answers every request that reaches
// it. Requests whose user Caddy has not authenticated get status 403, so put it behind
// `basic_auth`, another authentication, or `forward_auth`.
type Inspector struct {
	// Let every user whom the page is shown to lift and set bans, limits and shadow,
	// and empty buckets. Default: the page only shows. It still only shows if neither
	// the site nor `hosts` names a host.
	AllowChanges bool `json:"allow_changes,omitempty"`

	// The names under which the page may be opened, without ports. Default: those of
	// the site. Without either, a foreign page could reach this one under a name of
	// its own (DNS rebinding).
	Hosts []string `json:"hosts,omitempty"`

	// The header of the authentication service's answer that names the user, such as
	// `Remote-User`, for `forward_auth`. A header that the client sends does not
	// count. Default: the user whom Caddy's own authentication names,
	// `{http.auth.user.id}`.
	UserHeader string `json:"user_header,omitempty"`

	app      *engine.Engine
	settle   func() // decides about changes, once
	readOnly string // why nothing can be changed; empty if it can
}

// CaddyModule returns the Caddy module information.
func (Inspector) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.throttle_inspector",
		New: func() caddy.Module { return new(Inspector) },
	}
}

// Provision makes sure that the app runs, even without a zone.
func (i *Inspector) Provision(ctx caddy.Context) (err error) {
	if err = i.checkHosts(); err != nil {
		return err
	}
	if i.app, err = engine.EngineOf(ctx); err != nil {
		return err
	}
	i.settle = sync.OnceFunc(func() { i.decide(ctx) })
	i.app.OnStart = append(i.app.OnStart, func(context.Context) error { i.settle(); return nil })
	return nil
}

// decide finds out whether the page may change anything. It must be called when the
// handlers of all servers are provisioned.
func (i *Inspector) decide(ctx caddy.Context) {
	switch {
	case !i.AllowChanges:
		i.readOnly = "This page only shows. Changes need allow_changes in its configuration."
	case len(i.Hosts) == 0 && !i.hosted(ctx):
		i.readOnly = "This page only shows, because it answers under any host name, and so to foreign pages (DNS rebinding). Give the site a name, or add hosts."
		i.app.Warner.Warn("throttle_inspector allows no changes, in spite of allow_changes", zap.String("why", i.readOnly))
	}
}

// hosted reports whether matchers of the site let only its own host names through to
// the inspector.
func (i *Inspector) hosted(ctx caddy.Context) bool {
	found, open := false, false
	walk := routes.Walk{Visit: func(h *routes.Handler, _ string, way routes.Way) []string {
		if h.Module == caddyhttp.MiddlewareHandler(i) {
			found, open = true, open || !way.Hosted
		}
		return nil
	}}
	for _, server := range routes.ServersOf(ctx) {
		walk.Routes(server.Routes, "", routes.Way{})
	}
	return found && !open
}

// checkHosts checks the hosts and makes them lower case.
func (i *Inspector) checkHosts() (err error) {
	if i.Hosts != nil && len(i.Hosts) == 0 {
		return errors.New("hosts has no value: want the names under which the page may be opened, such as hosts throttle.example.com")
	}
	for n, host := range i.Hosts {
		if i.Hosts[n], err = parseHost(host); err != nil {
			return err
		}
	}
	return nil
}

// parseHost checks one of the hosts and returns it in lower case.
func parseHost(host string) (string, error) {
	if u, err := url.Parse(host); err == nil && u.Scheme != "" && u.Host != "" {
		return "", fmt.Errorf("invalid host %q: did you mean %s?", host, u.Hostname())
	}
	bare := strings.Trim(host, "[]")
	if name, port, err := net.SplitHostPort(host); err == nil && port != "" {
		return "", fmt.Errorf("invalid host %q: hosts have no ports: did you mean %s?", host, name)
	}
	switch {
	case bare == "" || strings.ContainsAny(bare, "/*{} ,@"):
		return "", fmt.Errorf("invalid host %q: want a name such as throttle.example.com", host)
	case strings.ContainsFunc(bare, func(c rune) bool { return c > '~' }):
		return "", fmt.Errorf("invalid host %q: want it in ASCII, as browsers send it (xn--...)", host)
	}
	return strings.ToLower(bare), nil
}

// hostOf returns the host of a request, without the port.
func hostOf(r *http.Request) string {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// user returns the name of the user whom somebody else has authenticated, or "".
func (i *Inspector) user(r *http.Request) string {
	replacer := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if i.UserHeader != "" {
		if user, _ := replacer.GetString("http.reverse_proxy.header." + http.CanonicalHeaderKey(i.UserHeader)); user != "" {
			return user
		}
	}
	user, _ := replacer.GetString("http.auth.user.id")
	return user
}

// pageSecret signs the tokens of pages. They are worth nothing once the process ends.
var pageSecret = []byte(rand.Text())

// TokenOf returns what the pages of a user send to show that they come from here.
func TokenOf(user string) string {
	h := hmac.New(sha256.New, pageSecret)
	h.Write([]byte(user))
	return hex.EncodeToString(h.Sum(nil))
}

// sameOrigin reports whether a request comes from a page of the host that it is for.
func sameOrigin(r *http.Request) bool {
	sites, origins := r.Header["Sec-Fetch-Site"], r.Header["Origin"]
	foreign := func(origin string) bool {
		return !strings.EqualFold(origin, "https://"+r.Host) && !strings.EqualFold(origin, "http://"+r.Host)
	}
	return max(len(sites), len(origins)) == 1 &&
		!slices.ContainsFunc(sites, func(site string) bool { return site != "same-origin" }) && !slices.ContainsFunc(origins, foreign)
}

// inspectorCalls are the calls of the admin API that pages make.
var inspectorCalls = []string{
	"zones", "overrides", "journal", "rates", "buckets", "top", "why", "check",
	"ban", "unban", "limit", "unlimit", "release", "shadow", "unshadow",
}

func forbidden(format string, args ...any) error {
	return caddy.APIError{HTTPStatus: http.StatusForbidden, Err: fmt.Errorf(format, args...)}
}

// ServeHTTP implements caddyhttp.MiddlewareHandler. It answers every request itself:
// GET with the page, and POST with what the page asks for.
func (i *Inspector) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	i.settle()
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	err := i.serve(w, r)
	var refused caddy.APIError
	if err == nil || !errors.As(err, &refused) {
		return err
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(refused.HTTPStatus)
	return json.NewEncoder(w).Encode(map[string]string{"error": refused.Error()})
}

func (i *Inspector) serve(w http.ResponseWriter, r *http.Request) error {
	user := i.user(r)
	asks := r.URL.Query()["do"]
	switch {
	case user == "":
		return forbidden("nobody is logged in: put throttle_inspector behind basic_auth or another authentication of Caddy, or behind forward_auth with user_header")
	case len(i.Hosts) > 0 && !slices.Contains(i.Hosts, hostOf(r)):
		return forbidden("the host %q is none of the hosts of throttle_inspector", hostOf(r))
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && len(asks) == 0:
		return i.servePage(w, user)
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "GET, HEAD, POST")
		if len(asks) > 0 {
			w.Header().Set("Allow", http.MethodPost)
		}
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed: want POST", r.Method)}
	case !sameOrigin(r):
		return forbidden("the request comes from another site: want Sec-Fetch-Site same-origin, or an Origin that is the host")
	case !hmac.Equal([]byte(r.Header.Get("X-Throttle-Token")), []byte(TokenOf(user))):
		return forbidden("the page is older than this Caddy: load it again")
	case len(asks) != 1 || !slices.Contains(inspectorCalls, asks[0]):
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("the page has no call %q", asks)}
	}
	path := "/throttle/" + asks[0]
	if admin.Calls[path].Changes && i.readOnly != "" {
		return forbidden("%s", i.readOnly)
	}
	return admin.Answer(w, r, path, override.Origin{Via: "inspector", By: user}, admin.ForReaders)
}

var (
	//go:embed page.html
	inspectorHTML string
	//go:embed page.css
	inspectorStyle string
	//go:embed page.js
	inspectorScript string

	inspectorPage = template.Must(template.New("page").Parse(inspectorHTML))
)

// servePage writes the page. All it shows comes later, by its script.
func (i *Inspector) servePage(w http.ResponseWriter, user string) error {
	nonce := rand.Text()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%[1]s'; "+
		"img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "+
		"require-trusted-types-for 'script'; trusted-types 'none'", nonce))
	return inspectorPage.Execute(w, map[string]any{
		"Nonce": nonce, "User": user, "Token": TokenOf(user), "ReadOnly": i.readOnly, "Warned": i.AllowChanges && i.readOnly != "",
		"Style": template.CSS(inspectorStyle), "Script": template.JS(inspectorScript),
	})
}

// parse sets up the handler from Caddyfile tokens. Syntax:
//
//	throttle_inspector [<matcher>] {
//	    allow_changes
//	    hosts <name>...
//	    user_header <name>
//	}
func parse(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	i := new(Inspector)
	h.Next() // the directive's name
	if h.NextArg() {
		return nil, h.Errf("unexpected %q after throttle_inspector: want a matcher such as /inspector, and options in a block", h.Val())
	}
	return i, tokens.Options(h.Dispenser, "the directive throttle_inspector", i, i.checkHosts, "allow_changes", "hosts", "user_header")
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Inspector)(nil)
	_ caddyhttp.MiddlewareHandler = (*Inspector)(nil)
)
