// Package detached lets an upstream finish its answer when the client has left.
//
// An upstream such as PHP goes on working after its client has hung up. If the
// client's leaving ended the call, a slot would come free while the worker behind it
// is still busy, and anybody could fill the upstream's own queue by hanging up early.
// A detached call therefore ends with its answer. What nobody reads any more is thrown
// away.
package detached

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

const (
	// Patience is how long a call may go on after its client has left.
	Patience = 5 * time.Minute

	// A client that does not take so many bytes of its answer within slowest, or
	// half as long again, is cut off: while it reads, it holds a worker of the upstream.
	slowPiece = 10 << 10
	slowest   = 10 * time.Second
)

// A call is what is known of a detached call. It is canceled when the client has left
// and nobody can want the answer: because it is a stream, or the client's patience is
// over, or the process ends.
type call struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	left   bool        // the client
	stream bool        // there is no end to wait for
	timer  *time.Timer // until the patience is over, once the client has left
}

// leave notes that the client has left.
func (c *call) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	if c.stream {
		c.cancel()
	} else if c.ctx.Err() == nil {
		c.timer = time.AfterFunc(Patience, c.cancel)
	}
}

// streams notes that the answer has no end.
func (c *call) streams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = true
	if c.left {
		c.cancel()
	}
}

// end ends what is left of the call.
func (c *call) end() {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

// Serve calls the next handler, which goes on when the client of r leaves. If exiting,
// which may be nil, is closed, calls without a client end.
func Serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, exiting <-chan struct{}) error {
	client := r.Context()
	d := &writer{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, resets: r.ProtoMajor == 2}
	c := &d.call
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(client))
	stop := context.AfterFunc(client, func() {
		c.leave()
		select {
		case <-exiting:
			c.cancel()
		case <-c.ctx.Done():
		}
	})
	if server, ok := client.Value(http.ServerContextKey).(*http.Server); ok && server.WriteTimeout > 0 {
		d.limit = time.Now().Add(server.WriteTimeout)
	}
	defer func() {
		stop()
		c.end()
		d.unhurry()
	}()
	return next.ServeHTTP(d, r.WithContext(c.ctx))
}

// A writer throws away what cannot be sent any more, so that whoever writes reads on.
type writer struct {
	caddyhttp.ResponseWriterWrapper
	call    call
	status  int
	lost    bool      // nothing can be sent any more
	limit   time.Time // by the server's own write timeout; zero if there is none
	due     time.Time // a deadline of ours; zero if there is none
	patient bool      // the connection knows no deadlines, or is not ours any more
	resets  bool      // HTTP/2 ends a stream at its deadline, also while nothing is written
}

// WriteHeader implements http.ResponseWriter.
func (d *writer) WriteHeader(status int) {
	if d.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		d.status = status
		if status == http.StatusSwitchingProtocols || endless(d.Header().Get("Content-Type")) {
			d.call.streams()
		}
	}
	d.ResponseWriter.WriteHeader(status)
}

// endless reports whether answers of a type are conversations rather than documents.
func endless(contentType string) bool {
	for _, prefix := range []string{"text/event-stream", "application/grpc", "multipart/x-mixed-replace"} {
		if strings.HasPrefix(strings.ToLower(contentType), prefix) {
			return true
		}
	}
	return false
}

// Write implements http.ResponseWriter.
func (d *writer) Write(p []byte) (int, error) {
	if d.status == 0 {
		d.WriteHeader(http.StatusOK)
	}
	for written := 0; ; {
		if d.lost {
			return len(p), nil
		}
		piece := p[written:min(len(p), written+slowPiece)]
		d.hurry()
		n, err := d.ResponseWriter.Write(piece)
		d.rest()
		written += n
		switch {
		case errors.Is(err, http.ErrBodyNotAllowed) || errors.Is(err, http.ErrContentLength) || errors.Is(err, http.ErrHijacked):
			return written, err // the handler's own mistakes
		case err != nil:
			d.lose()
		case written >= len(p):
			return written, nil
		}
	}
}

// lose notes that nothing can be sent any more.
func (d *writer) lose() {
	d.lost = true
	d.call.mu.Lock()
	stream := d.call.stream
	d.call.mu.Unlock()
	if stream {
		d.call.cancel()
	}
}

// hurry gives the client a deadline for the next piece. While the last one leaves time
// enough, it stays.
func (d *writer) hurry() {
	if d.patient {
		return
	}
	now := time.Now()
	if d.due.Sub(now) >= slowest {
		return
	}
	due := now.Add(slowest + slowest/2)
	if !d.limit.IsZero() && d.limit.Before(due) {
		due = d.limit
	}
	if http.NewResponseController(d.ResponseWriter).SetWriteDeadline(due) != nil {
		d.patient = true
		return
	}
	d.due = due
}

// rest takes the deadline back until the next piece if it would hold for the upstream,
// too, which may take its time.
func (d *writer) rest() {
	if d.resets {
		d.unhurry()
	}
}

// unhurry takes the deadline back, for what others send on the connection.
func (d *writer) unhurry() {
	if !d.due.IsZero() && !d.lost && !d.patient {
		_ = http.NewResponseController(d.ResponseWriter).SetWriteDeadline(d.limit)
	}
	d.due = time.Time{}
}

// ReadFrom implements io.ReaderFrom.
func (d *writer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{d}, r)
}

// FlushError lets http.ResponseController flush.
func (d *writer) FlushError() error {
	if d.status == 0 {
		d.WriteHeader(http.StatusOK)
	}
	if d.lost {
		return nil
	}
	d.hurry()
	err := http.NewResponseController(d.ResponseWriter).Flush()
	d.rest()
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		d.lose()
		return nil
	}
	return err
}

// Hijack implements http.Hijacker, for handlers that take the connection over.
func (d *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	d.unhurry()
	conn, buffered, err := http.NewResponseController(d.ResponseWriter).Hijack()
	if err == nil {
		d.patient = true
		d.call.streams()
	}
	return conn, buffered, err
}

// Interface guards
var (
	_ http.ResponseWriter = (*writer)(nil)
	_ http.Hijacker       = (*writer)(nil)
	_ http.Pusher         = (*writer)(nil)
	_ io.ReaderFrom       = (*writer)(nil)
)
