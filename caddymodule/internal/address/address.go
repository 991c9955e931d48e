// Package address knows the two addresses of a request: path and query as the client
// sent them, and as they are when the request reaches throttle. A rewrite in between must
// neither hide a request from a rule nor make it free.
//
// It depends on Caddy's original request only. Begin with [Of].
package address

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Pair is the addresses of a request. The zero value is that of a request with one.
type Pair struct {
	// As the client sent it. Nil if it is the same as now.
	sent *target

	// Front reports that a front controller reads the address as sent, which then is
	// the only one.
	front bool
}

// A target is what a rewrite changes of a request.
type target struct {
	url        url.URL
	requestURI string
}

// Of returns the addresses of a request.
func Of(r *http.Request) Pair {
	original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if !ok || original.URL == nil || same(original.URL, r.URL) {
		return Pair{}
	}
	return Pair{
		sent:  &target{*original.URL, original.RequestURI},
		front: FrontController(original.URL.Path, r.URL.Path),
	}
}

// same reports whether two URLs have the same path and query.
func same(a, b *url.URL) bool {
	return a.Path == b.Path && a.RawPath == b.RawPath && a.RawQuery == b.RawQuery
}

// indexFiles are the names of front controllers.
var indexFiles = []string{"index.php", "index.html"}

// FrontController reports whether a rewrite hands an address to an index file in a folder
// above it, whose name the client did not send. Such a file reads the address as sent.
func FrontController(sent, now string) bool {
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

// Two reports whether the request has two addresses.
func (p Pair) Two() bool { return p.sent != nil && !p.front }

// AsSent calls ask with the address that the client sent set in the request, and puts back
// what is there now, also if ask panics. Caddy's placeholders belong to the request, so it
// must not be a copy.
func (p Pair) AsSent(r *http.Request, ask func() (bool, error)) (bool, error) {
	if p.sent == nil {
		return ask()
	}
	now := target{*r.URL, r.RequestURI}
	defer func() { *r.URL, r.RequestURI = now.url, now.requestURI }()
	*r.URL, r.RequestURI = p.sent.url, p.sent.requestURI
	return ask()
}

// Either asks with the address as sent, and if that does not hold, with the other one. It
// is for what puts a request under a rule.
func (p Pair) Either(r *http.Request, ask func() (bool, error)) (bool, error) {
	holds, err := p.AsSent(r, ask)
	if holds || err != nil || !p.Two() {
		return holds, err
	}
	return ask()
}

// Both asks with each address. It is for what frees or prefers a request.
func (p Pair) Both(r *http.Request, ask func() (bool, error)) (bool, error) {
	holds, err := p.AsSent(r, ask)
	if !holds || err != nil || !p.Two() {
		return holds, err
	}
	return ask()
}
