// Package body keeps what clients send and upstreams answer until somebody takes it. Begin with
// [Store.Receive].
//
// A [Store] keeps whole bodies of requests until an upstream takes them, and responses until
// their clients do: in memory, and what is too long for that in a file. Nobody waits for room.
package body

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// What receiving a body ends with, beside [ErrNoRoom].
var (
	// ErrTooLarge means that the body is longer than is received: 413.
	ErrTooLarge = errors.New("the body is too large")
	// ErrTimeout means that the client was cut off by a timeout of the server: 408.
	ErrTimeout = errors.New("the client sends its body too slowly")
	// ErrLeft means that the client has left, or has sent what is no body. Nothing more of
	// it can be read.
	ErrLeft = errors.New("the client has broken off")
)

// A Received is the body of a request, all of which is there. It takes the place of the body.
// What is read is no longer held. It may be closed while it is being read.
type Received struct {
	mu     sync.Mutex
	spool  Spool
	inFile bool // part of it was put into the file
	closed bool
	read   bool      // some of it
	first  [512]byte // so much of a body counts no more than the rest of its request
}

// Receive reads the whole body of a request, and puts a [Received] in its place, whose length is
// the request's then. The caller closes it when the request has been answered: if a handler
// returns an error, an error route may still read it. The client bounds what is held. A body
// longer than most bytes is not received, nor read if it says so; 0 stands for
// [Bounds.Request].
//
// The Received is nil if there is nothing to receive: the request has no body, or one that was
// received before, or is a CONNECT, whose body is a tunnel.
//
// A request can go on after [ErrTooLarge] and [ErrNoRoom]: its body begins with what has been
// read, and goes on with the rest as the client sends it. If anything has been read, the
// Received holds that, and the caller closes it, too. After other errors the body is what has
// not been read of it, and the Received is closed and only knows whether it was in the file.
//
// Receive ends with the cause of ctx if that ends; it looks at that when some of the body has
// come. Timeouts of the server end a Receive that waits.
func (s *Store) Receive(ctx context.Context, r *http.Request, client netip.Prefix, most int64) (*Received, error) {
	if None(r) || r.Method == http.MethodConnect {
		return nil, nil
	}
	if most = cmp.Or(most, s.request.Load()); r.ContentLength > most {
		return nil, ErrTooLarge
	}
	if Of(r) != nil {
		return nil, nil
	}
	b := &Received{spool: s.NewSpool(client, 0)}
	kept := false
	defer func() {
		if !kept {
			_ = b.Close()
		}
	}()
	size, err := b.receive(ctx, r, most)
	switch {
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrNoRoom):
		kept = true
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(b, r.Body), r.Body}
		return b, err
	case err != nil:
		return b, err
	}
	r.TransferEncoding = nil
	r.Header["Content-Length"] = []string{strconv.FormatInt(size, 10)} // as Caddy's request_buffers does
	if size == 0 {
		r.Body, r.ContentLength = http.NoBody, 0
		return nil, nil
	}
	kept = true
	r.Body, r.ContentLength = b, size
	return b, nil
}

// receive reads the body to its end, and returns its length. What came last stays in memory.
func (b *Received) receive(ctx context.Context, r *http.Request, most int64) (size int64, err error) {
	last := b.first[:0]
	defer func() { b.spool.add(last) }()
	for {
		if len(last) == cap(last) {
			if last, err = b.makeRoom(last); err != nil {
				return size, err
			}
		}
		n, err := r.Body.Read(last[len(last):cap(last)])
		last = last[:len(last)+n]
		if size += int64(n); size > most {
			return size, ErrTooLarge
		}
		switch {
		case errors.Is(err, io.EOF):
			return size, nil
		case err != nil:
			return size, classify(err)
		case r.Context().Err() != nil:
			return size, fmt.Errorf("%w: %w", ErrLeft, context.Cause(r.Context()))
		case ctx.Err() != nil:
			return size, context.Cause(ctx)
		}
	}
}

// CutOff ends a read of a request's body that waits for its client when ctx ends. The caller calls the
// function that it returns after the last read. From then on nothing touches the response writer, which
// servers use again for other requests.
func CutOff(ctx context.Context, w http.ResponseWriter) (end func()) {
	began, ended := time.Now(), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = http.NewResponseController(w).SetReadDeadline(began)
	})
	return func() {
		if !stop() {
			<-ended
		}
	}
}

// Of returns the body of a request if that has been received, and otherwise nil.
func Of(r *http.Request) *Received {
	b, _ := r.Body.(*Received)
	return b
}

// classify says what an error of a client's body means.
func classify(err error) error {
	if _, is := errors.AsType[*http.MaxBytesError](err); is {
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	if timeout, is := errors.AsType[net.Error](err); is && timeout.Timeout() {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", ErrLeft, err)
}

// makeRoom makes room for more of the body: it takes more memory, or puts what is there into the
// file. The memory grows with what has come, so that clients that send little hold little.
func (b *Received) makeRoom(last []byte) ([]byte, error) {
	if cap(last) < blockSize {
		if more := b.spool.store.piece(b.spool.client, 4*cap(last)); more != nil {
			b.spool.store.freePiece(b.spool.client, last)
			return append(more, last...), nil
		}
	}
	n, err := b.spool.Write(last)
	b.inFile = b.inFile || n > 0
	return last[:copy(last, last[n:])], err
}

// Read implements io.Reader.
func (b *Received) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err = b.spool.Read(p)
	b.read = b.read || n > 0
	return n, err
}

// Close implements io.Closer. It gives back what is held. A nil Received holds nothing.
func (b *Received) Close() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.spool.Close()
	return nil
}

// InFile reports whether part of the body has ever been put into the file. A nil Received has none.
func (b *Received) InFile() bool { return b != nil && b.inFile }

// Reader returns a reader of what [Received.Read] has not returned yet. That stays: it can be
// read again, by Read and by other readers. The reader is of no use once Read is called.
func (b *Received) Reader() io.Reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &reader{body: b, from: b.spool.read}
}

// A reader reads what is held of a body.
type reader struct {
	body    *Received
	segment int // of the spool
	from    int // in that
}

func (r *reader) Read(p []byte) (n int, err error) {
	b := r.body
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case r.segment == len(b.spool.segments):
		return 0, io.EOF
	}
	n, err = b.spool.peek(p, r.segment, r.from)
	if r.from += n; r.from == b.spool.segments[r.segment].len() {
		r.segment, r.from = r.segment+1, 0
	}
	return n, err
}

// Rest leaves a request without a body if an upstream has read any of it. An error route that asks
// another upstream would announce a length that it cannot send. A nil Received changes nothing.
func (b *Received) Rest(r *http.Request) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.read {
		r.Body, r.ContentLength = http.NoBody, 0
		r.Header["Content-Length"] = []string{"0"} // which FastCGI is told
	}
}

// None reports whether a request has no body.
func None(r *http.Request) bool {
	return r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0
}

// Whole reports whether a request has no body, or one that was received.
func Whole(r *http.Request) bool { return None(r) || Of(r) != nil }
