package refusal

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// isCall reports whether a request is a gRPC call, of a program or of a page (grpc-web).
func isCall(r *http.Request) bool {
	const grpc = "application/grpc"
	kind := r.Header.Get("Content-Type")
	if len(kind) < len(grpc) || !strings.EqualFold(kind[:len(grpc)], grpc) {
		return false
	}
	more := kind[len(grpc):]
	return more == "" || strings.ContainsRune("+-; ", rune(more[0]))
}

// endCall answers a gRPC call. Clients of gRPC take any status of HTTP but 200 for an outage, and
// some of them repeat the call at once. They keep the pushback, and do not repeat a call whose
// pushback is negative (gRFC A6).
func (f *Refusal) endCall(w http.ResponseWriter, r *http.Request, h *headers) {
	const resourceExhausted = "8"
	message, pushback := f.message(&languages[0]), "-1"
	if f.Code != 0 {
		message += " (" + f.Code.String() + ")"
	}
	if f.Waits {
		pushback = strconv.FormatInt(WholeSeconds(f.RetryAfter)*1000, 10)
	}
	h.set("Content-Type", r.Header.Get("Content-Type"))
	h.set("Grpc-Status", resourceExhausted)
	h.set("Grpc-Message", url.PathEscape(message))
	h.set("Grpc-Retry-Pushback-Ms", pushback)
	h.set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
}
