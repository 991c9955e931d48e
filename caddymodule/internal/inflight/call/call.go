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
	"cmp"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
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

	// Answers is called before a header is sent, which it may change, and with the status 0
	// when the next handler has returned, for trailers and for what an error route would send.
	Answers(status int, header http.Header)

	// Served is called when the upstream is done: the connection has become a tunnel, and then the
	// next handler has returned, with its error, or has panicked. What is left of the response is
	// sent after that.
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
	by      Caller

	written int64
	sender  *sender // nil before something had to wait

	through bool        // the handler itself writes to the client: streams, tunnels, responses without a body
	lost    atomic.Bool // something could not be sent, so nothing is any more
}

// Serve calls the next handler, which goes on when the client of r leaves, and sends the
// response. Within another call, only that one is patient. It returns the handler's error when
// all is sent, and panics as the handler does. It panics with [http.ErrAbortHandler] if a client
// that is still there could not be sent all of it. A handler that has written nothing answers
// with 200.
//
// The handler gets r itself, since Caddy's placeholders read that, with the context of the call, which is
// that of the client again once the upstream is done. Serve does not put that back: goroutines of an
// upstream's client still read r.
func (c *Call) Serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, by Caller, within bool) (err error) {
	c.Watch(w, r)
	c.context.client.Context, c.context.call, c.context.ends, c.by = r.Context(), c, within, by
	*r = *r.WithContext(&c.context)
	if r.Method == http.MethodConnect {
		defer func(body io.ReadCloser) { r.Body = body }(r.Body) // an error route may have a tunnel, too
		r.Body = tunnelBody{r.Body, c}
	}
	returned := false // without an error
	defer func() {
		c.context.end()
		if returned && c.Status == 0 {
			c.by.Answers(http.StatusOK, c.Header())
		}
		c.by.Answers(0, c.Header())
		c.by.Served(err)
		c.finish(returned)
	}()
	err = next.ServeHTTP(c, r)
	returned = err == nil
	return err
}

// A tunnelBody is the body of a CONNECT. There is none before there is a tunnel: what wants to read a
// body before it asks the upstream would wait for the client.
type tunnelBody struct {
	io.ReadCloser
	call *Call
}

func (b tunnelBody) Read(p []byte) (int, error) {
	if b.call.Status == 0 {
		return 0, io.EOF
	}
	return b.ReadCloser.Read(p)
}

// conversations are how the types of responses begin that are streams without an end, or halves of
// conversations.
var conversations = []string{"application/grpc", "application/connect+", "text/event-stream", "multipart/x-mixed-replace"}

func isConversation(contentType string) bool {
	contentType = strings.ToLower(contentType)
	return slices.ContainsFunc(conversations, func(begin string) bool { return strings.HasPrefix(contentType, begin) })
}

// Header implements http.ResponseWriter.
func (c *Call) Header() http.Header {
	if c.sender != nil {
		return c.sender.header
	}
	return c.ResponseWriter.Header()
}

// WriteHeader implements http.ResponseWriter.
func (c *Call) WriteHeader(status int) {
	if c.Status != 0 {
		return // the client may be reading already
	}
	header := c.Header()
	if c.Final(status) {
		switch {
		case c.Tunnels():
			c.tunnel()
		case isConversation(response.Single(header["Content-Type"])):
			c.through = true
			c.context.note(&c.context.ends)
		default:
			c.through = c.Bodiless()
		}
	}
	c.by.Answers(status, header)
	if c.Status == 0 && header["Content-Length"] == nil {
		// If the client leaves, HTTP/2 may still read the header of a hint after this has returned, and the
		// process ends if the handler changes it meanwhile. A header with a length is copied first.
		header["Content-Length"] = nil
		defer delete(header, "Content-Length")
	}
	c.ResponseWriter.WriteHeader(status)
}

// tunnel notes that the connection is a tunnel, which belongs to client and upstream and may last
// for days.
func (c *Call) tunnel() {
	c.through = true
	c.context.note(&c.context.ends)
	c.by.Served(nil)
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
		s := &sender{call: c, spool: c.by.NewSpool(inMemory), header: c.ResponseWriter.Header().Clone()}
		s.sent, s.changed.L, c.sender = maps.Clone(s.header), &s.mu, s
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
		return c.flushNow()
	}
	c.send().flush()
	return nil
}

// Hijack implements http.Hijacker, for handlers that take the connection over.
func (c *Call) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.catchUp()
	conn, buffered, err := http.NewResponseController(c.ResponseWriter).Hijack()
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

// finish sends what is left of the response. The handler has returned without an error, or not.
func (c *Call) finish(returned bool) {
	if c.sender != nil {
		defer c.sender.close()
		c.sender.catchUp()
		header := c.ResponseWriter.Header()
		for name, values := range c.sender.header {
			if !slices.Equal(values, c.sender.sent[name]) {
				header[name] = values // a trailer
			}
		}
	}
	if c.lost.Load() && returned && c.context.client.Err() == nil {
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
	if response.Lost(err) {
		c.lose()
		return len(p), nil
	}
	return n, err
}

func (c *Call) flushNow() error {
	err := http.NewResponseController(c.ResponseWriter).Flush()
	if response.Lost(err) {
		c.lose()
		return nil
	}
	return err
}

// lose notes that nothing can be sent any more.
func (c *Call) lose() {
	c.lost.Store(true)
	c.context.note(&c.context.left)
}

// Patience is how long a call may go on after its client has left.
const Patience = 5 * time.Minute

// A detached is the context of a call: that of the client, but for its end. It is canceled when the
// client has left and nobody can want the response: because it is a stream, or the client's
// patience is over, or the process ends. The client is watched from when somebody first asks for
// that. When the upstream is done, what has asked by then is canceled, and the context is the client's.
type detached struct {
	client own // which is never canceled here
	call   *Call

	own atomic.Pointer[own] // nil before somebody asks, and that of the client when the upstream is done

	mu   sync.Mutex
	left bool // the client has, or can be sent nothing any more. Over HTTP/3, it may still be there then.
	ends bool // when it has: there is no end to wait for, or the call around was patient
}

// An own context is the client's without its end.
type own struct {
	context.Context
	cancel  context.CancelFunc
	unwatch func() bool
}

// idleTimeoutsKey is that of caddyhttp.IdleTimeoutsFromContext.
const idleTimeoutsKey caddy.CtxKey = "idle_timeouts"

// Value implements context.Context.
func (d *detached) Value(key any) any {
	own := d.own.Load()
	if k, ok := key.(caddy.CtxKey); ok && k == idleTimeoutsKey && own != &d.client { // which costs less than to compare them as any
		// Caddy's timeouts within the call would change the server's writer while we write to it.
		// Without that, they wrap ours.
		reader, _ := caddyhttp.IdleTimeoutsFromContext(d.client)
		return caddyhttp.ContextWithIdleTimeouts(context.Background(), reader, nil).Value(key)
	}
	return cmp.Or(own, &d.client).Value(key)
}

// Deadline implements context.Context.
func (d *detached) Deadline() (at time.Time, set bool) { return at, false }

// Done implements context.Context.
func (d *detached) Done() <-chan struct{} { return d.watch().Done() }

// Err implements context.Context.
func (d *detached) Err() error { return d.watch().Err() }

// watch returns the call's own context, and has the client watched.
func (d *detached) watch() *own {
	if own := d.own.Load(); own != nil {
		return own
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.own.Load() == nil {
		o := new(own)
		o.Context, o.cancel = context.WithCancel(context.WithoutCancel(d.client))
		o.unwatch = context.AfterFunc(d.client, func() { d.note(&d.left) })
		d.own.Store(o)
		d.judge()
	}
	return d.own.Load()
}

// end makes this the context of the client.
func (d *detached) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if own := d.own.Swap(&d.client); own != nil {
		own.unwatch()
		own.cancel()
	}
}

// note notes that the client has left, or that the call then ends.
func (d *detached) note(what *bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !*what {
		*what = true
		d.judge()
	}
}

// judge ends the call if nobody can want the response any more. The caller holds the lock.
func (d *detached) judge() {
	own := d.own.Load()
	switch {
	case own == nil || own == &d.client:
	case d.left && d.ends:
		own.cancel()
	case d.left:
		go own.linger(d.call.by.Exit())
	}
}

// linger ends the call without a client when its time is over, or the process ends.
func (o *own) linger(exit <-chan struct{}) {
	select {
	case <-time.After(Patience):
	case <-exit:
	case <-o.Done():
	}
	o.cancel()
}

const (
	// inMemory is how much of one response waits in memory. What is more waits in the file.
	inMemory = 1 << 20

	// mostAtOnce is how much is written to a client at once: timeouts of the server count from
	// one write to the next, and those of Caddy's reverse proxy are as large.
	mostAtOnce = 32 << 10
)

// A sender sends what the handler has written, in a goroutine while there is something to send.
type sender struct {
	call *Call
	// The header of the response is the sender's, and the handler has a copy.
	header, sent http.Header // as it is now, and as it was

	mu       sync.Mutex // guards what follows
	changed  sync.Cond  // with each piece that was sent
	spool    body.Spool
	flushes  bool // when all that is there has been sent
	running  bool
	panicked any
}

// write takes a part of the response. Out of room, it waits for the client.
func (s *sender) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for written := 0; ; {
		if s.call.lost.Load() {
			return len(p), nil
		}
		n, err := s.spool.Write(p[written:])
		written += n
		switch {
		case err == nil:
			s.start()
			return written, nil
		case s.running || !s.spool.Empty():
			s.start()
			s.changed.Wait()
		default: // others hold all there is
			s.unlocked(func() { n, err = s.call.writeNow(p[written:]) })
			return written + n, err
		}
	}
}

// flush has the server flush.
func (s *sender) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushes = true
	s.start()
}

// start starts the goroutine, unless it runs. The caller holds the lock.
func (s *sender) start() {
	if !s.running {
		s.running = true
		go s.run()
	}
}

// run sends what is there, in a goroutine. A panic goes on in that of the handler.
func (s *sender) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if panicked := recover(); panicked != nil {
			s.panicked = panicked
			s.call.lost.Store(true)
		}
		if s.running = false; s.call.lost.Load() {
			s.spool.Close()
		}
		s.changed.Broadcast()
	}()
	for !s.call.lost.Load() {
		piece, err := s.spool.Next()
		switch {
		case err != nil: // the file cannot be read
			s.call.lose()
		case len(piece) > 0:
			piece = piece[:min(len(piece), mostAtOnce)]
			s.unlocked(func() { _, _ = s.call.writeNow(piece) })
			s.spool.Discard(len(piece))
			s.changed.Broadcast()
		case s.flushes:
			s.flushes = false
			s.unlocked(func() { _ = s.call.flushNow() })
		default:
			return
		}
	}
}

// unlocked lets others hold the lock meanwhile.
func (s *sender) unlocked(do func()) {
	s.mu.Unlock()
	defer s.mu.Lock()
	do()
}

// catchUp returns when all that was there has been sent. It panics as the goroutine has.
func (s *sender) catchUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running {
		s.changed.Wait()
	}
	if panicked := s.panicked; panicked != nil {
		s.panicked = nil
		panic(panicked)
	}
}

// close throws away what is left.
func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call.lost.Store(true)
	s.spool.Close()
}
