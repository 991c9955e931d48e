package limit

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// noStorage is storage in which nothing is yet, and nothing remains.
type noStorage struct{}

func (noStorage) Load(context.Context, string) ([]byte, error) { return nil, fs.ErrNotExist }
func (noStorage) Store(context.Context, string, []byte) error  { return nil }
func (noStorage) Lock(context.Context, string) error           { return nil }
func (noStorage) Unlock(context.Context, string) error         { return nil }

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func newTrust(t *testing.T, zone string) *TrustDevices {
	t.Helper()
	keys := new(signer.Ring)
	check.OK(t, keys.Maintain(t.Context(), noStorage{}))
	return &TrustDevices{zone: zone, Cookie: "sid", For: caddy.Duration(24 * time.Hour), keys: keys}
}

// requestWith returns a request over HTTPS with cookies.
func requestWith(cookies ...string) *http.Request {
	r := httptest.NewRequest("POST", "https://example.com/login", nil)
	for _, cookie := range cookies {
		r.Header.Add("Cookie", cookie)
	}
	return r
}

// log in lets an account in, and returns the cookie header that the browser sends then.
func logInOf(t *testing.T, trust *TrustDevices, account, cookie string, at time.Time) string {
	t.Helper()
	header := http.Header{"Set-Cookie": {"sid=a"}}
	client := trust.client(requestWith(cookie), "example.com", account, "", at)
	check.Assume(t, earns(client, header, at), "got a success that earns nothing")
	client.Issue(header, at)
	check.Need(t, len(header["Set-Cookie"]), 2, "no device cookie")
	pair, _, _ := strings.Cut(header["Set-Cookie"][1], ";")
	return pair
}

func earns(c *deviceClient, header http.Header, at time.Time) bool {
	c.noted = new(record.Record)
	earned, _ := c.Earned(header, at)
	return earned
}

func (t *TrustDevices) device(account, cookie string, at time.Time) string {
	c := t.client(requestWith(cookie), "example.com", account, "", at)
	if _, known := c.Place(); !known {
		return ""
	}
	return hex.EncodeToString(c.entry[:issuedAt])
}

func TestADeviceIsKnownForTheAccountThatLoggedIn(t *testing.T) {
	trust := newTrust(t, "login")
	cookie := logInOf(t, trust, "alice", "", noon)
	name := trust.device("alice", cookie, noon)
	check.Assume(t, len(name) == 32, "got device %q, want one", name)
	check.Equal(t, trust.device("bob", cookie, noon), "", "for another account: device")
	other := *trust
	other.zone = "admin"
	check.Equal(t, other.device("alice", strings.Replace(cookie, "login", "admin", 1), noon), "", "for another zone: device")
	_, known := trust.client(requestWith(cookie), "example.org", "alice", "", noon).Place()
	check.That(t, !known, "for another host: got a device, want none")
	check.Equal(t, trust.device("alice", cookie, noon.Add(24*time.Hour)), "", "after its time: device")
	shorter := *trust
	shorter.For = caddy.Duration(time.Hour)
	check.Equal(t, shorter.device("alice", cookie, noon.Add(time.Hour)), "", "after the time of a new config: device")
	check.That(t, !strings.Contains(cookie, "alice"), "got the account in cookie %s", cookie)
	renewed := logInOf(t, trust, "alice", cookie, noon.Add(time.Hour))
	check.Equal(t, trust.device("alice", renewed, noon.Add(24*time.Hour)), name, "after another login: device, want it for longer")
	check.That(t, renewed != cookie, "got the same cookie again, want a new one")
}

func TestTheCookieIsForThisHostAndHTTPSOnly(t *testing.T) {
	trust := newTrust(t, "log-in.v2")
	header := make(http.Header)
	trust.client(requestWith(), "example.com", "alice", "", noon).Issue(header, noon)
	line := header.Get("Set-Cookie")
	cookie := check.Must(http.ParseSetCookie(line))(t)
	check.That(t, cookie.Name == "__Host-throttle-device-log-in.v2" && cookie.Path == "/" && cookie.Domain == "" && cookie.MaxAge == 86400, "got %s", line)
	check.That(t, cookie.Secure && cookie.HttpOnly && cookie.SameSite == http.SameSiteLaxMode, "got %s", line)
}

func TestHTTPSIsWhatTheClientUses(t *testing.T) {
	for _, test := range []struct {
		name         string
		tls, trusted bool
		forwarded    []string
		want         bool
	}{
		{name: "HTTP"},
		{name: "HTTPS", tls: true, want: true},
		{name: "a client that says it uses HTTPS", forwarded: []string{"https"}},
		{name: "a client that says it uses HTTP", tls: true, forwarded: []string{"http"}, want: true},
		{name: "HTTPS to a trusted proxy", trusted: true, forwarded: []string{"https"}, want: true},
		{name: "HTTP to a trusted proxy that uses HTTPS", tls: true, trusted: true, forwarded: []string{"http"}},
		{name: "a trusted proxy that does not say", trusted: true},
		{name: "a trusted proxy that uses HTTPS and does not say", tls: true, trusted: true, want: true},
		{name: "two headers, of which the last is the proxy's", trusted: true, forwarded: []string{"https", "http"}},
	} {
		r := httptest.NewRequest("POST", "http://example.com/", nil)
		if test.tls {
			r.TLS = new(tls.ConnectionState)
		}
		r.Header["X-Forwarded-Proto"] = test.forwarded
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.VarsCtxKey, map[string]any{caddyhttp.TrustedProxyVarKey: test.trusted}))
		trust := newTrust(t, "login")
		insecure := false
		trust.insecure = func() { insecure = true }
		cookie := logInOf(t, trust, "alice", "", noon)
		r.Header.Set("Cookie", cookie)
		client := trust.client(r, "example.com", "alice", "", noon)
		_, known := client.Place()
		check.That(t, known == test.want, "%s: got the device known: %v, want %v", test.name, known, test.want)
		got := earns(client, http.Header{"Set-Cookie": {"sid=a"}}, noon)
		check.That(t, got == test.want && insecure != test.want, "%s: got a device cookie: %v, and a warning: %v, want %v and not", test.name, got, insecure, test.want)
	}
}

func TestOneCookieHoldsTheLastFiveAccounts(t *testing.T) {
	trust := newTrust(t, "login")
	cookie, names := "", make(map[int]string)
	for i := range 8 {
		cookie = logInOf(t, trust, fmt.Sprint("account", i), cookie, noon.Add(time.Duration(i)*time.Minute))
		names[i] = trust.device(fmt.Sprint("account", i), cookie, noon.Add(time.Hour))
	}
	check.That(t, len(cookie) <= 1024, "got a cookie of %d bytes, want at most 1024", len(cookie))
	for i := range 8 {
		want := names[i]
		if i < 3 {
			want = ""
		}
		check.Equal(t, trust.device(fmt.Sprint("account", i), cookie, noon.Add(time.Hour)), want, "account %d: device", i)
	}
	late := logInOf(t, trust, "account0", cookie, noon.Add(24*time.Hour+5*time.Minute+time.Second))
	check.Equal(t, strings.Count(late, entrySeparator)+1, 3, "entries when three have expired")
}

func TestADamagedCookieIsAsGoodAsNone(t *testing.T) {
	trust := newTrust(t, "login")
	cookie := logInOf(t, trust, "alice", logInOf(t, trust, "bob", "", noon), noon)
	for name, header := range map[string][]string{
		"empty":        {deviceCookieOf("login") + "="},
		"cut off":      {cookie[:len(cookie)-1-signer.TokenSize(len(entry{}))-30]},
		"given twice":  {cookie, cookie},
		"a sixth":      {strings.Replace(cookie, "=", "=a.b.c.d.e.", 1)},
		"other letter": {strings.ToLower(cookie)},
	} {
		client := trust.client(requestWith(header...), "example.com", "alice", "", noon)
		got, known := client.Place()
		check.That(t, !known, "%s: got device %d, want none", name, got)
	}
	// The entries before a cut still count.
	check.That(t, trust.device("alice", cookie[:len(cookie)-1], noon) != "", "got the first entry lost with the second")
}

func TestNothingIsEarnedByAFailureOrWithoutAKey(t *testing.T) {
	trust := newTrust(t, "login")
	trust.Cookie = "[sD]*"
	client := trust.client(requestWith(), "example.com", "alice", "", noon)
	for line, want := range map[string]bool{"sid=a": true, "sid=": false, "sid=a; Max-Age=0": false, "other=a": false} {
		check.Equal(t, earns(client, http.Header{"Set-Cookie": {line}}, noon), want, "%s", line)
	}
	named := trust.client(requestWith(), "example.com", "key of alice", "alice", noon)
	for line, want := range map[string]bool{
		"sid=alice%7C1": true, "sid=Alice|1|2": true, "sid=bob%7C1": false, "sid=%7C1": false, "sid=opaque": true, "sid=b%7C1; path=/\nsid=alice%7C1": true,
		"DW0f=YWxpY2U%3D%7C0%7Cx": true, "DW0f=Ym9i%7C0%7Cx": false, "sid=YWxpY2U%3D%7C1": false, // DokuWiki's, and one of somebody called so
	} {
		check.Equal(t, earns(named, http.Header{"Set-Cookie": strings.Split(line, "\n")}, noon), want, "%s: for alice", line)
	}
	again := trust.client(requestWith("a=b", "lang=en; sid=x"), "example.com", "key of alice", "alice", noon)
	for line, want := range map[string]bool{"sid=opaque": false, "sid=alice%7C1": true, "sid=bob%7C1": false} {
		check.Equal(t, earns(again, http.Header{"Set-Cookie": {line}}, noon), want, "%s, of a client that had the cookie: for alice", line)
	}
	trust.Cookie = "log_*" // which PHP or Rack reads from each of these
	for _, sent := range []string{"log.in=x", "log in=x", "log[in=x", "log%5Fin=x", "l%6fg%5Fin%zz=x", "a=b,log_in=x"} {
		client := trust.client(requestWith(sent), "example.com", "alice", "alice", noon)
		check.Equal(t, earns(client, http.Header{"Set-Cookie": {"log_in=opaque"}}, noon), false, "a client that sent %s", sent)
	}
	trust.keys = new(signer.Ring)
	header := make(http.Header)
	trust.client(requestWith(), "example.com", "alice", "", noon).Issue(header, noon)
	check.That(t, len(header) == 0, "got %v without a key, want nothing", header)
}
