package body

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A client must send so many bytes of its body within slowest, or all of it, while it
// holds a worker of the upstream. Clients that read answers have the same pace.
const (
	slowPiece = 10 << 10
	slowest   = 15 * time.Second
)

// ErrSlow is what reading a body ends with whose client does not keep the pace.
var ErrSlow = errors.New("the client sends its body too slowly")

// A Paced is a request's body whose client must keep the pace. It takes the place of the
// body. Only the time in which somebody waits for the client counts. A nil *Paced keeps no
// pace.
type Paced struct {
	io.ReadCloser // the body

	ctx     context.Context // of the client; it ends with the request
	control *http.ResponseController

	slow atomic.Bool // the client has not kept the pace

	mu      sync.Mutex
	timer   *time.Timer
	reading bool
	free    bool          // there is no pace any more
	waited  time.Duration // for the bytes that came since
	came    int
}

// Pace makes the client of a request keep the pace while the rest of its body is read,
// and replaces r.Body. It returns nil if there is nothing left to read. The body of a
// CONNECT request is a tunnel and left alone. ctx is that of the client.
func Pace(ctx context.Context, w http.ResponseWriter, r *http.Request) *Paced {
	if r.Method == http.MethodConnect || AllReceived(r) {
		return nil
	}
	b, paced := r.Body.(*Paced)
	if !paced {
		b = &Paced{ReadCloser: r.Body, ctx: ctx, control: http.NewResponseController(w)}
		r.Body = b
	}
	return b
}

// Slow reports whether the client did not keep the pace.
func (b *Paced) Slow() bool {
	return b != nil && b.slow.Load()
}

// Free ends the pace: the request has become a conversation.
func (b *Paced) Free() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// Read implements io.Reader.
func (b *Paced) Read(p []byte) (int, error) {
	began := time.Now()
	if b.begin() {
		return 0, ErrSlow
	}
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	b.timer.Stop()
	if b.slow.Load() {
		return n, ErrSlow
	}
	b.waited += time.Since(began)
	if b.came += n; b.came >= slowPiece {
		b.waited, b.came = 0, 0
	}
	return n, err
}

// begin begins to wait for the client, unless that is too slow already.
func (b *Paced) begin() (slow bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = true
	left := slowest - b.waited
	switch {
	case b.slow.Load():
	case b.timer == nil:
		b.timer = time.AfterFunc(left, b.cut)
	case !b.free:
		b.timer.Reset(left)
	}
	return b.slow.Load()
}

// cut ends the read that waits for a client that is too slow.
func (b *Paced) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.reading || b.free || b.ctx.Err() != nil {
		return
	}
	b.slow.Store(true)
	_ = b.control.SetReadDeadline(time.Now()) // or the read ends with the connection
}

// A trackedBody is a request's body that knows when it has been read to its end.
type trackedBody struct {
	io.ReadCloser
	over atomic.Bool
}

// Track replaces r.Body so that [AllReceived] knows when all of it has been read. The body of
// a CONNECT request is a tunnel and left alone. A body that breaks off never ends.
func Track(r *http.Request) {
	if !none(r) && r.Method != http.MethodConnect {
		r.Body = &trackedBody{ReadCloser: r.Body}
	}
}

// none reports whether a request has no body.
func none(r *http.Request) bool {
	return r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0
}

// Read implements io.Reader.
func (b *trackedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.over.Store(true)
	}
	return n, err
}
