// Package response knows what the headers of an answer mean: to net/http, for the response
// writers that watch what a handler answers, and to caches. It knows nothing of zones.
// Begin with [Writer].
package response

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// StatusClientLeft is the status in access logs of requests whose client has left, as in
// Caddy's reverse proxy and nginx.
const StatusClientLeft = 499

// MayTunnel reports whether a request may become a tunnel, such as the connection of a
// WebSocket, which may last for days.
func MayTunnel(r *http.Request) bool {
	return r.Header["Upgrade"] != nil || r.Method == http.MethodConnect
}

// StatusOf returns the status of an error that a handler has returned.
func StatusOf(err error) int {
	if failed, is := errors.AsType[caddyhttp.HandlerError](err); is && failed.StatusCode != 0 {
		return failed.StatusCode
	}
	return http.StatusInternalServerError
}

// Single returns the only value of a field, or "" if it has none or several.
func Single(values []string) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// A Writer hands on what the next handler answers, and watches its headers. It is to be
// embedded. Call Watch first.
type Writer struct {
	caddyhttp.ResponseWriterWrapper

	Head     bool            // the server sends no body
	connect  context.Context // of a CONNECT over HTTP/2 and 3; else nil
	Status   int             // 0 before there are headers
	Declared int64           // bytes of the body, -1 if the handler did not say
}

// Watch begins to watch the answer to a request.
func (w *Writer) Watch(to http.ResponseWriter, r *http.Request) {
	w.ResponseWriter = to
	w.Head, w.Declared = r.Method == http.MethodHead, -1
	if r.ProtoMajor >= 2 && r.Method == http.MethodConnect {
		w.connect = r.Context()
	}
}

// Final reports whether a status is that of the answer: not below 200, but for 101, and the
// first one. If so, it records what the headers say.
func (w *Writer) Final(status int) bool {
	if w.Status != 0 || status < 200 && status != http.StatusSwitchingProtocols {
		return false
	}
	w.Status = status
	if w.Bodiless() {
		w.Declared = 0
	} else if length := w.Header()["Content-Length"]; len(length) > 0 {
		if n, err := strconv.ParseInt(length[0], 10, 64); err == nil {
			w.Declared = n
		}
	}
	return true
}

// Bodiless reports whether the answer has no body.
func (w *Writer) Bodiless() bool {
	return w.Head || w.Status == http.StatusNoContent || w.Status == http.StatusNotModified
}

// Tunnels reports whether the answer makes the connection a tunnel. HTTP/2 and 3 say 200
// where HTTP/1 says 101, and so does an upstream that knows no WebSockets and answers with a page.
func (w *Writer) Tunnels() bool {
	if w.connect == nil || w.Status >= 300 {
		return w.Status == http.StatusSwitchingProtocols
	}
	repl, _ := w.connect.Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if repl == nil {
		return false
	}
	status, _ := repl.Get("http.reverse_proxy.status_code")
	return status == http.StatusSwitchingProtocols
}

// Lost reports whether writing or flushing has failed on the way to the client. Otherwise the handler
// wrote more than its answer has room for, or has hijacked the connection, or the writer cannot flush.
func Lost(err error) bool {
	return err != nil && !errors.Is(err, http.ErrBodyNotAllowed) && !errors.Is(err, http.ErrContentLength) &&
		!errors.Is(err, http.ErrHijacked) && !errors.Is(err, http.ErrNotSupported)
}

// Innermost returns the response writer of the server, which others wrap.
func Innermost(w http.ResponseWriter) http.ResponseWriter {
	for {
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = outer.Unwrap()
	}
}

// Private reports whether only the client may get a response, and no cache keeps it for
// others. A response may leave that open, as long as nothing allows caches to keep it.
func Private(header http.Header) bool {
	if len(header["Age"]) > 0 {
		return false // a cache has answered
	}
	for name, lines := range header {
		if targeted(name) && slices.ContainsFunc(lines, func(line string) bool {
			return line != "0" && !strings.Contains(line, "no-store") && !strings.Contains(line, "private")
		}) {
			return false
		}
	}
	private, lasting := false, len(header["Expires"]) > 0
	for name, value := range directives(header) {
		switch name {
		case "public", "s-maxage":
			return false
		case "no-store":
			private = true
		case "private", "no-cache": // with a value, it is about some headers only
			private = private || value == ""
		case "max-age":
			lasting = lasting || strings.Trim(value, `"0`) != ""
		}
	}
	return private || !lasting
}

// SaysPrivate reports whether Cache-Control forbids caches to keep a response for others. If
// there is no such word, they may decide for themselves, and a handler around may add one.
func SaysPrivate(header http.Header) bool {
	for name, value := range directives(header) {
		if name == "no-store" || name == "private" && value == "" {
			return true
		}
	}
	return false
}

// KeepPrivate says that caches may not keep a response for others, unless it says so
// already. A response that is only to be revalidated may be kept with its cookies.
func KeepPrivate(header http.Header) {
	if !SaysPrivate(header) {
		header.Set("Cache-Control", strings.Join(append(slices.Clone(header["Cache-Control"]), "private"), ", "))
	}
}

// DropTargeted removes headers for some caches only, which would go by them rather than
// by Cache-Control. A handler around the one that answers may have set them for all
// answers.
func DropTargeted(header http.Header) {
	for name := range header {
		if targeted(name) {
			delete(header, name)
		}
	}
}

// targeted reports whether a header is for some caches only: as RFC 9213 has it, such as
// Cloudflare-CDN-Cache-Control, or as caches had them before.
func targeted(name string) bool {
	return strings.HasSuffix(name, "-Cache-Control") || name == "Surrogate-Control" || name == "Edge-Control" || name == "X-Accel-Expires"
}

// directives iterates over those of Cache-Control, in lower case, and their values.
func directives(header http.Header) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for _, line := range header["Cache-Control"] {
			for directive := range strings.SplitSeq(line, ",") {
				name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
				if !yield(strings.ToLower(name), value) {
					return
				}
			}
		}
	}
}
