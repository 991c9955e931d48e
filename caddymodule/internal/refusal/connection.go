package refusal

import (
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	// linger is how long the server goes on taking in what a refused client is
	// sending, once it has the answer. If the connection were closed at once, the
	// system would answer what still comes with a reset, and many clients lose
	// an answer then that they have not read yet. net/http waits as long.
	linger = 500 * time.Millisecond

	// routing is how long an error route may read the body.
	routing = 5 * time.Second
)

// endConnection sees to it that the answer to an HTTP/1 request whose body was
// not read to its end neither waits for the rest nor takes all of it in: the
// connection ends. It reports whether it does; if so, the answer must say
// "Connection: close". HTTP/2 and 3 need no such thing, they can say no to one
// request.
//
// The server sends the answer, then drops at most 256 KiB of what comes, and
// closes. It stops reading when the body is there or the time is over.
func endConnection(w http.ResponseWriter, r *http.Request, bodyRead bool, reading time.Duration) bool {
	if bodyRead || r.ProtoMajor != 1 || r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody {
		return false
	}
	// Where there is no deadline to set there is no connection to wait for.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(reading))
	if r.Close && r.ContentLength > 0 {
		closeGently(w)
	}
	return true
}

// closeGently lets the server wait a moment between the end of the answer and the
// end of the connection. It does so by itself unless the client asked it to
// close: then it drops nothing, and closes while the client may be sending.
// A body over the limit of a MaxBytesReader is how handlers say that they want
// it to wait; of this body any byte is too much.
func closeGently(w http.ResponseWriter) {
	for {
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = outer.Unwrap()
	}
	var b [2]byte
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(b[:])
}
