// Package device recognizes the browsers from which people have logged in to an account,
// by a signed cookie, so that an attack on the account does not lock out its owner (OWASP:
// Slow Down Online Guessing Attacks with Device Cookies). Begin with [Trust.Client].
package device

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
)

const (
	// purpose keeps tokens for other purposes from counting as device cookies.
	purpose = "device"

	cookiePrefix = cookie.OwnPrefix + "device-"

	// mostEntries is how many accounts one browser is known for, and largest the most
	// bytes of the cookie's value.
	mostEntries = 5
	largest     = 1024

	separator = "."
)

// leeway is how far the clocks of nodes may differ.
const leeway = time.Minute

// Longest is the longest time for which a device may be trusted.
const Longest = 365 * 24 * time.Hour

// Most is how many devices an account may have. Each has one of as many places.
const Most = 10

// An entry is what a token says: the ID of the device, and when the token was issued and
// expires, as Unix seconds.
type entry [entrySize]byte

const (
	issuedAt  = 16
	expiresAt = issuedAt + 8
	entrySize = expiresAt + 8
)

func (e *entry) at(i int) time.Time      { return time.Unix(int64(binary.BigEndian.Uint64(e[i:])), 0) }
func (e *entry) set(i int, at time.Time) { binary.BigEndian.PutUint64(e[i:], uint64(at.Unix())) }

// CookieName returns the name of a zone's device cookie.
func CookieName(zone string) string { return cookiePrefix + zone }

// A Trust says for which cookie of the upstream a zone trusts a device.
type Trust struct {
	Zone string

	// Cookie is a pattern, as path.Match takes it, for the names of the cookies that
	// the upstream sets when a log-in has succeeded.
	Cookie string

	// For is how long a device is trusted after its last log-in.
	For time.Duration

	Keys *signer.Ring

	// Insecure is called when a log-in has succeeded over plain HTTP, where no device
	// can be trusted. It may be nil.
	Insecure func()
}

// A Client is the client of one request to an account, as far as device cookies tell.
type Client struct {
	trust  *Trust
	secure bool
	known  bool
	bound  signer.Bound // what the client's token is good for
	entry  entry        // of the client's token if it is known
	others []string     // tokens for other accounts
}

// Client returns what the cookie of a request says about a key, which names the
// account. The host is in lower case and without port.
func (t *Trust) Client(r *http.Request, host, key string, now time.Time) *Client {
	c := &Client{trust: t, secure: cookie.Secure(r)}
	c.bound = signer.Bound{Purpose: purpose, Host: host, Zone: t.Zone, Subject: key}
	if c.secure {
		c.read(r, now)
	}
	return c
}

func (c *Client) read(r *http.Request, now time.Time) {
	cookies := r.CookiesNamed(CookieName(c.trust.Zone))
	if len(cookies) != 1 || len(cookies[0].Value) > largest {
		return
	}
	tokens := strings.SplitN(cookies[0].Value, separator, mostEntries+1)
	for _, token := range tokens[:min(len(tokens), mostEntries)] {
		var e entry
		if !signer.Read(token, e[:]) || !now.Before(e.at(expiresAt)) {
			continue
		}
		issued := e.at(issuedAt)
		switch {
		case issued.After(now.Add(leeway)) || !c.trust.Keys.Open(r.Context(), token, &c.bound, e[:], now):
			c.others = append(c.others, token)
		case !c.known && now.Before(issued.Add(c.trust.For)): // the config may say less than it did
			c.known, c.entry = true, e
		}
	}
}

// Device returns the name of the client's device, and false if none is known for the
// account. Copies of a cookie are one device.
func (c *Client) Device() (name string, known bool) {
	if !c.known {
		return "", false
	}
	return hex.EncodeToString(c.entry[:issuedAt]), true
}

// Earned reports whether a response that says that the log-in has succeeded sets the cookie,
// and the client can be told of its device.
func (c *Client) Earned(header http.Header, now time.Time) bool {
	if !cookie.Sets(c.trust.Cookie, header["Set-Cookie"], now) {
		return false
	}
	if !c.secure && c.trust.Insecure != nil {
		c.trust.Insecure()
	}
	return c.secure
}

// Place returns which of the account's places a known device has, below [Most].
func (c *Client) Place() int { return int(c.entry[0]) % Most }

// Issue adds the device cookie to a response. A known device is renewed, and another one
// gets a place. Without a key to sign with, nothing is added.
func (c *Client) Issue(header http.Header, place int, now time.Time) {
	e := c.entry
	if !c.known {
		rand.Read(e[:issuedAt]) // never fails
		e[0] = byte(place)
	}
	e.set(issuedAt, now)
	e.set(expiresAt, now.Add(c.trust.For))
	token, ok := c.trust.Keys.Sign(&c.bound, e[:])
	if !ok {
		return
	}
	tokens := append([]string{token}, c.others[:min(len(c.others), mostEntries-1)]...)
	last := e.at(expiresAt)
	for _, token := range tokens[1:] {
		if signer.Read(token, e[:]) && e.at(expiresAt).After(last) {
			last = e.at(expiresAt)
		}
	}
	header.Add("Set-Cookie", cookie.Own(CookieName(c.trust.Zone), strings.Join(tokens, separator), min(last.Sub(now), Longest)))
}
