package body

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"time"
)

// bufferPatience is how long a client may take to send as much of its body as is buffered.
// A client that waits here costs a connection and what it has sent, so it gets far longer
// than where costs are looked for.
const bufferPatience = 5 * time.Minute

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
// The Ahead replaces r.Body; it is nil if there is nothing left to buffer. The caller
// must call its End when the request has been answered. The body of a CONNECT request
// is a tunnel and left alone. All other bodies are buffered, whatever the request says
// they are for: conversations such as gRPC should not come here.
func (m *Memory) Fill(ctx context.Context, r *http.Request, client netip.Prefix, most int64, exiting <-chan struct{}) (*Ahead, Ended) {
	if r.Method == http.MethodConnect || Received(r) {
		return nil, Ready
	}
	a := m.readAhead(r, client)
	if r.ContentLength > 0 && r.ContentLength <= most {
		most = r.ContentLength + 1 // one more, to see the end
	}
	go a.read(most, make([]byte, 0, min(most, smallestPiece)))
	ended := a.buffered(ctx, exiting)
	a.slow = ended == TooSlow
	return a, ended
}

// Slow reports whether the client did not keep the pace. A nil Ahead had none.
func (a *Ahead) Slow() bool { return a != nil && a.slow }

// buffered waits until as much is buffered as may be.
func (a *Ahead) buffered(ctx context.Context, exiting <-chan struct{}) Ended {
	patience := time.NewTimer(bufferPatience - slowest)
	defer patience.Stop()
	defer a.enough.Store(true)
	for before := int64(-1); ; {
		select {
		case <-a.done:
			return a.result(ctx)
		case <-patience.C:
			switch {
			case before < 0:
				before = a.came.Load()
				patience.Reset(slowest)
			case a.came.Load()-before < slowPiece:
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
func (a *Ahead) result(ctx context.Context) Ended {
	var tooLarge *http.MaxBytesError // which a handler before us has set, and the next one answers
	switch {
	case errors.Is(a.err, ErrSlow): // in a slot of a handler before us
		return TooSlow
	case a.err != nil && !errors.Is(a.err, io.EOF) && !errors.As(a.err, &tooLarge), ctx.Err() != nil:
		return Left
	}
	return Ready
}
