package servertest

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// LoginUpstream is a site like WordPress, where the password of everybody is right. Its cookie
// names who is logged in: the account, or the field user if that is sent, as after a login by
// e-mail.
type LoginUpstream struct{}

func (LoginUpstream) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.login_upstream", New: func() caddy.Module { return new(LoginUpstream) }}
}

func (LoginUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	header := w.Header()
	loggedIn := "wordpress_logged_in_0f=" + url.QueryEscape(cmp.Or(r.PostFormValue("user"), r.PostFormValue("log"))+"|1")
	header.Add("Set-Cookie", "wordpress_test_cookie=WP%20Cookie%20check; path=/")
	if cookie, err := r.Cookie("wordpress_logged_in_0f"); err == nil && r.URL.Query().Has("renews") {
		header.Add("Set-Cookie", cookie.Name+"="+cookie.Value+"; path=/") // of whoever is logged in
	}
	if r.ProtoMajor == 2 && r.URL.RawQuery == "hints" {
		w.WriteHeader(http.StatusEarlyHints)
	}
	switch r.PostFormValue("pwd") {
	case "right":
		header.Add("Set-Cookie", loggedIn+"; path=/; secure; HttpOnly")
		w.WriteHeader(http.StatusFound)
	case "implicit":
		header.Add("Set-Cookie", loggedIn+"; path=/")
	case "broken":
		header.Add("Set-Cookie", loggedIn+"; path=/")
		return caddyhttp.Error(http.StatusBadGateway, errors.New("the upstream is gone"))
	default:
		if r.URL.Query().Get("reauth") != "" {
			header.Add("Set-Cookie", loggedIn+"; path=/")
			header.Add("Set-Cookie", "wordpress_logged_in_0f=%20; expires=Thu, 01-Jan-1998 00:00:00 GMT; Max-Age=0; path=/")
		}
		w.WriteHeader(http.StatusOK)
	}
	return nil
}

func init() {
	caddy.RegisterModule(LoginUpstream{})
	httpcaddyfile.RegisterHandlerDirective("login_upstream", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return new(LoginUpstream), nil
	})
}

// NewLoginSite runs a site with one zone by account, or more of them, whose keys are in
// the storage of a folder.
func NewLoginSite(t testing.TB, storage, zones string) *Site {
	t.Helper()
	return NewLoginSiteWith(t, storage, "store memory", zones)
}

// NewLoginSiteWith does that with a global option.
func NewLoginSiteWith(t testing.TB, storage, global, zones string) *Site {
	t.Helper()
	return Start(t, Run(t, `{
		order login_upstream last
		storage file_system `+storage+`
		throttle {
			`+global+`
		}
	}
	http:// {
		throttle {
			ratelimit_headers
			`+zones+`
		}
		login_upstream
	}`))
}
