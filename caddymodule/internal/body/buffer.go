package body

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"
)

const (
	// bufferPatience is how long a client may take to send as much of its body as
	// is buffered. A client that waits here costs a connection and what it has sent,
	// so it gets far longer than where costs are looked for.
	bufferPatience = 5 * time.Minute

	// smallestPiece and largestPiece are how much memory a buffer asks for at first
	// and at most: clients that send little use little.
	smallestPiece = 4 << 10
	largestPiece  = 64 << 10
)

// A Buffer is a request's body of which the beginning was buffered. It takes the place
// of the body, and hands on every byte of it. Its Read and Close may be called as those
// of the body it stands for. A nil *Buffer has buffered nothing.
type Buffer struct {
	source io.ReadCloser
	memory holding
	done   chan struct{} // closed when nobody reads ahead any more
	enough atomic.Bool   // tells the reader to stop after the read it is in
	came   atomic.Int64  // bytes
	slow   bool          // the client did not keep the pace

	// Once done is closed:
	pieces [][]byte // read and not handed on yet
	handed int      // bytes of the first piece that were
	err    error    // what reading ended with
}

// Ended says how buffering ended.
type Ended uint8

const (
	// Ready means that the request can go on: the body is there, or as much of it
	// as is buffered, or the client takes long and keeps the pace, or the memory is full.
	Ready Ended = iota
	// Left means that the rest of the body will never come: the client has left, has
	// broken off, or has exceeded a timeout of the server.
	Left
	// TooSlow means that the client did not keep the pace when its time was over.
	TooSlow
	// Exiting means that the process is about to end.
	Exiting
)

// Fill buffers the beginning of a request's body, up to most bytes, while the memory and
// its client's share last. What is longer is read by the next handler from where
// buffering stopped. The client has five minutes; after that the next handler waits for
// it, if it has kept the pace of [Pace] in the last 15 seconds. Fill gives up when ctx,
// which is that of the client, ends, or when exiting, which may be nil, is closed.
//
// The buffer replaces r.Body; it is nil if there is nothing left to buffer. The caller
// must call its End when the request has been answered. The body of a CONNECT request
// is a tunnel and left alone. All other bodies are buffered, whatever the request says
// they are for: conversations such as gRPC should not come here.
func (m *Memory) Fill(ctx context.Context, r *http.Request, client netip.Prefix, most int64, exiting <-chan struct{}) (*Buffer, Ended) {
	if r.Method == http.MethodConnect || Received(r) {
		return nil, Ready
	}
	b := &Buffer{source: r.Body, memory: holding{memory: m, client: client}, done: make(chan struct{})}
	r.Body = b
	if r.ContentLength > 0 && r.ContentLength <= most {
		most = r.ContentLength + 1 // one more, to see the end
	}
	go b.fill(most)
	ended := b.wait(ctx, exiting)
	b.slow = ended == TooSlow
	return b, ended
}

// Slow reports whether the client did not keep the pace. A nil Buffer had none.
func (b *Buffer) Slow() bool { return b != nil && b.slow }

// wait waits until as much is buffered as may be.
func (b *Buffer) wait(ctx context.Context, exiting <-chan struct{}) Ended {
	patience := time.NewTimer(bufferPatience - slowest)
	defer patience.Stop()
	defer b.enough.Store(true)
	for before := int64(-1); ; {
		select {
		case <-b.done:
			return b.result(ctx)
		case <-patience.C:
			switch {
			case before < 0:
				before = b.came.Load()
				patience.Reset(slowest)
			case b.came.Load()-before < slowPiece:
				return TooSlow
			default:
				return Ready
			}
		case <-ctx.Done():
			return Left
		case <-exiting:
			return Exiting
		}
	}
}

// result says how buffering ended by itself.
func (b *Buffer) result(ctx context.Context) Ended {
	var tooLarge *http.MaxBytesError // which a handler before us has set, and the next one answers
	switch {
	case errors.Is(b.err, ErrSlow): // in a slot of a handler before us
		return TooSlow
	case b.err != nil && !errors.Is(b.err, io.EOF) && !errors.As(b.err, &tooLarge), ctx.Err() != nil:
		return Left
	}
	return Ready
}

// fill reads until most bytes are there, the body ends, the memory is full, or it is
// told that it is enough.
func (b *Buffer) fill(most int64) {
	defer close(b.done)
	size := int64(smallestPiece)
	for most > 0 && b.err == nil && !b.enough.Load() {
		size = min(size, most)
		if !b.memory.take(size) {
			return
		}
		piece := make([]byte, 0, size)
		for len(piece) < cap(piece) && b.err == nil && !b.enough.Load() {
			var n int
			n, b.err = b.source.Read(piece[len(piece):cap(piece)])
			piece = piece[:len(piece)+n]
			b.came.Add(int64(n))
		}
		b.pieces = append(b.pieces, piece)
		most -= int64(len(piece))
		size = min(2*size, largestPiece)
	}
}

// Read implements io.Reader: first what was buffered, then the rest.
func (b *Buffer) Read(p []byte) (int, error) {
	<-b.done
	for len(b.pieces) > 0 {
		piece := b.pieces[0]
		n := copy(p, piece[b.handed:])
		if b.handed += n; b.handed < len(piece) {
			return n, nil
		}
		b.pieces[0], b.handed = nil, 0
		b.pieces = b.pieces[1:]
		b.memory.give(int64(cap(piece)))
		if n > 0 {
			return n, nil
		}
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.source.Read(p)
}

// Close implements io.Closer.
func (b *Buffer) Close() error { return b.source.Close() }

// End stops buffering, even if the client sends nothing, and gives the memory back.
// Call it when the request has been answered, and before its handler returns: the
// server takes the body back then. It does not wait for the client. What is buffered
// can still be read, such as by error routes. It does nothing if b is nil.
func (b *Buffer) End(w http.ResponseWriter) {
	if b == nil {
		return
	}
	b.enough.Store(true)
	stop(w, b.done)
	b.memory.end()
}
