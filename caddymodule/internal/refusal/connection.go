package refusal

import (
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
)

const (
	// maxDrain is how much of an unwanted body the server reads, as net/http does.
	maxDrain = 256 << 10

	// drainTime is how long that may take, as long as Caddy's own server lets it. An idle
	// connection may stay for five minutes, so a client that stalls gains nothing.
	drainTime = time.Minute
)

// drain reads the rest of an HTTP/1 request's body before the answer is written: many
// clients read no answer before they have sent everything. A connection of which the body
// was read to its end can be kept. Otherwise it is closed in stages.
//
// By itself, net/http does the same only where the client does not ask for the close, as
// nginx does by default, and it sets no deadline if the answer is longer than its buffer of
// 2 KiB. HTTP/2 and 3 can refuse a single request.
func drain(w http.ResponseWriter, r *http.Request) {
	if http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime)) != nil {
		return // there is no connection
	}
	if r.Header["Expect"] == nil { // reading would ask for the body
		if _, err := io.CopyN(io.Discard, r.Body, maxDrain+1); err == io.EOF {
			return
		}
	}
	closeInStages(w)
}

// closeInStages ends the connection half a second after the answer. If it were closed at
// once, what the client is still sending would be answered by a reset, and many clients and
// proxies would lose an answer that they have not read yet. net/http does so where the limit
// of a MaxBytesReader is exceeded, and here any byte exceeds it.
func closeInStages(w http.ResponseWriter) {
	var b [2]byte
	_, _ = http.MaxBytesReader(response.Innermost(w), io.NopCloser(strings.NewReader("x")), 0).Read(b[:])
}
