package refusal

import (
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
)

const (
	// linger is how long the server keeps reading from a refused client after the
	// answer. If it closed the connection at once, the system would reset it, and
	// many clients would lose an answer that they have not read yet. net/http
	// waits as long.
	linger = 500 * time.Millisecond

	// A body of up to small bytes that has arrived is dropped, and the connection kept.
	small = 64 << 10

	// glance is how long the server looks for such a body. The system hands out what has
	// arrived only before a deadline that is not over. Who sent the body waits for nothing.
	glance = time.Millisecond

	// routing is how long an error route may read the body. The answer does not wait
	// for it. Afterwards the connection of a client that sends nothing more stays open
	// for the rest of it, which costs less than an idle connection.
	routing = 5 * time.Second
)

// endConnection ends the connection after the answer to an HTTP/1 request whose
// body was not read to its end, so that the server neither waits for the rest nor
// reads all of it. If it returns true, the answer must say "Connection: close".
// HTTP/2 and 3 can refuse a single request and need no such thing. A small body that
// has arrived is dropped instead, unless an error route may want it.
//
// The server sends the answer, reads and drops at most 256 KiB, and closes. It
// stops reading when the body is complete or the time is over.
func endConnection(w http.ResponseWriter, r *http.Request, bodyRead bool, reading time.Duration) bool {
	if bodyRead || r.ProtoMajor != 1 || r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody {
		return false
	}
	if reading == linger && arrived(w, r) {
		return false
	}
	// A writer without deadlines has no connection to wait for.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(reading))
	if r.Close && r.ContentLength > 0 {
		closeGently(w)
	}
	return true
}

// arrived reads and drops a small body, and reports whether all of it was there. If not,
// net/http has canceled the request's context, and only the answer is left to do. It lifts
// the deadline itself when the body is over. A client that waits for "100 Continue" has
// sent nothing, and a body in chunks may have no end.
func arrived(w http.ResponseWriter, r *http.Request) bool {
	if r.Close || r.ContentLength < 0 || r.ContentLength > small || r.Header["Expect"] != nil {
		return false
	}
	if http.NewResponseController(w).SetReadDeadline(time.Now().Add(glance)) != nil {
		return false
	}
	n, err := io.Copy(io.Discard, r.Body)
	return err == nil && n == r.ContentLength
}

// closeGently makes the server wait a moment between the answer and the close. By
// itself it does so unless the client asked for the close: then it would close
// while the client may be sending. Exceeding the limit of a MaxBytesReader tells
// the server to wait, and here any byte exceeds it.
func closeGently(w http.ResponseWriter) {
	var b [2]byte
	_, _ = http.MaxBytesReader(response.Innermost(w), io.NopCloser(strings.NewReader("x")), 0).Read(b[:])
}
