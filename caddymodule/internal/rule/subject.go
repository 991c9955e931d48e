package rule

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/address"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A Subject is a request as rules see it. It caches the client's address and the body
// that was read ahead.
type Subject struct {
	Request *http.Request

	// Judged is the request as matchers judge it: with the method that FastCGI sends,
	// which is not always the client's. It must not be handed on.
	Judged *http.Request

	// Overrides are what was changed at run time; nil if nothing was.
	Overrides *override.Set

	// NoAddress is set if a key needed the client's address and there was none.
	NoAddress bool

	Replacer *caddy.Replacer
	Vars     map[string]any // the request's variables, which is nil without Caddy

	Reader  *body.Ahead // replaces the request's body, once that was read ahead
	Starved bool        // there was no memory to read the body to its end

	addr   netip.Addr
	text   string       // of addr, as Caddy found it
	parsed bool         // addr and text are set
	body   *body.Body   // nil if it was not read to its end
	read   bool         // ReadBody was called
	pair   address.Pair // of the request, if looked is set
	looked bool
}

// NewSubject returns the Subject of a request, whose context Caddy must have prepared.
func NewSubject(r *http.Request) (s Subject) {
	s.Look(r)
	return s
}

// Look makes an empty Subject that of a request. It looks up in the context, once, what
// all rules need.
func (s *Subject) Look(r *http.Request) {
	ctx := r.Context()
	s.Request, s.Judged = r, judged(r)
	s.Replacer, _ = ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	s.Vars, _ = ctx.Value(caddyhttp.VarsCtxKey).(map[string]any)
}

// Forget makes the Subject empty. Field by field, and only those that may be set, that is
// cheaper than a copy of an empty one: each pointer written costs a write barrier.
func (s *Subject) Forget() {
	s.Request, s.Judged, s.Overrides, s.Replacer, s.Vars = nil, nil, nil, nil, nil
	s.NoAddress, s.text, s.parsed = false, "", false
	if s.read {
		s.Reader, s.body, s.read, s.Starved = nil, nil, false, false
	}
	if s.looked {
		s.pair, s.looked = address.Pair{}, false
	}
}

// TrustedPeer reports whether the peer that sent the request is one of trusted_proxies.
func (s *Subject) TrustedPeer() bool {
	trusted, _ := s.Vars[caddyhttp.TrustedProxyVarKey].(bool)
	return trusted
}

// Address returns the client's address as Caddy found it, or the zero Addr if the
// request has none.
func (s *Subject) Address() netip.Addr {
	if !s.parsed {
		s.text, _ = s.Vars[caddyhttp.ClientIPVarKey].(string)
		s.addr, _ = netip.ParseAddr(s.text)
		s.parsed = true
	}
	return s.addr
}

// BanLeft returns how long the client's ban lasts, or 0 if there is none that holds.
func (s *Subject) BanLeft() time.Duration {
	if s.Overrides == nil {
		return 0
	}
	now := time.Now()
	ban := s.Overrides.Banned(s.Address(), now)
	if ban == nil || s.Overrides.AllShadow(now) {
		return 0
	}
	return ban.Left(now)
}

// Client returns the network that the request counts as one client of, where memory is
// divided among clients. It is the zero Prefix if the request has no address.
func (s *Subject) Client() netip.Prefix { return bucketkey.ClientPrefix(s.Address(), 32, 64) }

// LeaveBody makes the body count as one that was not read.
func (s *Subject) LeaveBody() { s.read = true }

// ReadBody has look read the body ahead, if it has at most so many bytes.
func (s *Subject) ReadBody(look func(*http.Request, netip.Prefix, int64) (*body.Ahead, *body.Body), most int64) {
	s.Reader, s.body = look(s.Request, s.Client(), most)
	s.read, s.Starved = true, s.Reader.Starved()
}

// Early reports whether a request came before the handshake was complete, which TLS
// 1.3 and QUIC allow returning clients. It may be a replay, and over QUIC its address
// is not verified yet.
func (s *Subject) Early() bool {
	return s.Request.TLS != nil && !s.Request.TLS.HandshakeComplete
}
