package caddymodule

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
)

const (
	defaultMaxBody = 64 << 10
	largestMaxBody = 16 << 20

	// patience is how long a client may take to send as much of its body as is
	// looked at. Who is slower is charged as if the body could not be read, and
	// goes on sending to the upstream.
	patience = 5 * time.Second
)

// An upload is a request's body while the beginning of it is looked at. It
// takes the place of the body and hands on every byte of it.
type upload struct {
	source io.ReadCloser
	done   chan struct{} // closed when nobody reads ahead any more
	enough atomic.Bool   // tells the reader to stop after the read it is in

	// Once done is closed:
	ahead []byte // read and not handed on yet
	err   error  // what reading ended with
}

// look reads the body of a request up to most bytes. It returns nil if there is
// more, if it took too long or if it broke off: then the body cannot be
// understood, and the request goes on with it all the same.
func look(r *http.Request, most int64) (*upload, *body.Body) {
	seen := &body.Body{ContentType: r.Header.Get("Content-Type"), ContentEncoding: r.Header.Get("Content-Encoding")}
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil, seen
	}
	if r.ContentLength > most {
		return nil, nil
	}
	u := &upload{source: r.Body, done: make(chan struct{})}
	r.Body = u
	size := most + 1
	if r.ContentLength > 0 {
		size = r.ContentLength + 1 // one more, to see the end
	}
	go u.readAhead(size)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-u.done:
	case <-timer.C:
		u.enough.Store(true)
		return u, nil
	}
	if !errors.Is(u.err, io.EOF) {
		return u, nil
	}
	seen.Data = u.ahead
	return u, seen
}

// readAhead reads until size bytes are there, the body ends, or it is told that
// it is enough.
func (u *upload) readAhead(size int64) {
	defer close(u.done)
	buffer := make([]byte, 0, min(size, defaultMaxBody+1))
	for int64(len(buffer)) < size && u.err == nil && !u.enough.Load() {
		if len(buffer) == cap(buffer) {
			buffer = append(buffer, 0)[:len(buffer)]
		}
		var n int
		n, u.err = u.source.Read(buffer[len(buffer):min(int64(cap(buffer)), size)])
		buffer = buffer[:len(buffer)+n]
	}
	u.ahead = buffer
}

// Read implements io.Reader: first what was read ahead, then the rest.
func (u *upload) Read(p []byte) (int, error) {
	<-u.done
	if len(u.ahead) > 0 {
		n := copy(p, u.ahead)
		u.ahead = u.ahead[n:]
		return n, nil
	}
	if u.err != nil {
		return 0, u.err
	}
	return u.source.Read(p)
}

// drained reports whether the client has sent all of the body.
func (u *upload) drained() bool {
	select {
	case <-u.done:
		return errors.Is(u.err, io.EOF)
	default:
		return false
	}
}

// Close implements io.Closer.
func (u *upload) Close() error { return u.source.Close() }

// end sees to it that nobody reads any more when the request has been answered,
// even if the client sends nothing.
func (u *upload) end(w http.ResponseWriter) {
	if u == nil {
		return
	}
	u.enough.Store(true)
	select {
	case <-u.done:
		return
	default:
	}
	// What cannot be interrupted ends with the connection.
	if err := http.NewResponseController(w).SetReadDeadline(time.Now()); err == nil {
		<-u.done
	}
}
