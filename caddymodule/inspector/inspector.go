// Package inspector is the page that shows what throttle does, and changes it. Begin with
// [Inspector]. What it shows comes from the admin API.
package inspector

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
)

func init() {
	caddy.RegisterModule(Inspector{})
	httpcaddyfile.RegisterHandlerDirective("throttle_inspector", parse)
	// Users log in before, and a handle that serves the rest of the site comes after.
	httpcaddyfile.RegisterDirectiveOrder("throttle_inspector", httpcaddyfile.Before, "invoke")
}

// Inspector serves a page that shows what throttle does, and can change it while Caddy
// runs, as the commands of `caddy throttle` do. It answers every request that reaches
// it. Unless it is `open`, requests without an authenticated user get status 403, so put it
// behind `basic_auth`, another authentication, `forward_auth`, or client certificates.
type Inspector struct {
	// Let every user of the page set and end bans, limits and shadow, and empty
	// buckets. Default: users only look, as they always do with `open`.
	AllowChanges bool `json:"allow_changes,omitempty"`

	// Show the page to everybody who can reach it, and not only to authenticated users:
	// keys may hold addresses and names. Default: off.
	Open bool `json:"open,omitempty"`

	// The header of the authentication service's answer that names the user, such as
	// `Remote-User`, for `forward_auth`. A header that the client sends does not
	// count. Default: the user whom Caddy's own authentication names,
	// `{http.auth.user.id}`, or else a verified client certificate.
	UserHeader string `json:"user_header,omitempty"`

	throttle *caddymodule.Guest
}

// CaddyModule returns the Caddy module information.
func (Inspector) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.throttle_inspector", New: func() caddy.Module { return new(Inspector) }}
}

// Provision checks the options together, and makes sure that the app runs, even without a zone.
func (i *Inspector) Provision(ctx caddy.Context) (err error) {
	if i.Open && i.AllowChanges {
		return errors.New("open and allow_changes exclude each other: put basic_auth or another authentication before the page that makes changes")
	}
	i.throttle, err = caddymodule.Join(ctx)
	return err
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
	return cmp.Or(user, caddymodule.CertificateOf(r))
}

// pageSecret signs the tokens of pages. They are worth nothing once the process ends.
var pageSecret = []byte(rand.Text())

// TokenOf returns what the pages of a user send to show that they come from here.
func TokenOf(user string) string {
	h := hmac.New(sha256.New, pageSecret)
	h.Write([]byte(user))
	return hex.EncodeToString(h.Sum(nil))
}

func forbidden(why string) error {
	return caddy.APIError{HTTPStatus: http.StatusForbidden, Err: errors.New(why)}
}

// ServeHTTP implements caddyhttp.MiddlewareHandler. It answers every request itself:
// GET with the page, and POST with what the page asks for.
func (i *Inspector) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	err := i.serve(w, r)
	refused, is := errors.AsType[caddy.APIError](err)
	if !is {
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
	case user == "" && !i.Open:
		return forbidden("nobody is logged in: put basic_auth before throttle_inspector, or write open into its block")
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && len(asks) == 0:
		return i.servePage(w, user)
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "GET, HEAD, POST")
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method %s is not allowed: want POST", r.Method)}
	case http.NewCrossOriginProtection().Check(r) != nil:
		return forbidden("the request comes from another site: want Sec-Fetch-Site same-origin, or an Origin that is the host")
	case !hmac.Equal([]byte(r.Header.Get("X-Throttle-Token")), []byte(TokenOf(user))):
		return forbidden("the page is older than this Caddy: load it again")
	case len(asks) != 1:
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("the page has no call %q", asks)}
	case caddymodule.Changes(asks[0]) && !i.AllowChanges:
		return forbidden("this page only shows: changes need allow_changes in its configuration")
	}
	return i.throttle.Serve(w, r, asks[0], user)
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
		"Nonce": nonce, "User": user, "Token": TokenOf(user), "ReadOnly": !i.AllowChanges,
		"Style": template.CSS(inspectorStyle), "Script": template.JS(inspectorScript),
	})
}

// parse sets up the handler from Caddyfile tokens. Syntax:
//
//	throttle_inspector [<matcher>] {
//	    allow_changes
//	    open
//	    user_header <name>
//	}
func parse(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	i := new(Inspector)
	h.Next() // the directive's name
	if h.NextArg() {
		return nil, h.Errf("unexpected %q after throttle_inspector: want a matcher such as /inspector, and options in a block", h.Val())
	}
	fields := map[string]any{"allow_changes": &i.AllowChanges, "open": &i.Open, "user_header": &i.UserHeader}
	return i, caddymodule.ReadOptions(h.Dispenser, "throttle_inspector", fields, nil)
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Inspector)(nil)
	_ caddyhttp.MiddlewareHandler = (*Inspector)(nil)
)
