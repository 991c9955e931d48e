package pass

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/cookie"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
)

// A State says what the pass is worth that a request comes with.
type State uint8

// The states, from what helps least to what helps most.
const (
	Absent  State = iota
	Invalid       // forged, cut off, of another zone or host, or given twice
	Expired       // older than its lifetime
	Early         // the client was told to come back later
	Unbound       // of a member, but without the cookie that it is bound to
	Valid
)

// Event is that a request comes with such a pass.
func (s State) Event() Event {
	return [...]Event{None, "invalid", "expired", "early", "unbound", "valid"}[s]
}

// mostCookies is how many cookies of a request are compared with what a pass is bound
// to. Browsers keep fewer for a site.
const mostCookies = 200

// An Issuer issues the passes of one in_flight, and recognizes them.
type Issuer struct {
	Name string
	Keys *signer.Ring

	// Issued are patterns, as path.Match takes them, for the cookies that the upstream
	// gives to clients whom it has logged in.
	Issued []string

	// Told are the response headers in which the upstream names the user.
	Told []Told

	// Insecure is called when the upstream has logged somebody in over plain HTTP, where
	// no passes are sent.
	Insecure func()

	// Memory is what the node remembers of passes.
	Memory *Memory
}

// Told is a response header in which the upstream names the user, by an ID of its own.
type Told struct {
	Header  string // in canonical form
	Session string // the pattern of the session cookie that the user must present
}

// LearnsMembers reports whether the upstream tells the zone who is a member.
func (z *Issuer) LearnsMembers() bool { return len(z.Issued) > 0 || len(z.Told) > 0 }

// A Client is the client of one request, as far as its pass tells. The zero Client has none, and gets
// none.
type Client struct {
	State  State // what the pass is worth
	Member bool  // it holds the cookie that the pass is bound to. It may have come too early.

	zone    *Issuer
	host    string
	secure  bool
	pass    Pass
	cookies []string // headers of the request
}

// Client returns what the pass of a request says. The host is in lower case and without
// port; if it is empty, no pass is read or sent. Passes never count over plain HTTP.
func (z *Issuer) Client(r *http.Request, host string, now time.Time) Client {
	if host == "" {
		return Client{}
	}
	c := Client{zone: z, host: host, secure: cookie.Secure(r), cookies: r.Header["Cookie"]}
	if c.secure {
		c.read(now)
	}
	return c
}

func (c *Client) read(now time.Time) {
	var tokens []string
	own := CookieName(c.zone.Name)
	for name, value := range cookie.SentBy(c.cookies) {
		if name == own {
			tokens = append(tokens, value)
		}
	}
	if len(tokens) == 0 {
		return
	}
	genuine := false
	if c.pass, genuine = open(c.zone.Keys, response.Single(tokens), c.host, c.zone.Name); !genuine {
		c.State = Invalid
		return
	}
	c.zone.Memory.refresh(&c.pass, now)
	c.State = c.pass.state(now)
	if c.State >= Early && c.zone.LearnsMembers() {
		c.Member = c.boundTo() != ""
	}
	if c.State == Valid && !c.Member && c.pass.Binding != (Binding{}) {
		c.State = Unbound
	}
}

// boundTo returns the name of the request's cookie that the pass is bound to, or "".
func (c *Client) boundTo() string {
	if c.pass.Binding == (Binding{}) {
		return ""
	}
	n := 0
	for name, value := range cookie.SentBy(c.cookies) {
		if bindingOf(name, value) == c.pass.Binding {
			return name
		}
		if n++; n == mostCookies {
			break
		}
	}
	return ""
}

// Rank returns the rank that the pass gives. A pass that is void gives none, which is
// that of clients who come for the first time. A member who comes too early is one who returns.
func (c *Client) Rank() fairqueue.Rank {
	switch {
	case c.Member && c.State == Valid:
		return fairqueue.Member
	case c.Member || c.State >= Unbound:
		return fairqueue.Returned
	}
	return fairqueue.First
}

// Key returns what the client takes turns by, or "" if it has neither a valid pass nor
// that of a member. Copies of a pass have one key, and so have all logins to an account.
// It is no secret, since nobody else can sign a pass of it.
func (c *Client) Key() string {
	if c.State < Unbound && !c.Member {
		return ""
	}
	return hex.EncodeToString(c.pass.ID[:])
}

// Tries returns how often the client was refused in a row before this request.
func (c *Client) Tries(now time.Time) int {
	if now.After(c.pass.NotBefore.Add(Forgotten)) {
		return 0
	}
	return c.pass.Tries
}

// An Event is what happened to a client's pass.
type Event string

// The events.
const (
	None    Event = ""
	Issued  Event = "issued"  // a new pass
	Moved   Event = "moved"   // a further refusal has moved when the pass becomes valid
	Joined  Event = "member"  // the pass of a member
	Renewed Event = "renewed" // the pass of a member is bound to a newer cookie
	Limited Event = "limited" // too many members of the client's network: the pass is not a member's
)

// Events are all that may be counted of passes, also what those are worth that requests come with.
var Events = []Event{Issued, Moved, Joined, Renewed, Limited, Invalid.Event(), Expired.Event(), Early.Event(), Unbound.Event(), Valid.Event()}

// Refused adds the client's pass to a refusal that tells it to come back after a while.
// A pass that the client holds keeps its ID and its issue, and the move is remembered in the
// places of the client's network. A new pass is not, since it has no older copies.
func (c *Client) Refused(header http.Header, now time.Time, after time.Duration, addr netip.Addr) Event {
	if !c.secure {
		return None
	}
	event, p, tries := Moved, c.pass, c.Tries(now)
	if !now.Add(after).Before(p.Issued.Add(Lifetime)) {
		event, p, tries = Issued, Pass{Issued: now}, 0
		rand.Read(p.ID[:]) // never fails
	}
	p.Tries, p.NotBefore = tries+1, now.Add(after)
	if event == Moved {
		c.zone.Memory.move(&p, addr, now)
	}
	return c.send(header, p, event, now)
}

// RefusedApart is Refused for what a page needs beside it, such as its images. Browsers
// ask for many of them at once, so they get no pass, and their refusals are no tries. But
// a valid pass is remembered as moved, or else a robot that pretends to ask for images
// would never be told to wait. Those of members are not.
func (c *Client) RefusedApart(now time.Time, after time.Duration, addr netip.Addr) Event {
	if c.State < Unbound || c.Member {
		return None
	}
	p := c.pass
	p.Tries, p.NotBefore = max(1, c.Tries(now)), now.Add(after) // with no tries, it would be good before its time
	c.zone.Memory.move(&p, addr, now)
	return Moved
}

func (c *Client) send(header http.Header, p Pass, event Event, now time.Time) Event {
	token, ok := p.sign(c.zone.Keys, c.host, c.zone.Name)
	if !ok {
		return None
	}
	header.Add("Set-Cookie", cookie.Own(CookieName(c.zone.Name), token, p.Issued.Add(Lifetime).Sub(now)))
	return event
}

const (
	// renewal is how old the pass of a member must be for the upstream's naming the
	// user again to issue another one.
	renewal = time.Hour

	// mostTold is the longest ID of a user, in bytes.
	mostTold = 256

	wordpressLogin = "wordpress_logged_in_"
)

// Answered looks for what the upstream says of the user, and adds the pass of a member
// to the response. It must see the headers that clients do not. If the
// client becomes a member, join is asked whether there is room for the account in its
// network.
func (c *Client) Answered(status int, header http.Header, now time.Time, join func(account ID) bool) Event {
	if c.zone == nil || status < 200 || status == http.StatusNotModified {
		return None
	}
	id, binding, named := c.named(status, header, now)
	switch {
	case !named:
		return None
	case !c.secure:
		c.zone.Insecure()
		return None
	}
	event, p := Joined, Pass{ID: id, Issued: now, NotBefore: now, Binding: binding}
	if c.pass.ID == id {
		switch young := now.Sub(c.pass.Issued) < renewal; {
		case c.pass.Binding == Binding{} && young:
			return None // it was not let in lately
		case c.pass.Binding == binding && young && c.State >= Unbound:
			return None
		case c.pass.Binding != Binding{}:
			event = Renewed
		}
	}
	if event == Joined && !join(id) {
		event, p.Binding = Limited, Binding{}
	}
	response.KeepPrivate(header)
	return c.send(header, p, event, now)
}

// named returns the ID of the user whom the response names, and the cookie of the
// upstream that the user must present. Responses that others may get name nobody.
func (c *Client) named(status int, header http.Header, now time.Time) (ID, Binding, bool) {
	lines := header["Set-Cookie"]
	if status < 400 {
		for set := range cookie.SetBy(lines, now) {
			issued := func(pattern string) bool { return cookie.Upstreams(pattern, set.Name) }
			if set.Kept && slices.ContainsFunc(c.zone.Issued, issued) && response.Private(header) {
				return c.account(set.Name, set.Value), bindingOf(set.Name, set.Value), true
			}
		}
	}
	for _, told := range c.zone.Told {
		values := header[told.Header]
		if len(values) != 1 || len(values[0]) > mostTold || strings.Contains(values[0], ",") || !response.Private(header) {
			continue
		}
		if user := strings.TrimSpace(values[0]); user != "" {
			binding, found := c.session(told.Session, lines, now)
			return c.id("told", told.Header, user), binding, found
		}
	}
	return ID{}, Binding{}, false
}

// account returns the ID of the account of a cookie. WordPress writes its name into the
// cookie. Other cookies are accounts of their own, unless they replace the one that the
// client's pass is bound to: some upstreams change it with each response.
func (c *Client) account(name, value string) ID {
	if strings.HasPrefix(name, wordpressLogin) {
		plain, _ := url.PathUnescape(value)
		user, _, _ := strings.Cut(cmp.Or(plain, value), "|")
		return c.id("wordpress", name, user)
	}
	if c.boundTo() == name {
		return c.pass.ID
	}
	return c.id("cookie", name, value)
}

// id returns the ID of an account. It is not secret: its owner knows the account.
func (c *Client) id(kind, name, user string) ID {
	return IDOf(c.host, c.zone.Name, kind, name, user)
}

// session returns the binding to the cookie by which the upstream knows a user that it
// names in a header: the first one of the response that matches the pattern, or else of
// the request. It returns false if there is none.
func (c *Client) session(pattern string, lines []string, now time.Time) (Binding, bool) {
	deleted := make(map[string]bool)
	for set := range cookie.SetBy(lines, now) {
		if set.Kept && cookie.Upstreams(pattern, set.Name) {
			return bindingOf(set.Name, set.Value), true
		}
		deleted[set.Name] = !set.Kept
	}
	for name, value := range cookie.SentBy(c.cookies) {
		if cookie.Upstreams(pattern, name) && !deleted[name] {
			return bindingOf(name, value), true
		}
	}
	return Binding{}, false
}
