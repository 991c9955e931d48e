package limit

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A Subject is a request as zones see it. It caches the client's address, and what
// the query and the body have of the fields that zones want.
type Subject struct {
	Request *http.Request

	// Judged is the request as matchers judge it: with the method that FastCGI sends,
	// which is not always the client's, and CONNECT where matchers cannot judge. It must not be handed on.
	Judged *http.Request

	// Overrides are what was changed at run time, as [Env.Prepare] sets them; nil if nothing was.
	Overrides *override.Set

	Vars map[string]any // the request's variables, which is nil without Caddy

	Body    *body.Received // the request's body, if it was received for this Subject
	Starved bool           // there was no room to receive the body

	addr   netip.Addr    // of the client, once it was asked for
	empty  bool          // it is known to carry no field
	form   *form.Reading // of the plan formOf
	formOf *form.Plan

	looked bool      // somebody has looked for its addresses
	sent   *url.URL  // the address as the client sent it; nil if it is the one that the request has now
	all    []url.URL // which count; nil if only the one that the request has now does
	query  string    // that it has now
}

// NewSubject returns the Subject of a request, whose context Caddy must have prepared.
func NewSubject(r *http.Request) (s Subject) {
	s.Look(r)
	return s
}

// Look makes an empty Subject that of a request. It looks up in the context, once, what
// all zones need.
func (s *Subject) Look(r *http.Request) {
	s.Request, s.Judged = r, judged(r)
	if r.ProtoMajor > 1 { // Go's HTTP/2 and HTTP/3 leave blanks around values, which upstreams do not get
		for _, values := range r.Header {
			for i, value := range values {
				if trimmed := textproto.TrimString(value); trimmed != value { // others may read them meanwhile
					values[i] = trimmed
				}
			}
		}
	}
	if httpguts.HeaderValuesContainsToken(r.Header["Upgrade"], "h2c") {
		delete(r.Header, "Upgrade") // which a server may ignore: requests that nobody judges would follow
	}
	s.Vars, _ = r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
}

// Replacer returns the request's placeholders, or nil without Caddy.
func (s *Subject) Replacer() *caddy.Replacer {
	repl, _ := s.Request.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	return repl
}

// TrustedPeer reports whether the peer that sent the request is one of trusted_proxies.
func (s *Subject) TrustedPeer() bool {
	trusted, _ := s.Vars[caddyhttp.TrustedProxyVarKey].(bool)
	return trusted
}

// Address returns the client's address as Caddy found it, or the zero Addr if the
// request has none.
func (s *Subject) Address() netip.Addr {
	if !s.addr.IsValid() {
		s.addr = addressIn(s.Vars)
	}
	return s.addr
}

func addressIn(vars map[string]any) netip.Addr {
	text, _ := vars[caddyhttp.ClientIPVarKey].(string)
	addr, _ := netip.ParseAddr(text)
	return addr
}

// AddressOf is [Subject.Address] where nothing else of the Subject is asked for, so that no
// header is looked at.
func AddressOf(r *http.Request) netip.Addr {
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	return addressIn(vars)
}

// ClientOf is [Subject.Client], likewise.
func ClientOf(r *http.Request) netip.Prefix { return bucketkey.ClientPrefix(AddressOf(r), 32, 64) }

// ipv4 returns the client's address as Caddy found it, if it is one of IPv4, or "". That of the
// connection itself the server has written, before a port and without brackets: it need not be parsed.
func (s *Subject) ipv4() string {
	text, _ := s.Vars[caddyhttp.ClientIPVarKey].(string)
	port, peer := strings.CutPrefix(s.Request.RemoteAddr, text)
	if peer && text != "" && text[0] != '[' && strings.HasPrefix(port, ":") || s.Address().Is4() {
		return text
	}
	return ""
}

// Ban returns the ban of the client, or nil if none holds.
func (s *Subject) Ban(now time.Time) *override.Held {
	if s.Overrides == nil || s.Overrides.AllShadow(now) {
		return nil
	}
	return s.Overrides.Banned(s.Address(), now)
}

// Client returns the network that the request counts as one client of, where memory is
// divided among clients. It is the zero Prefix if the request has no address.
func (s *Subject) Client() netip.Prefix { return bucketkey.ClientPrefix(s.Address(), 32, 64) }

// HasBody reports whether the request has a body. That of a WebSocket over HTTP/2 or HTTP/3 is a
// conversation.
func (s *Subject) HasBody() bool {
	return !body.None(s.Request) && !(s.Request.Method == http.MethodConnect && Method(s) == http.MethodGet)
}

// whole reports whether there is no body, or all of it was received.
func (s *Subject) whole() bool { return !s.HasBody() || body.Of(s.Request) != nil }

// Receive receives the body, if it has at most so many bytes and there is room. Otherwise the
// body goes on as it comes. The error is [body.ErrTimeout] or [body.ErrLeft], of a client of
// which no more will come.
func (s *Subject) Receive(bodies *body.Store, most int64) (err error) {
	s.Body, err = bodies.Receive(s.Request.Context(), s.Request, s.Client(), most)
	s.Starved = errors.Is(err, body.ErrNoRoom)
	if s.Starved || errors.Is(err, body.ErrTooLarge) {
		err = nil
	}
	return err
}

// CarriesAny reports whether the request has a body or a query, or was sent with one, which may carry
// fields. What an upstream takes for the address of x:http://site/login is not looked at.
func (s *Subject) CarriesAny() bool {
	if !s.empty && !s.HasBody() && s.Request.URL.Opaque == "" && !hasPairs(s.Request.URL) {
		sent, _ := s.Request.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
		s.empty = sent.URL == nil || !hasPairs(sent.URL)
	}
	return !s.empty
}

// hasPairs reports whether queryOf returns any, without writing them.
func hasPairs(u *url.URL) bool { return u.RawQuery != "" || strings.Contains(u.Path, "=") }

// queryOf returns the query of an address, with what follows a second ?, where CodeIgniter 3 begins it, and with the
// pairs in the path: Fastify 4 begins a query at a semicolon, and rules such as /index.php?q=$uri or /index.php?$1 put
// the path into the query, or a part of it. They are unclear, next to semicolons. What has no = has no password.
func queryOf(u *url.URL) string {
	query := u.RawQuery
	if _, again, twice := strings.Cut(query, "?"); twice {
		query += "&" + again
	}
	if strings.Contains(u.Path, "=") {
		pairs := strings.FieldsFunc(u.Path, func(c rune) bool { return strings.ContainsRune("/;&?", c) })
		pairs = slices.DeleteFunc(pairs, func(piece string) bool { return !strings.Contains(piece, "=") })
		query = ";" + strings.Join(pairs, "&;") + "&" + query
	}
	return query
}

// Form returns what the query and the body have of what a plan wants. A body that was not received
// has nothing.
func (s *Subject) Form(p *form.Plan) *form.Reading {
	if s.formOf == p {
		return s.form
	}
	s.form, s.formOf = p.Read(), p
	if !s.looked {
		s.lookUpAddresses()
	}
	if s.sent != nil {
		s.form.Query(queryOf(s.sent))
	}
	s.form.Query(s.query)
	r, received := s.Request, body.Of(s.Request)
	if received != nil || r.Header["Content-Type"] != nil {
		var in io.Reader = http.NoBody // of which the charset may be that of the query
		if received != nil {
			in = received.Reader()
		}
		contentType := strings.Join(r.Header["Content-Type"], ", ")
		if httpguts.HeaderValuesContainsToken(r.Header["Connection"], "Content-Type") {
			contentType = "," // unclear: reverse_proxy does not pass it on
		}
		s.form.Body(contentType, strings.Join(r.Header["Content-Encoding"], ", "), r.ContentLength, in)
	}
	return s.form
}

// preflight reports whether a browser asks, before a request of a page of another site, whether
// it may send it. Such a request carries no key.
func (s *Subject) preflight() bool {
	r := s.Request
	return r.Method == http.MethodOptions && r.Header["Origin"] != nil && r.Header["Access-Control-Request-Method"] != nil
}

// includeAddr is the client address of requests that Caddy's templates make with httpInclude.
const includeAddr = "127.0.0.1:10000"

// Included reports whether the server itself sends a request through the handlers, to include
// its answer in another one.
func Included(r *http.Request) bool { return r.RemoteAddr == includeAddr && !fromSocket(r) }

// fromSocket reports whether a request has come from a socket. Such ones have a local address in their
// context, which no header can take away. It is apart so that [Included] is inlined.
func fromSocket(r *http.Request) bool { return r.Context().Value(http.LocalAddrContextKey) != nil }

// Early reports whether a request came before the handshake was complete, which TLS
// 1.3 and QUIC allow returning clients. It may be a replay, and over QUIC its address
// is not verified yet.
func (s *Subject) Early() bool {
	return s.Request.TLS != nil && !s.Request.TLS.HandshakeComplete
}

// judged returns a request as matchers and keys judge it, which is the request itself
// for all usual methods, and otherwise a copy with the method that the upstream sees. Caddy's
// FastCGI client sends exactly GET, HEAD and OPTIONS as they are, everything else in upper case, and
// POST where that gives GET. The reverse proxy turns WebSockets that open with CONNECT, over
// HTTP/2 and HTTP/3, into GET before. A request for x:http://site/login counts as a CONNECT: for
// Caddy it has no path, and an upstream gets what is after the colon. So does one with too much to read: see
// [Subject.lookUpAddresses].
func judged(r *http.Request) *http.Request {
	if (r.Method == http.MethodGet || r.Method == http.MethodPost) && r.URL.Opaque == "" {
		return r
	}
	return asUpstream(r)
}

// asUpstream is judged for unusual methods and addresses.
func asUpstream(r *http.Request) *http.Request {
	method := strings.ToUpper(r.Method)
	switch {
	case r.URL.Opaque != "":
		method = http.MethodConnect
	case r.ProtoMajor == 2 && r.Method == http.MethodConnect && r.Header.Get(":protocol") == "websocket",
		r.ProtoMajor == 3 && r.Method == http.MethodConnect && r.Proto == "websocket":
		method = http.MethodGet
	case method == "", method == http.MethodGet:
		method = http.MethodPost
	}
	return as(r, method)
}

// as returns a request with another method.
func as(r *http.Request, method string) *http.Request {
	if method == r.Method {
		return r
	}
	seen := *r // shares everything else: matchers leave their findings in the context
	seen.Method = method
	return &seen
}

// Method reads the method that the upstream sees.
func Method(s *Subject) string { return s.Judged.Method }

// Matchers are sets of request matchers. One of the sets must match. They are asked with
// each address of a request: see [Subject.MatchesAnyAddress] and [Subject.MatchesEveryAddress].
type Matchers = caddyhttp.MatcherSets

// indexFiles are the names of front controllers.
var indexFiles = []string{"index.php", "index.html"}

// frontController reports whether a rewrite hands an address to an index file in a folder
// above it, whose name the client did not send. Such a file reads the address as sent, which
// then is the only one that counts.
func frontController(sent, now string) bool {
	folder, file := path.Split(now)
	if !slices.Contains(indexFiles, file) || len(sent) <= len(folder) || !strings.HasPrefix(sent, folder) {
		return false
	}
	for name := range strings.SplitSeq(sent, "/") {
		if strings.EqualFold(name, file) {
			return false
		}
	}
	return true
}

// mostParameters is how many url.ParseQuery reads.
const mostParameters = 10_000

// mostReadings is how many bytes all further readings of a request's addresses may have, each with an eighth of
// the headers, which regular expressions read again. Each is asked about as often as the address itself, which
// costs a client that repeats it by HPACK few bytes.
const mostReadings = 4 << 10

var octet = regexp.MustCompile(`%([0-9A-Fa-f]{2})`)

// readings return the path and the query of an address as some upstreams read them, where Caddy's
// matchers do not.
var readings = []func(path, query string) (string, string){
	// The matcher query sees nothing of a query with ; or a stray % or too many parameters. PHP does.
	func(path, query string) (string, string) {
		if _, err := url.PathUnescape(query); err == nil && !strings.Contains(query, ";") && strings.Count(query, "&") < mostParameters {
			return path, query
		}
		pairs := strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' })
		query = octet.ReplaceAllString(strings.Join(pairs[:min(len(pairs), mostParameters)], "&"), "\x00$1")
		return path, strings.NewReplacer("%", "%25", "\x00", "%").Replace(query)
	},
	// Matchers resolve "..", and applications may not: for Rails, /login.%2F%2E%2E%2Fx is /login.
	func(path, query string) (string, string) { return strings.ReplaceAll(path, "/..", "/_.."), query },
	// For parse_url of PHP, and new URL of Node, //x/login is /login at the host x.
	func(path, query string) (string, string) {
		if named, found := strings.CutPrefix(path, "//"); found {
			_, named, _ = strings.Cut(named, "/")
			path = "/" + named
		}
		return path, query
	},
}

// lookUpAddresses finds out how the client sent the request: path and query may have been
// rewritten since. Neither a rewrite nor a spelling must hide a request from a zone or make it free.
func (s *Subject) lookUpAddresses() {
	sent, ok := s.Request.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	now, room := s.Request.URL, [1]url.URL{}
	s.looked, s.query = true, queryOf(now)
	all := append(room[:0], *now)
	if ok && sent.URL != nil && (sent.URL.Path != now.Path || sent.URL.RawPath != now.RawPath || sent.URL.RawQuery != now.RawQuery) {
		s.sent = sent.URL
		if all = []url.URL{*sent.URL}; !frontController(sent.URL.Path, now.Path) {
			all = append(all, *now)
		}
	}
	left := mostReadings
	for _, read := range readings {
		for i := range all {
			other := all[i]
			if other.Path, other.RawQuery = read(other.Path, other.RawQuery); other.Path != all[i].Path || other.RawQuery != all[i].RawQuery {
				all = append(all, other) // whose RawPath is of another path, and counts no more
				if left -= len(other.Path) + len(other.RawQuery) + headerBytes(s.Request)/8; left < 0 {
					s.Judged = as(s.Judged, http.MethodConnect)
					return
				}
			}
		}
	}
	if s.sent != nil || len(all) > 1 {
		s.all = append(s.all, all...)
	}
}

// headerBytes returns how long the values in the header of a request are.
func headerBytes(r *http.Request) (n int) {
	for _, values := range r.Header {
		for _, value := range values {
			n += len(value)
		}
	}
	return n
}

// ask asks with each address, as sent first, until an answer is the last. Caddy's placeholders belong
// to the request, so it must not be a copy. What is there now is put back, also if ask panics. For a
// CONNECT, whose body may be any other request, each answer would be the last.
func (s *Subject) ask(last bool, ask func() (bool, error)) (holds bool, err error) {
	if !s.looked {
		s.lookUpAddresses()
	}
	if s.Judged.Method == http.MethodConnect {
		return last, nil
	}
	if s.all == nil {
		return ask()
	}
	r := s.Judged
	now, uri := *r.URL, r.RequestURI
	defer func() { *r.URL, r.RequestURI = now, uri }()
	for _, u := range s.all {
		*r.URL, r.RequestURI = u, u.RequestURI()
		if holds, err = ask(); holds == last || err != nil {
			break
		}
	}
	return holds, err
}

// anyAddress reports whether something holds for any address. It is for what puts the request
// under a zone.
func (s *Subject) anyAddress(ask func() (bool, error)) (bool, error) { return s.ask(true, ask) }

// everyAddress reports whether something holds for all addresses. It is for what exempts or prefers
// the request.
func (s *Subject) everyAddress(ask func() (bool, error)) (bool, error) { return s.ask(false, ask) }

// MatchesAnyAddress reports whether one of the sets holds for any address of the request. Each holds for
// a CONNECT.
func (s *Subject) MatchesAnyAddress(sets Matchers) (bool, error) {
	return s.anyAddress(func() (bool, error) { return sets.AnyMatchWithError(s.Judged) })
}

// MatchesEveryAddress reports whether one of the sets holds for all addresses of the request. None
// holds for a CONNECT.
func (s *Subject) MatchesEveryAddress(sets Matchers) (bool, error) {
	for _, set := range sets {
		holds, err := s.everyAddress(func() (bool, error) { return set.MatchWithError(s.Judged) })
		if holds || err != nil {
			return holds, err
		}
	}
	return false, nil
}

// AnyMatchesEveryAddress reports whether MatchesEveryAddress holds for any of several. Matchers that
// fail match nobody.
func (s *Subject) AnyMatchesEveryAddress(several []Matchers) bool {
	return slices.ContainsFunc(several, func(sets Matchers) bool {
		match, err := s.MatchesEveryAddress(sets)
		return match && err == nil
	})
}
