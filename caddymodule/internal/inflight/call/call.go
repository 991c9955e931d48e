// Package call lets an upstream finish its response without its client. Begin with [Call.Serve].
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

// A Caller is on whose behalf a call is made.
type Caller interface {
	// NewSpool returns a spool for what the client has not taken yet, with so much memory at
	// most, in bytes. If it has no room, the upstream waits for the client.
	NewSpool(memory int) body.Spool

	// Served is called once, when the upstream is done: the next handler has returned, with its
	// error, or has panicked, or the connection has become a tunnel. What is left of the
	// response is sent after that.
	Served(error)

	// Exit returns a channel, or nil. Once it is closed, calls without a client end.
	Exit() <-chan struct{}
}

// A Call is one call of the next handler, and the response writer that this gets. The zero Call is
// ready for one call. It is used for as long as anybody has the request's context.
//
// What the server would keep is written at once. The rest goes through a sender, and what cannot be
// sent any more is thrown away, so that the handler goes on reading from the upstream.
type Call struct {
	response.Writer
	context detached
	part    part
	parts   *part // the innermost

	through  bool // the handler itself writes to the client: streams, tunnels, responses without a body
	returned bool // without an error
	cut      bool // something could not be sent
	written  int64
	sender   *sender // nil before something had to wait
	// Once there is a sender, the header is that's, and the handler has a copy.
	header, sent http.Header // as it is now, and as it was then; nil before

	// Of the one that writes to the client: the sender while it runs, or the handler.
	lost atomic.Bool // nothing can be sent any more
}

// Serve calls the next handler, which goes on when the client of r leaves, and sends the
// response. It returns the handler's error when all is sent, and panics as the handler does. It
// panics with [http.ErrAbortHandler] if a client that is still there could not be sent all of it.
func (c *Call) Serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, by Caller) error {
	c.Watch(w, r)
	c.context.client, c.context.call = r.Context(), c
	c.part.caller, c.parts = by, &c.part
	defer c.finish()
	return c.serve(r, next)
}

// serve gives the request another context until the next handler is done. That is cheaper than
// another request, which is larger than all else that a call needs.
func (c *Call) serve(r *http.Request, next caddyhttp.Handler) (err error) {
	*r = *r.WithContext(&c.context)
	defer func() {
		*r = *r.WithContext(c.context.client)
		c.context.end()
		c.part.done(err)
	}()
	err = next.ServeHTTP(c, r)
	c.returned = err == nil
	return err
}

// Within calls the next handler as a part of the call that the request is within: that keeps what
// the client has not taken, so that both are over when the upstream is done.
func (c *Call) Within(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, by Caller) (err error) {
	outer := find(r.Context())
	if outer == nil {
		return c.Serve(w, r, next, by)
	}
	c.part = part{caller: by, next: outer.parts}
	outer.parts = &c.part
	defer func() { c.part.done(err) }()
	return next.ServeHTTP(w, r)
}

// A part is a call, or a call within it.
type part struct {
	caller Caller
	next   *part // around it
	over   bool  // and the caller knows it
}

// done notes that the upstream is done with a part.
func (p *part) done(err error) {
	if !p.over {
		p.over = true
		p.caller.Served(err)
	}
}

// Header implements http.ResponseWriter.
func (c *Call) Header() http.Header {
	if c.header != nil {
		return c.header
	}
	return c.ResponseWriter.Header()
}

// WriteHeader implements http.ResponseWriter.
func (c *Call) WriteHeader(status int) {
	if c.Status != 0 {
		return // the client may be reading already
	}
	if c.Final(status) {
		switch {
		case c.Tunnels():
			c.tunnel()
		case body.Conversation(response.Single(c.ResponseWriter.Header()["Content-Type"])):
			c.through = true
			c.context.streams()
		default:
			c.through = c.Bodiless()
		}
	}
	c.ResponseWriter.WriteHeader(status)
}

// tunnel notes that the connection is a tunnel, which belongs to client and upstream and may last
// for days.
func (c *Call) tunnel() {
	c.through = true
	c.context.streams()
	for p := c.parts; p != nil; p = p.next {
		p.done(nil)
	}
}

// Write implements http.ResponseWriter.
func (c *Call) Write(p []byte) (int, error) {
	if c.lost.Load() {
		return len(p), nil
	}
	if c.Status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	written := c.written + int64(len(p))
	switch {
	case c.through || c.Declared >= 0 && written > c.Declared:
		c.catchUp()
		return c.writeNow(p) // which knows what is wrong, if it is too much
	case c.sender == nil && written <= unsent:
		c.written = written
		return c.writeNow(p)
	}
	c.written = written
	return c.send().write(p)
}

// send returns the sender.
func (c *Call) send() *sender {
	if c.sender == nil {
		c.header = c.ResponseWriter.Header().Clone()
		c.sent = maps.Clone(c.header)
		c.sender = newSender(c)
	}
	return c.sender
}

// ReadFrom implements io.ReaderFrom.
func (c *Call) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}

// FlushError lets http.ResponseController flush.
func (c *Call) FlushError() error {
	if c.lost.Load() {
		return nil
	}
	if c.Status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if c.through {
		c.catchUp()
		return c.flushNow()
	}
	c.send().flush()
	return nil
}

// Hijack implements http.Hijacker, for handlers that take the connection over.
func (c *Call) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.catchUp()
	conn, buffered, err := c.Writer.Hijack()
	if err == nil {
		c.tunnel()
	}
	return conn, buffered, err
}

// SetWriteDeadline keeps a handler's own deadline for what the handler writes to the client
// itself. What waits is sent later.
func (c *Call) SetWriteDeadline(at time.Time) error {
	if !c.through {
		return nil
	}
	return http.NewResponseController(c.ResponseWriter).SetWriteDeadline(at)
}

// catchUp returns when all that was written has been sent, and nobody else sends.
func (c *Call) catchUp() {
	if c.sender != nil {
		c.sender.catchUp()
	}
}

// finish sends what is left of the response.
func (c *Call) finish() {
	if c.sender != nil {
		defer c.sender.close()
		c.sender.catchUp()
		header := c.ResponseWriter.Header()
		for name, values := range c.header {
			if !slices.Equal(values, c.sent[name]) {
				header[name] = values // a trailer
			}
		}
	}
	if c.cut && c.returned && c.context.client.Err() == nil {
		panic(http.ErrAbortHandler) // HTTP/3 would end a part of the response as if it were all
	}
	c.lost.Store(true) // what somebody still writes comes too late
}

// writeNow writes to the client.
func (c *Call) writeNow(p []byte) (int, error) {
	if c.lost.Load() {
		return len(p), nil
	}
	n, err := c.ResponseWriter.Write(p)
	if err == nil || response.Excess(err) || errors.Is(err, http.ErrHijacked) {
		return n, err // the handler's own mistakes
	}
	c.lose()
	return len(p), nil
}

func (c *Call) flushNow() error {
	if c.lost.Load() {
		return nil
	}
	failed, err := c.FlushNow()
	if failed {
		c.lose()
		return nil
	}
	return err
}

// lose notes that nothing can be sent any more.
func (c *Call) lose() {
	c.cut = true
	c.lost.Store(true)
	c.context.leave()
}

// Interface guards
var (
	_ response.Watching = (*Call)(nil)
)
