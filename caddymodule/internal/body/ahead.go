package body

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
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

	// firstRead is how much memory a body gets that is looked at, before it has sent
	// anything, and smallestPiece how much it gets then, or at once if it is buffered.
	// The largest piece is largestPiece: clients that send little use little. In bytes.
	firstRead     = 512
	smallestPiece = 4 << 10
	largestPiece  = 64 << 10
)

// An Ahead is a request's body of which the beginning was read ahead. It takes the place
// of the body, and hands on every byte of it. Its Read and Close may be called as those of
// the body it stands for. A nil *Ahead has read nothing.
type Ahead struct {
	io.ReadCloser // the body

	memory holding
	done   chan struct{} // closed when nobody reads ahead any more
	enough atomic.Bool   // tells the reader to stop after the read it is in
	came   atomic.Int64  // bytes
	stands *time.Timer   // ends when no byte has come for a pause; may be nil
	first  [firstRead]byte

	// Once done is closed:
	pieces  [][]byte // read and not handed on yet
	handed  int      // bytes of the first piece that were
	err     error    // what reading ended with
	starved bool     // the memory, or the client's share of it, was full
}

// readAhead puts an Ahead in the place of a request's body.
func (m *Memory) readAhead(r *http.Request, client netip.Prefix) *Ahead {
	a := &Ahead{ReadCloser: r.Body, memory: holding{memory: m, client: client}, done: make(chan struct{})}
	r.Body = a
	return a
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
func (m *Memory) Look(r *http.Request, client netip.Prefix, most int64) (*Ahead, *Body) {
	switch tunnel := r.Method == http.MethodConnect; {
	case None(r) || tunnel && r.ContentLength < 0:
		return nil, &empty
	case tunnel || r.ContentLength > most || r.ContentLength < 0 && converses(r):
		return nil, nil
	}
	a, size := m.readAhead(r, client), most+1
	if r.ContentLength > 0 {
		size = r.ContentLength + 1 // one more, to see the end
	} else {
		a.stands = time.NewTimer(pause)
		defer a.stands.Stop()
	}
	go a.read(size, a.first[:0:min(size, firstRead)])
	defer a.enough.Store(true)
	if !a.wait() || !errors.Is(a.err, io.EOF) || a.came.Load() > most { // its end may come with the byte that is too much
		return a, nil
	}
	b := &Body{
		ContentType:     strings.Join(r.Header["Content-Type"], ", "),
		ContentEncoding: strings.Join(r.Header["Content-Encoding"], ", "),
	}
	if len(a.pieces) > 1 {
		whole := make([]byte, 0, a.memory.held)
		for _, piece := range a.pieces {
			whole = append(whole, piece...)
		}
		a.pieces = [][]byte{whole}
	}
	b.Data = a.pieces[0]
	return a, b
}

// Starved reports whether the body was not read to its end because the memory was full.
// A nil Ahead was not.
func (a *Ahead) Starved() bool { return a != nil && closed(a.done) && a.starved }

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

// wait waits until reading ahead has ended, but not for long. It reports whether it has.
func (a *Ahead) wait() bool {
	var stands <-chan time.Time
	if a.stands != nil {
		stands = a.stands.C
	}
	select {
	case <-a.done:
		return true
	case <-stands:
	case <-time.After(patience):
	}
	return false
}

// read reads into a piece, and then into more of them, until size bytes are there, the body
// ends, the memory is full, or it is told that it is enough. The pieces grow with what
// comes.
func (a *Ahead) read(size int64, piece []byte) {
	defer close(a.done)
	for more := int64(cap(piece)); a.memory.take(more); {
		if piece == nil {
			piece = make([]byte, 0, more)
		}
		a.pieces = append(a.pieces, a.fill(piece))
		if a.came.Load() >= size || a.err != nil || a.enough.Load() {
			return
		}
		more, piece = min(max(2*more, smallestPiece), largestPiece, size-a.came.Load()), nil
	}
	a.starved = true
}

// fill reads until a piece is full.
func (a *Ahead) fill(piece []byte) []byte {
	for len(piece) < cap(piece) && a.err == nil && !a.enough.Load() {
		var n int
		n, a.err = a.ReadCloser.Read(piece[len(piece):cap(piece)])
		piece = piece[:len(piece)+n]
		if a.came.Add(int64(n)); n > 0 && a.stands != nil {
			a.stands.Reset(pause)
		}
	}
	return piece
}

// Read implements io.Reader: first what was read ahead, then the rest.
func (a *Ahead) Read(p []byte) (int, error) {
	<-a.done
	for len(a.pieces) > 0 {
		piece := a.pieces[0]
		n := copy(p, piece[a.handed:])
		if a.handed += n; a.handed < len(piece) {
			return n, nil
		}
		a.pieces[0], a.handed = nil, 0
		a.pieces = a.pieces[1:]
		a.memory.give(int64(cap(piece)))
		if n > 0 {
			return n, nil
		}
	}
	if a.err != nil {
		return 0, a.err
	}
	return a.ReadCloser.Read(p)
}

// End stops reading ahead, even if the client sends nothing, and gives the memory back.
// Call it when the request has been answered, and before its handler returns: the server
// takes the body back then. It does not wait for the client; a read that cannot be
// interrupted ends with the connection. What was read ahead can still be read, such as by
// error routes. It does nothing if a is nil.
func (a *Ahead) End(w http.ResponseWriter) {
	if a == nil {
		return
	}
	a.enough.Store(true)
	if !closed(a.done) && http.NewResponseController(w).SetReadDeadline(time.Now()) == nil {
		<-a.done
	}
	a.memory.end()
}

// AllReceived reports whether the client has sent all of a request's body, as far
// as is known. It may be asked before Look, after it, or without it, and
// concurrently with reading.
func AllReceived(r *http.Request) bool {
	if None(r) {
		return true
	}
	body := r.Body
	if b, ok := body.(*Ahead); ok {
		if closed(b.done) && errors.Is(b.err, io.EOF) {
			return true
		}
		body = b.ReadCloser
	}
	_, ok := body.(*Received)
	return ok
}

// None reports whether a request has no body.
func None(r *http.Request) bool {
	return r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0
}

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// clientShare is which part of a Memory one client may hold: a tenth.
const clientShare = 10

// A Memory bounds how much is held at once, by bodies that are read ahead and others. Of
// the bodies, those of one client hold at most a tenth. It is safe for concurrent use.
type Memory struct {
	most int64
	used atomic.Int64

	mu      sync.Mutex
	clients map[netip.Prefix]int64 // what the bodies of each hold
}

// NewMemory returns a memory of so many bytes.
func NewMemory(most int64) *Memory {
	return &Memory{most: most, clients: make(map[netip.Prefix]int64)}
}

// Used returns how many bytes are held now.
func (m *Memory) Used() int64 { return m.used.Load() }

// Return gives n reserved bytes back.
func (m *Memory) Return(n int64) { m.used.Add(-n) }

// Reserve reserves n bytes, if there are so many. The caller gives them back by Return.
func (m *Memory) Reserve(n int64) bool {
	if m.used.Add(n) <= m.most {
		return true
	}
	m.used.Add(-n)
	return false
}

// A holding is what one body holds of a Memory, whose lock guards it.
type holding struct {
	memory *Memory
	client netip.Prefix
	held   int64 // bytes
	ended  bool  // nothing is held any more
}

// take takes n bytes more, if the memory and the client's share have so many.
func (h *holding) take(n int64) bool {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.ended || m.clients[h.client]+n > m.most/clientShare || !m.Reserve(n) {
		return false
	}
	h.held += n
	m.clients[h.client] += n
	return true
}

// give gives n bytes back, unless end has.
func (h *holding) give(n int64) {
	h.memory.mu.Lock()
	defer h.memory.mu.Unlock()
	h.giveBack(min(n, h.held))
}

// end gives all back. Nothing can be taken after that.
func (h *holding) end() {
	h.memory.mu.Lock()
	defer h.memory.mu.Unlock()
	h.giveBack(h.held)
	h.ended = true
}

// giveBack is give for a caller who holds the lock.
func (h *holding) giveBack(n int64) {
	m := h.memory
	m.Return(n)
	h.held -= n
	if m.clients[h.client] -= n; m.clients[h.client] == 0 {
		delete(m.clients, h.client)
	}
}
