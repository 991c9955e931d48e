// Package detached lets an upstream finish its answer without its client. Begin with
// [Serve].
//
// An upstream such as PHP goes on working after its client has hung up. If the
// client's leaving ended the call, a slot would come free while the worker behind it
// is still busy, and anybody could fill the upstream's own queue by hanging up early.
// A detached call therefore ends with its answer. What nobody reads any more is thrown
// away.
//
// A client that reads slowly would hold the worker, too. A bounded part of the answer
// therefore waits in memory, and the call is over when the upstream's answer is: the
// rest is sent afterwards.
package detached

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/response"
)

const (
	// Patience is how long a call may go on after its client has left.
	Patience = 5 * time.Minute

	// A client that does not take so many bytes of its answer within slowest is cut off:
	// while it reads, it holds memory, or even a worker of the upstream.
	slowPiece = 10 << 10
	slowest   = 15 * time.Second

	// unsent is how much of an answer the server keeps before it sends anything.
	unsent = 2 << 10
)

// Serve calls the next handler, which goes on when the client of r leaves, and sends the
// answer. Served is called when the handler has returned, with its error, or has panicked;
// the rest of the answer is sent after that. Serve panics with [http.ErrAbortHandler] if a client that is still there could not
// be sent all of it. If exiting, which may be nil, is closed, calls without a client end.
//
// A call within another one is a part of that: the outer one keeps what the client has not
// read, so that both are over when the upstream is done.
func Serve(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, served func(error), exiting <-chan struct{}) (err error) {
	if r.Context().Value(writerKey{}) != nil {
		defer func() { served(err) }()
		return next.ServeHTTP(w, r)
	}
	d := &writer{call: call{client: r.Context(), exiting: exiting}, served: served}
	d.Watch(w, r)
	d.changed.L, d.call.writer, d.answer.pieces = &d.mu, d, d.answer.room[:0]
	defer d.finish()
	return d.serve(r, next)
}

func (d *writer) serve(r *http.Request, next caddyhttp.Handler) (err error) {
	defer func() {
		d.call.end()
		d.served(err)
	}()
	err = next.ServeHTTP(d, r.WithContext(&d.call))
	d.returned = err == nil
	return err
}

// A writer is the response writer of the next handler. What it writes is sent by a
// goroutine while there is something to send, and at the end by the one that the handler
// ran in. Bytes that cannot be sent any more are thrown away, so that the handler goes on
// reading from the upstream.
type writer struct {
	response.Writer
	call   call
	served func(error)
	lost   atomic.Bool // nothing can be sent any more

	// Written by the handler's goroutine:
	through  bool  // nothing is kept in memory: streams, tunnels and answers without a body
	written  int64 // bytes of the body
	returned bool  // without an error

	// Of the one that sends. There is one at a time: ours while running is set, or the handler's.
	passed int  // bytes to the server
	cut    bool // something could not be sent

	// While the client is sent the answer, its header is not the handler's any more.
	header, sent http.Header // of the handler, and what it was then; nil before

	mu       sync.Mutex // guards what follows, up to pace
	changed  sync.Cond
	answer   answer
	flush    bool // when all that is there has been sent
	running  bool // the goroutine that sends
	panicked any  // of that

	// While something is sent, the client has until due. The lock is a leaf.
	pace  sync.Mutex
	due   time.Time
	timer *time.Timer // nil before the first piece
}

// Header implements http.ResponseWriter.
func (d *writer) Header() http.Header {
	if d.header != nil {
		return d.header
	}
	return d.ResponseWriter.Header()
}

// WriteHeader implements http.ResponseWriter.
func (d *writer) WriteHeader(status int) {
	if d.Status != 0 {
		return // the client may be reading already
	}
	if d.Final(status) {
		streams := d.Tunnels() || body.Conversation(d.ResponseWriter.Header().Get("Content-Type"))
		if d.through = streams || d.Bodiless(); streams {
			d.call.streams()
		}
	}
	d.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (d *writer) Write(p []byte) (int, error) {
	if d.Status == 0 {
		d.WriteHeader(http.StatusOK)
	}
	if d.through || d.Declared >= 0 && d.written+int64(len(p)) > d.Declared {
		d.catchUp()
		return d.writeNow(p) // which knows what is wrong, if it is too much
	}
	d.written += int64(len(p))
	d.mu.Lock()
	defer d.mu.Unlock()
	for written := 0; ; {
		if d.lost.Load() {
			return len(p), nil
		}
		written += d.answer.add(p[written:])
		switch {
		case written == len(p):
			if d.answer.held > smallPiece {
				d.start()
			}
			return written, nil
		case d.running || len(d.answer.pieces) > 0:
			d.start()
			d.changed.Wait()
		default: // other clients have all the memory
			d.mu.Unlock()
			n, err := d.writeNow(p[written:])
			d.mu.Lock()
			return written + n, err
		}
	}
}

// start starts the goroutine that sends, unless it runs. The caller holds the lock.
func (d *writer) start() {
	if d.running {
		return
	}
	if d.header == nil {
		d.header = d.ResponseWriter.Header().Clone()
		d.sent = maps.Clone(d.header)
	}
	d.running = true
	go d.run()
}

// run sends in a goroutine. A panic goes on in that of the handler.
func (d *writer) run() {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		if panicked := recover(); panicked != nil {
			d.panicked, d.running = panicked, false
			d.lost.Store(true)
			d.changed.Broadcast()
		}
	}()
	d.send()
}

// send sends what is there. The caller holds the lock.
func (d *writer) send() {
	for !d.lost.Load() {
		if len(d.answer.pieces) > 0 {
			d.sendPiece(d.answer.next())
		} else if d.flush {
			d.flush = false
			d.unlocked(func() { _ = d.flushNow() })
		} else {
			break
		}
		d.changed.Broadcast()
	}
	d.running = false
	d.changed.Broadcast()
}

// sendPiece sends a piece, and gives it back.
func (d *writer) sendPiece(piece []byte) {
	defer d.answer.free(piece)
	d.unlocked(func() { _, _ = d.writeNow(piece) })
}

// unlocked lets others hold the lock meanwhile.
func (d *writer) unlocked(do func()) {
	d.mu.Unlock()
	defer d.mu.Lock()
	do()
}

// catchUp sends all that is there, and returns when nobody else sends.
func (d *writer) catchUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.running {
		d.changed.Wait()
	}
	d.send()
}

// finish sends the rest of the answer.
func (d *writer) finish() {
	defer d.drop()
	d.catchUp()
	if d.header != nil {
		header := d.ResponseWriter.Header()
		for name, values := range d.header {
			if !slices.Equal(values, d.sent[name]) {
				header[name] = values // a trailer
			}
		}
	}
	if d.panicked != nil {
		panic(d.panicked)
	}
	if d.cut && d.returned && d.call.client.Err() == nil {
		panic(http.ErrAbortHandler) // HTTP/3 would end a part of the answer as if it were all
	}
}

// writeNow writes to the client.
func (d *writer) writeNow(p []byte) (int, error) {
	for written := 0; ; {
		if d.lost.Load() {
			return len(p), nil
		}
		piece := p[written:min(len(p), written+slowPiece)]
		if d.passed += len(piece); d.through || d.passed > unsent {
			d.hurry()
		}
		n, err := d.ResponseWriter.Write(piece)
		d.inTime()
		written += n
		switch {
		case response.Excess(err) || errors.Is(err, http.ErrHijacked):
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
	d.cut = true
	d.drop()
	d.call.leave()
}

// drop throws away what is left of the answer. After it, also if a writer has panicked,
// nobody looks at the connection any more.
func (d *writer) drop() {
	d.inTime()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost.Store(true)
	for len(d.answer.pieces) > 0 {
		d.answer.free(d.answer.next())
	}
}

// hurry gives the client time for the next piece, until inTime. No deadline is set meanwhile:
// one of the server, or of a handler around, stays in force.
func (d *writer) hurry() {
	d.pace.Lock()
	defer d.pace.Unlock()
	d.due = time.Now().Add(slowest)
	if d.timer != nil {
		d.timer.Reset(slowest)
		return
	}
	// Writers between here and the server may not be called by two goroutines at once.
	to := response.Innermost(d.ResponseWriter)
	d.timer = time.AfterFunc(slowest, func() {
		d.pace.Lock()
		defer d.pace.Unlock()
		if now := time.Now(); !d.due.IsZero() && !now.Before(d.due) {
			_ = http.NewResponseController(to).SetWriteDeadline(now)
		}
	})
}

// inTime notes that the client has taken a piece, or need not take any more.
func (d *writer) inTime() {
	d.pace.Lock()
	defer d.pace.Unlock()
	if d.due = (time.Time{}); d.timer != nil {
		d.timer.Stop()
	}
}

// SetWriteDeadline keeps a handler's own deadline, such as that of Caddy's timeouts, for
// what the handler writes to the client itself. An answer that waits in memory is sent
// later.
func (d *writer) SetWriteDeadline(at time.Time) error {
	if !d.through {
		return nil
	}
	return http.NewResponseController(d.ResponseWriter).SetWriteDeadline(at)
}

// ReadFrom implements io.ReaderFrom.
func (d *writer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{d}, r)
}

// FlushError lets http.ResponseController flush.
func (d *writer) FlushError() error {
	if d.Status == 0 {
		d.WriteHeader(http.StatusOK)
	}
	if d.through {
		d.catchUp()
		return d.flushNow()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.lost.Load() {
		d.flush = true
		d.start()
	}
	return nil
}

func (d *writer) flushNow() error {
	if d.lost.Load() {
		return nil
	}
	d.hurry()
	failed, err := d.FlushNow()
	d.inTime()
	if failed {
		d.lose()
		return nil
	}
	return err
}

// Hijack implements http.Hijacker, for handlers that take the connection over.
func (d *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	d.catchUp()
	conn, buffered, err := d.Writer.Hijack()
	if err == nil {
		d.through = true
		d.call.streams()
	}
	return conn, buffered, err
}

// A call is the context of a detached call: that of the client, but for its end. It is
// canceled when the client has left and nobody can want the answer: because it is a
// stream, or the client's patience is over, or the process ends. The client is watched from
// when somebody first asks for that.
type call struct {
	client  context.Context
	writer  *writer // of the answer
	exiting <-chan struct{}

	watched atomic.Bool     // once own is set
	own     context.Context // without the client's end; nil before somebody asks
	cancel  context.CancelFunc
	unwatch func() bool

	mu                        sync.Mutex
	left, stream, over, alone bool // the client; there is no end to wait for; the handler; the call lasts without a client
}

// Client returns the context of the client of a request, which ends when that leaves, also
// if the request is a part of a detached call.
func Client(ctx context.Context) context.Context {
	if d, ok := ctx.Value(writerKey{}).(*writer); ok {
		return d.call.client
	}
	return ctx
}

// writerKey is the key of the writer of the call that a context belongs to.
type writerKey struct{}

// Value implements context.Context.
func (c *call) Value(key any) any {
	switch {
	case key == (writerKey{}):
		return c.writer
	case c.watched.Load():
		return c.own.Value(key)
	}
	return c.client.Value(key)
}

// Deadline implements context.Context.
func (c *call) Deadline() (at time.Time, set bool) { return at, false }

// Done implements context.Context.
func (c *call) Done() <-chan struct{} { return c.watch().Done() }

// Err implements context.Context.
func (c *call) Err() error { return c.watch().Err() }

// watch returns the call's own context, and has the client watched.
func (c *call) watch() context.Context {
	if !c.watched.Load() {
		c.note(func() {
			if c.own == nil {
				c.own, c.cancel = context.WithCancel(context.WithoutCancel(c.client))
				c.unwatch = context.AfterFunc(c.client, c.leave)
				c.watched.Store(true)
			}
		})
	}
	return c.own
}

// note notes what has happened, and ends the call if nobody can want the answer any more.
func (c *call) note(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what()
	switch {
	case c.own == nil:
	case c.over || c.left && c.stream:
		c.unwatch()
		c.cancel()
	case c.left && !c.alone:
		c.alone = true
		go c.linger()
	}
}

// leave notes that the client has left, or can be sent nothing any more. Over HTTP/3, it
// may still be there then.
func (c *call) leave() { c.note(func() { c.left = true }) }

// streams notes that the answer has no end.
func (c *call) streams() { c.note(func() { c.stream = true }) }

// end ends the call.
func (c *call) end() { c.note(func() { c.over = true }) }

// linger ends the call without a client when its time is over, or the process ends.
func (c *call) linger() {
	select {
	case <-time.After(Patience):
	case <-c.exiting:
	case <-c.own.Done():
	}
	c.cancel()
}

const (
	// mostAnswer and mostAnswers bound how much of one answer, and of all together, waits
	// for clients that read slowly.
	mostAnswer  = 1 << 20
	mostAnswers = 64 << 20

	// An answer begins with a small piece, and mostly needs no other. Until that is full
	// or the handler flushes, nothing is sent, as by net/http.
	smallPiece = 4 << 10
	largePiece = 32 << 10
)

var (
	// Answers are those that wait for clients that read slowly.
	Answers = body.NewMemory(mostAnswers)

	smallPieces = sync.Pool{New: func() any { return new([smallPiece]byte) }}
)

// An answer is what the next handler has written and the client has not got yet.
type answer struct {
	pieces [][]byte  // of the capacity of a small or a large piece
	room   [1][]byte // for most answers enough
	held   int       // bytes of the memory
}

// add appends as much of p as there is memory for, and returns how much that is.
func (a *answer) add(p []byte) (n int) {
	for n < len(p) {
		last := len(a.pieces) - 1
		if last < 0 || len(a.pieces[last]) == cap(a.pieces[last]) {
			size := largePiece
			if last < 0 && len(p) <= smallPiece {
				size = smallPiece
			}
			if a.held+size > mostAnswer || !Answers.Reserve(int64(size)) {
				return n
			}
			a.held += size
			if size == smallPiece {
				a.pieces = append(a.pieces, smallPieces.Get().(*[smallPiece]byte)[:0])
			} else {
				a.pieces = append(a.pieces, make([]byte, 0, size))
			}
			last++
		}
		piece := a.pieces[last]
		more := copy(piece[len(piece):cap(piece)], p[n:])
		a.pieces[last] = piece[:len(piece)+more]
		n += more
	}
	return n
}

// next takes the first piece out, which the caller gives back by free.
func (a *answer) next() (piece []byte) {
	piece = a.pieces[0]
	a.pieces = slices.Delete(a.pieces, 0, 1)
	return piece
}

// free gives a piece back.
func (a *answer) free(piece []byte) {
	a.held -= cap(piece)
	Answers.Return(int64(cap(piece)))
	if cap(piece) == smallPiece {
		smallPieces.Put((*[smallPiece]byte)(piece[:smallPiece]))
	}
}

// Interface guards
var (
	_ response.Watching = (*writer)(nil)
)
