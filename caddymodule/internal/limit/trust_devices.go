package limit

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/record"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
)

// TrustDevices gives each browser from which somebody has logged in to an account a
// bucket of its own, so that an attack on the account does not lock out its owner. A
// browser is known by a signed cookie, `__Host-throttle-device-<zone>`, which it gets
// over HTTPS only. It is good for this zone, host and account alone, as the account's name was
// typed, and does not say which that is. The devices of an account share ten buckets, each with the zone's
// limit, so that whoever earns devices without end has no more than those. Shadow zones
// trust devices, too, so that they are known when the zone is enforced.
//
// A response earns trust if it is refunded and sets the cookie: for this account if its value has a
// name before a |, as WordPress's does, and otherwise if the request carried no such cookie. The
// zone must have refund, and gives nothing back if the cookie names another account.
type TrustDevices struct {
	// The cookie that the upstream sets when a login has succeeded: a name, or a
	// pattern such as `wordpress_logged_in_*`. Required.
	Cookie string `json:"cookie,omitempty"`

	// How long a device is trusted after its last login, at most 365 days. Default:
	// 180 days.
	For caddy.Duration `json:"for,omitempty"`

	zone     string
	keys     *signer.Ring
	insecure func() // called when a login has succeeded over plain HTTP, where no device can be trusted
}

// compile compiles the trust in devices. It comes after the key and refund.
func (t *TrustDevices) compile(z *Zone) error {
	if t == nil {
		return nil
	}
	t.zone = z.Name
	named := slices.ContainsFunc(z.Key.Sources, func(k KeySource) bool {
		return k.TakesName() || k.Source == "basic_user" || strings.Contains(k.Source, "{")
	})
	return cmp.Or(
		option.Refuse("trust_devices", t.Cookie == "", "trust_devices names no cookie: want the one that the upstream sets when a login has succeeded, such as wordpress_logged_in_*"),
		option.CheckLogInCookie("trust_devices", t.Cookie),
		option.Refuse("trust_devices", t.For <= 0 || time.Duration(t.For) > longestTrust, "invalid duration %v in trust_devices: want one above 0 and at most 365d", time.Duration(t.For)),
		option.Refuse("trust_devices", !named, "trust_devices needs a key that names an account: want field, basic_user, header, cookie or query among its sources, such as key field log; client_ip, host, method, route and text name none"),
		option.Refuse("trust_devices", len(z.Refund) == 0, "trust_devices needs refund, by which the zone tells a login that succeeded: want refund cookie %s", t.Cookie),
	)
}

const (
	// devicePurpose keeps tokens for other purposes from counting as device cookies.
	devicePurpose = "device"

	// mostEntries is how many accounts one browser is known for.
	mostEntries = 5

	entrySeparator = "."
)

// longestTrust is the longest time for which a device may be trusted.
const longestTrust = 365 * 24 * time.Hour

// devicePlaces is how many buckets the devices of an account have together. Each device has the place
// that its ID says, at random, so that whoever earns devices without end earns no more buckets.
const devicePlaces = 10

// An entry is what a token says: the ID of the device, and when the token was issued, as Unix
// seconds. The config says for how long that holds.
type entry [issuedAt + 8]byte

const issuedAt = 16

// holds reports whether a device is trusted that has had its token for so long. Clocks of nodes differ.
func (t *TrustDevices) holds(e *entry, now time.Time) bool {
	return now.Sub(time.Unix(int64(binary.BigEndian.Uint64(e[issuedAt:])), 0)) < time.Duration(t.For)
}

// deviceCookieOf returns the name of a zone's device cookie.
func deviceCookieOf(zone string) string { return cookie.OwnPrefix + "device-" + zone }

// A deviceClient is the client of one request to an account, as far as device cookies tell (OWASP:
// Slow Down Online Guessing Attacks with Device Cookies).
type deviceClient struct {
	trust  *TrustDevices
	typed  string // whom the request names: see [Key.typed]
	secure bool
	known  bool
	bound  signer.Bound // what the client's token is good for
	entry  entry        // of the client's token if it is known
	others []string     // tokens for other accounts
	had    bool         // the request carries a cookie of the kind that a login sets
	noted  *record.Record
}

// phpNames writes the names of cookies and parameters as PHP does.
var phpNames = strings.NewReplacer(".", "_", " ", "_", "[", "_")

// client returns what the cookie of a request says about a key, which is that of the account, and
// the account's name as it was typed: of names that share a bucket, one earns nothing for another. The
// host is in lower case and without port; with none, no device is known or earned.
func (t *TrustDevices) client(r *http.Request, host, key, typed string, now time.Time) *deviceClient {
	c := &deviceClient{trust: t, typed: typed, secure: cookie.Secure(r)}
	c.bound = signer.Bound{Purpose: devicePurpose, Host: host, Zone: t.zone, Subject: key + "\x00" + typed}
	// PHP decoded names up to 2020, and Rack 1 takes a comma for a semicolon. Else a client could hide
	// from us the cookie that is set again.
	for name := range cookie.SentBy([]string{strings.ReplaceAll(strings.Join(r.Header["Cookie"], ";"), ",", ";")}) {
		plain, err := url.QueryUnescape(name)
		c.had = c.had || err != nil || cookie.Upstreams(t.Cookie, name) || cookie.Upstreams(t.Cookie, phpNames.Replace(plain))
	}
	if c.secure && host != "" {
		c.read(r, now)
	}
	return c
}

func (c *deviceClient) read(r *http.Request, now time.Time) {
	cookies := r.CookiesNamed(deviceCookieOf(c.trust.zone))
	if len(cookies) != 1 {
		return
	}
	tokens := strings.SplitN(cookies[0].Value, entrySeparator, mostEntries+1)
	for _, token := range tokens[:min(len(tokens), mostEntries)] {
		var e entry
		read, genuine := c.trust.keys.Open(token, &c.bound, e[:])
		switch {
		case !read || !c.trust.holds(&e, now):
		case !genuine:
			c.others = append(c.others, token)
		case !c.known:
			c.known, c.entry = true, e
		}
	}
}

// Place returns which of the places of its account the client's device has, below [devicePlaces], and
// false if none is known, as of a nil Client. Copies of a cookie are one device.
func (c *deviceClient) Place() (place int, known bool) {
	if c == nil || !c.known {
		return 0, false
	}
	return int(binary.BigEndian.Uint16(c.entry[:])) % devicePlaces, true
}

// Earned reports whether a response that says that the login has succeeded sets the cookie for
// this account, and the client can be told of its device. One that names nobody counts if the request named nobody
// else, and the client had none before: applications set theirs again on other pages, where somebody who is logged in
// could send any name. If the cookie is for another account, of whoever is logged in, or has registered by the same
// request, the response says nothing about a guess.
func (c *deviceClient) Earned(header http.Header, now time.Time) (earned, another bool) {
	for one := range cookie.SetBy(header["Set-Cookie"], now) {
		if !one.Kept || !cookie.Upstreams(c.trust.Cookie, one.Name) {
			continue
		}
		name, named := userOf(one)
		switch typed := strings.Split(c.typed, "\x00"); {
		case named && !slices.ContainsFunc(typed, func(typed string) bool { return strings.EqualFold(name, typed) }):
			another = true
		case named || !c.had && !c.noted.Several:
			earned = true
		}
	}
	earned = earned && !another && c.bound.Host != ""
	if earned && !c.secure && c.trust.insecure != nil {
		c.trust.insecure()
	}
	return earned && c.secure, another
}

// userOf returns whom a cookie names. WordPress has the name before a |, and DokuWiki has it there in
// base64, which elsewhere somebody may choose as a name.
func userOf(set cookie.Set) (name string, named bool) {
	plain, _ := url.QueryUnescape(set.Value)
	name, _, named = strings.Cut(cmp.Or(plain, set.Value), "|")
	if strings.HasPrefix(set.Name, "DW") {
		plain, _ := base64.StdEncoding.DecodeString(name)
		name = string(plain)
	}
	return name, named
}

// Issue adds the device cookie to a response. A known device is renewed. Without a key to sign
// with, nothing is added, and ok is false.
func (c *deviceClient) Issue(header http.Header, now time.Time) (ok bool) {
	e := c.entry
	if !c.known {
		rand.Read(e[:issuedAt]) // never fails
	}
	binary.BigEndian.PutUint64(e[issuedAt:], uint64(now.Unix()))
	token, ok := c.trust.keys.Sign(&c.bound, e[:])
	if ok {
		tokens := append([]string{token}, c.others[:min(len(c.others), mostEntries-1)]...)
		header.Add("Set-Cookie", cookie.Own(deviceCookieOf(c.trust.zone), strings.Join(tokens, entrySeparator), time.Duration(c.trust.For)))
	}
	return ok
}
