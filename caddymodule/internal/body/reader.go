package body

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// patience is how long a client may take to send as much of its body as is
	// looked at.
	patience = 5 * time.Second

	// pause is how long a body of unknown length may stand still meanwhile: it
	// may be one half of a conversation, whose client waits for an answer.
	pause = time.Second

	// firstRead is how much memory a body gets before it has sent anything, in bytes.
	firstRead = 512
)

// A Reader is a request's body of which the beginning was read ahead. It takes
// the place of the body, and hands on every byte of it. Its Read and Close may
// be called as those of the body it stands for. A nil *Reader has read nothing.
type Reader struct {
	source io.ReadCloser
	memory holding
	came   chan struct{} // a byte has come
	done   chan struct{} // closed when nobody reads ahead any more
	enough atomic.Bool   // tells the reader to stop after the read it is in
	first  [firstRead]byte

	// Once done is closed:
	ahead   []byte // read and not handed on yet
	err     error  // what reading ended with
	starved bool   // the memory, or the client's share of it, was full
}

// Look reads the body of a request of a client, if it is no longer than most bytes. The
// reader replaces r.Body; it is nil if nothing of the body was read. The caller
// must call its End when the request has been answered. The *Body is nil if the
// body is longer than that, too slow or broken, or if the memory is full; the
// request can go on all the same, and the rest of the body is handed on as it comes.
//
// A body of known length has five seconds to come. One of unknown length may
// also never stand still for more than a second: gRPC and other conversations
// would wait for the answer while we wait for them. Types that are known to be
// conversations are not waited for at all; nor are WebSocket requests that
// announce a body of unknown length.
//
// A CONNECT request has no body (RFC 9110, section 9.3.6): r.Body is a tunnel,
// such as a WebSocket over HTTP/2, and is left alone. One that announces a
// length is not understood. An upgrade without a body is a request without a
// body. The *Body must not be changed.
func (m *Memory) Look(r *http.Request, client netip.Prefix, most int64) (*Reader, *Body) {
	switch tunnel := r.Method == http.MethodConnect; {
	case none(r) || tunnel && r.ContentLength < 0:
		return nil, &empty
	case tunnel || r.ContentLength > most || r.ContentLength < 0 && converses(r):
		return nil, nil
	}
	reader := &Reader{
		source: r.Body, memory: holding{memory: m, client: client},
		came: make(chan struct{}, 1), done: make(chan struct{}),
	}
	r.Body = reader
	size := most + 1
	if r.ContentLength > 0 {
		size = r.ContentLength + 1 // one more, to see the end
	}
	go reader.readAhead(size)
	if !reader.wait(r.ContentLength < 0) {
		reader.enough.Store(true)
		return reader, nil
	}
	if !errors.Is(reader.err, io.EOF) || int64(len(reader.ahead)) > most { // its end may come with the byte that is too much
		return reader, nil
	}
	return reader, &Body{
		ContentType:     strings.Join(r.Header["Content-Type"], ", "),
		ContentEncoding: strings.Join(r.Header["Content-Encoding"], ", "),
		Data:            reader.ahead,
	}
}

// Starved reports whether the body was not read to its end because the memory was full.
// A nil Reader was not.
func (u *Reader) Starved() bool { return u != nil && closed(u.done) && u.starved }

// empty is what all requests without a body share.
var empty Body

// converses reports whether a body of unknown length is likely to wait for what
// is answered to it.
func converses(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || Conversation(r.Header.Get("Content-Type"))
}

// Conversation reports whether bodies of a type are parts of conversations, or streams
// without an end, rather than documents.
func Conversation(contentType string) bool {
	for _, prefix := range []string{
		"application/grpc", "application/connect+", "text/event-stream", "multipart/x-mixed-replace",
	} {
		if len(contentType) >= len(prefix) && strings.EqualFold(contentType[:len(prefix)], prefix) {
			return true
		}
	}
	return false
}

// wait reports whether reading ahead has ended in time.
func (u *Reader) wait(unknownLength bool) bool {
	whole := time.NewTimer(patience)
	defer whole.Stop()
	var stands <-chan time.Time
	var standing *time.Timer
	if unknownLength {
		standing = time.NewTimer(pause)
		defer standing.Stop()
		stands = standing.C
	}
	for {
		select {
		case <-u.done:
			return true
		case <-u.came:
			if standing != nil {
				standing.Reset(pause)
			}
		case <-stands:
			return false
		case <-whole.C:
			return false
		}
	}
}

// readAhead reads until size bytes are there, the body ends, the memory is full, or it is
// told that it is enough. What is there grows with what comes.
func (u *Reader) readAhead(size int64) {
	defer close(u.done)
	buffer := u.first[:0:min(size, firstRead)]
	u.starved = !u.memory.take(int64(cap(buffer)))
	for int64(len(buffer)) < size && u.err == nil && !u.starved && !u.enough.Load() {
		if len(buffer) == cap(buffer) {
			grown := min(max(2*int64(cap(buffer)), smallestPiece), size)
			if u.starved = !u.memory.take(grown - int64(cap(buffer))); u.starved {
				break
			}
			buffer = append(make([]byte, 0, grown), buffer...)
		}
		var n int
		n, u.err = u.source.Read(buffer[len(buffer):cap(buffer)])
		buffer = buffer[:len(buffer)+n]
		if n > 0 {
			select {
			case u.came <- struct{}{}:
			default:
			}
		}
	}
	u.ahead = buffer
}

// Read implements io.Reader: first what was read ahead, then the rest.
func (u *Reader) Read(p []byte) (int, error) {
	<-u.done
	if len(u.ahead) > 0 {
		n := copy(p, u.ahead)
		if u.ahead = u.ahead[n:]; len(u.ahead) == 0 {
			u.ahead = nil
			u.memory.end()
		}
		return n, nil
	}
	if u.err != nil {
		return 0, u.err
	}
	return u.source.Read(p)
}

// Close implements io.Closer.
func (u *Reader) Close() error { return u.source.Close() }

// End stops reading ahead, even if the client sends nothing, and gives the memory
// back. Call it when the request has been answered, and before its handler returns: the server takes
// the body back then. It does not wait for the client. It does nothing if u is
// nil.
func (u *Reader) End(w http.ResponseWriter) {
	if u == nil {
		return
	}
	u.enough.Store(true)
	stop(w, u.done)
	u.memory.end()
}

// stop ends the read that is under way, if done is not closed yet, and waits for that.
// A read that cannot be interrupted ends with the connection.
func stop(w http.ResponseWriter, done <-chan struct{}) {
	if closed(done) {
		return
	}
	if err := http.NewResponseController(w).SetReadDeadline(time.Now()); err == nil {
		<-done
	}
}

// Received reports whether the client has sent all of a request's body, as far
// as is known. An HTTP/1 connection on which it has not cannot be used for
// another request: a refusal should close it. It may be asked before Look, after
// it, or without it, and concurrently with reading.
func Received(r *http.Request) bool {
	return none(r) || received(r.Body)
}

func received(body io.ReadCloser) bool {
	switch b := body.(type) {
	case *sentBody:
		return b.over.Load() || received(b.ReadCloser)
	case *Paced:
		return received(b.source)
	case *Reader:
		return closed(b.done) && errors.Is(b.err, io.EOF)
	case *Buffer:
		return closed(b.done) && errors.Is(b.err, io.EOF)
	}
	return false
}

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
