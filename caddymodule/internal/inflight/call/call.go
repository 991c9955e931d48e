// Package call lets an upstream finish its response without its client. Begin with [Serve].
//
// An upstream such as PHP goes on working after its client has hung up, and a client that
// reads slowly would keep it waiting. If either decided when a call is over, clients could
// hold slots that nobody works in, or free slots whose workers are still busy. So a call ends
// with its response: that is taken as fast as the upstream gives it, and what the client has
// not taken yet lies in a [body.Spool]. What nobody reads any more is thrown away.
package call

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
)

// unsent is how much of a response all servers keep before they send any of it, so that
// writing it makes nobody wait. In bytes.
const unsent = 2 << 10

// Options say how a call is made.
type Options struct {
	// Store holds what the client has not taken yet. If it has no room, the upstream waits for
	// the client.
	Store *body.Store
	// Client bounds what is held.
	Client netip.Prefix
	// Served is called once, when the upstream is done: the next handler has returned, with its
	// error, or has panicked, or the connection has become a tunnel. What is left of the
	// response is sent after that.
	Served func(error)
	// Exiting may be nil. Once it is closed, calls without a client end.
	Exiting <-chan struct{}
}

// Serve calls the next handler, which goes on when the client of r leaves, and sends the
// response. It returns the handler's error when all is sent, and panics as the handler does. It
// panics with [http.ErrAbortHandler] if a client that is still there could not be sent all of it.
//
// A call within another one is a part of that: the outer one keeps what the client has not
// taken, so that both are over when the upstream is done.
func Serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, o Options) (err error) {
	if outer := find(r.Context()); outer != nil {
		p := &part{served: o.Served, next: outer.parts}
		outer.parts = p
		defer func() { p.done(err) }()
		return next.ServeHTTP(w, r)
	}
	c := &writer{store: o.Store, prefix: o.Client, call: call{client: r.Context(), exiting: o.Exiting}, part: part{served: o.Served}}
	c.Watch(w, r)
	c.call.writer, c.parts = c, &c.part
	defer c.finish()
	return c.serve(r, next)
}

func (w *writer) serve(r *http.Request, next caddyhttp.Handler) (err error) {
	defer func() {
		w.call.end()
		w.part.done(err)
	}()
	err = next.ServeHTTP(w, r.WithContext(&w.call))
	w.returned = err == nil
	return err
}

// A part is a call, or a call within it.
type part struct {
	served func(error) // nil once it was called
	next   *part       // around it
}

// done notes that the upstream is done with a part.
func (p *part) done(err error) {
	if served := p.served; served != nil {
		p.served = nil
		served(err)
	}
}

// A writer is the response writer of the next handler. What the server would keep is written at
// once. The rest goes through a sender, and what cannot be sent any more is thrown away, so that
// the handler goes on reading from the upstream.
type writer struct {
	response.Writer
	call   call
	part   part
	parts  *part // the innermost
	store  *body.Store
	prefix netip.Prefix

	through  bool // the handler itself writes to the client: streams, tunnels, responses without a body
	returned bool // without an error
	written  int64
	sender   *sender // nil before something had to wait
	// Once there is a sender, the header is that's, and the handler has a copy.
	header, sent http.Header // as it is now, and as it was then; nil before

	// Of the one that writes to the client: the sender while it runs, or the handler.
	lost atomic.Bool // nothing can be sent any more
	cut  bool        // something could not be sent
}

// Header implements http.ResponseWriter.
func (w *writer) Header() http.Header {
	if w.header != nil {
		return w.header
	}
	return w.ResponseWriter.Header()
}

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(status int) {
	if w.Status != 0 {
		return // the client may be reading already
	}
	if w.Final(status) {
		switch {
		case w.Tunnels():
			w.tunnel()
		case body.Conversation(w.ResponseWriter.Header().Get("Content-Type")):
			w.through = true
			w.call.streams()
		default:
			w.through = w.Bodiless()
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// tunnel notes that the connection is a tunnel, which belongs to client and upstream and may last
// for days.
func (w *writer) tunnel() {
	w.through = true
	w.call.streams()
	for p := w.parts; p != nil; p = p.next {
		p.done(nil)
	}
}

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	if w.Status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	written := w.written + int64(len(p))
	switch {
	case w.through || w.Declared >= 0 && written > w.Declared:
		w.catchUp()
		return w.writeNow(p) // which knows what is wrong, if it is too much
	case w.sender == nil && written <= unsent:
		w.written = written
		return w.writeNow(p)
	}
	w.written = written
	return w.send().write(p)
}

// send returns the sender.
func (w *writer) send() *sender {
	if w.sender == nil {
		w.header = w.ResponseWriter.Header().Clone()
		w.sent = maps.Clone(w.header)
		w.sender = newSender(w)
	}
	return w.sender
}

// ReadFrom implements io.ReaderFrom.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, r)
}

// FlushError lets http.ResponseController flush.
func (w *writer) FlushError() error {
	if w.Status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.through {
		w.catchUp()
		return w.flushNow()
	}
	w.send().flush()
	return nil
}

// Hijack implements http.Hijacker, for handlers that take the connection over.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.catchUp()
	conn, buffered, err := w.Writer.Hijack()
	if err == nil {
		w.tunnel()
	}
	return conn, buffered, err
}

// SetWriteDeadline keeps a handler's own deadline for what the handler writes to the client
// itself. What waits is sent later.
func (w *writer) SetWriteDeadline(at time.Time) error {
	if !w.through {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).SetWriteDeadline(at)
}

// catchUp returns when all that was written has been sent, and nobody else sends.
func (w *writer) catchUp() {
	if w.sender != nil {
		w.sender.catchUp()
	}
}

// finish sends what is left of the response.
func (w *writer) finish() {
	if w.sender != nil {
		defer w.sender.close()
		w.sender.catchUp()
		header := w.ResponseWriter.Header()
		for name, values := range w.header {
			if !slices.Equal(values, w.sent[name]) {
				header[name] = values // a trailer
			}
		}
	}
	if w.cut && w.returned && w.call.client.Err() == nil {
		panic(http.ErrAbortHandler) // HTTP/3 would end a part of the response as if it were all
	}
}

// writeNow writes to the client.
func (w *writer) writeNow(p []byte) (int, error) {
	if w.lost.Load() {
		return len(p), nil
	}
	n, err := w.ResponseWriter.Write(p)
	if err == nil || response.Excess(err) || errors.Is(err, http.ErrHijacked) {
		return n, err // the handler's own mistakes
	}
	w.lose()
	return len(p), nil
}

func (w *writer) flushNow() error {
	if w.lost.Load() {
		return nil
	}
	failed, err := w.FlushNow()
	if failed {
		w.lose()
		return nil
	}
	return err
}

// lose notes that nothing can be sent any more.
func (w *writer) lose() {
	w.cut = true
	w.lost.Store(true)
	w.call.leave()
}

// Interface guards
var (
	_ response.Watching = (*writer)(nil)
)
