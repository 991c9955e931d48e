package rule

import (
	"net/http"
	"strings"
)

// judged returns a request as matchers and keys judge it, which is the request itself
// for all usual methods, and otherwise a copy with the method that the upstream sees.
func judged(r *http.Request) *http.Request {
	method := upstreamMethod(r)
	if method == r.Method {
		return r
	}
	seen := *r // shares everything else: matchers leave their findings in the context
	seen.Method = method
	return &seen
}

// upstreamMethod returns the method that Caddy's FastCGI client sends. It sends exactly
// GET, HEAD and OPTIONS as they are, everything else in upper case, and POST where
// that gives GET. The reverse proxy turns WebSockets that open with CONNECT, over
// HTTP/2 and HTTP/3, into GET before.
func upstreamMethod(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPost:
		return r.Method
	case http.MethodConnect:
		if r.ProtoMajor == 2 && r.Header.Get(":protocol") == "websocket" || r.ProtoMajor == 3 && r.Proto == "websocket" {
			return http.MethodGet
		}
		return r.Method
	}
	if method := strings.ToUpper(r.Method); method != "" && method != http.MethodGet {
		return method
	}
	return http.MethodPost
}

// Method reads the method that the upstream sees.
func Method(s *Subject) string { return s.Judged.Method }
