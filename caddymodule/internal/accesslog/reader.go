package accesslog

import (
	"bytes"
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// Options say how logs are read. The zero value works.
type Options struct {
	// Format is that of all lines. Zero means Auto.
	Format Format

	// Host is that of requests whose line has none.
	Host string

	// Stdin is what the name - means. If nil, it is the standard input.
	Stdin io.Reader
}

const (
	// A request is returned once a line was written that much later than it arrived, or
	// if that many requests or bytes are held back.
	window      = 10 * time.Minute
	windowLines = 1 << 13
	windowBytes = 8 << 20

	// aDay is how far in the future a time may be: the clock of another machine.
	aDay = 24 * time.Hour

	// keptBuffer is the largest buffer of a request that is used again, in bytes.
	keptBuffer = 64 << 10
)

// A Reader reads the requests of logs in the order of their arrival. Logs may be
// given in any order, and may overlap. It holds back as many requests as it must to put
// them in order, and no more than a fixed number.
type Reader struct {
	options Options
	latest  time.Time
	pending []*source // that begin later, in order
	active  []*source // with a request each
	sources []*source
	stats   Stats

	held     held
	newest   int64 // when the last line was written
	returned *Request
	last     int64 // arrival of the last request that was returned
	free     []*Request

	read, lines atomic.Int64
	total       int64
	err         error
}

// Open opens logs by their names; - is the standard input. Errors are of type
// [InputError]: the names that cannot be read are found at once.
func Open(names []string, options Options) (*Reader, error) {
	r := &Reader{options: options, latest: time.Now().Add(aDay)}
	for i, name := range names {
		s := &source{name: name, path: name, order: i}
		s.parser = parser{format: options.Format, latest: r.latest}
		r.sources = append(r.sources, s)
	}
	for _, s := range r.sources {
		if err := r.begin(s); err != nil {
			r.Close()
			return nil, err
		}
	}
	slices.SortStableFunc(r.pending, func(a, b *source) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(b.order, a.order))
	})
	return r, nil
}

// begin reads the first request of a log. A file that can be opened again is closed
// until its time comes.
func (r *Reader) begin(s *source) error {
	again := false
	if s.path == "-" {
		s.path = ""
		in := r.options.Stdin
		if in == nil {
			in = os.Stdin
		}
		s.closer = func() {}
		if err := s.unpack(&counted{in, &r.read}); err != nil {
			return err
		}
	} else {
		info, err := os.Stat(s.path)
		again = err == nil && info.Mode().IsRegular()
		if again {
			r.total += info.Size()
		}
		var peeked atomic.Int64
		n := &r.read
		if again {
			n = &peeked
		}
		if err := s.open(n); err != nil {
			return err
		}
	}
	if !again {
		r.advance(s)
		if s.head != nil {
			s.first = s.head.written
			r.pending = append(r.pending, s)
		}
		return nil
	}
	s.first = r.peek(s)
	s.close()
	r.pending = append(r.pending, s)
	return nil
}

// peekLines is how many lines are read to find out when a log begins.
const peekLines = 1000

// peek returns when the first request of a log was written, or 0 if it has none in its
// first lines.
func (r *Reader) peek(s *source) int64 {
	var req Request
	for range peekLines {
		line, _, err := s.readLine()
		if err != nil {
			break
		}
		if v, _ := r.parse(s, &req, line); v == request {
			return req.written
		}
	}
	return 0
}

// Close closes what is open.
func (r *Reader) Close() {
	for _, s := range r.sources {
		s.close()
	}
}

// Stats returns what was read so far. It is valid until the next request is read.
func (r *Reader) Stats() *Stats { return &r.stats }

// Progress returns how many bytes of the files were read, how many there are in all,
// and how many lines were read. The total is 0 if it is not known. It may be called by
// any goroutine.
func (r *Reader) Progress() (read, total, lines int64) {
	return r.read.Load(), r.total, r.lines.Load()
}

// All iterates over the requests that are left. An error, of type [InputError], is the
// last that comes.
func (r *Reader) All() iter.Seq2[*Request, error] {
	return func(yield func(*Request, error) bool) {
		for {
			req, err := r.Next()
			if errors.Is(err, io.EOF) || !yield(req, err) || err != nil {
				return
			}
		}
	}
}

// Next returns the next request, which is valid until the following call, or io.EOF at
// the end. It returns an [InputError] instead if the logs hold no request at all.
func (r *Reader) Next() (*Request, error) {
	if r.returned != nil {
		r.recycle(r.returned)
		r.returned = nil
	}
	for r.err == nil && !r.held.due(r.newest) {
		r.err = r.hold()
	}
	req := r.held.next()
	if req == nil {
		if errors.Is(r.err, io.EOF) && r.stats.Requests == 0 {
			return nil, r.nothing()
		}
		return nil, r.err
	}
	r.deliver(req)
	r.returned = req
	return req, nil
}

// deliver completes a request that is about to be returned.
func (r *Reader) deliver(req *Request) {
	st := &r.stats
	if req.arrived < r.last && st.Requests > 0 {
		req.arrived = r.last
		st.Late++
	}
	r.last = req.arrived
	req.At = time.Unix(0, req.arrived).UTC()
	if req.Host == "" {
		req.Host = r.options.Host
	}
	if st.Requests == 0 {
		st.From = req.At
	}
	st.To = req.At
	st.Unlogged += req.unlogged()
	st.Requests++
	st.Formats[req.Format]++
	if !req.Client.IsValid() {
		st.NoClient++
	}
	if req.Duration >= 0 {
		st.Durations++
	}
	if req.written%int64(time.Second) != 0 {
		st.Fractions++
	}
}

// nothing returns why there is no request at all.
func (r *Reader) nothing() error {
	if len(r.sources) == 0 {
		return &InputError{"", errors.New("no log given")}
	}
	if len(r.stats.Broken) > 0 {
		return r.stats.Broken[0]
	}
	s := r.sources[0]
	switch {
	case r.stats.Lines == 0:
		return &InputError{s.name, errors.New("it is empty")}
	case len(r.stats.Problems) > 0:
		p := r.stats.Problems[0]
		return &InputError{p.File, fmt.Errorf("none of its %d lines is a request: line %d: %s: %s", r.stats.Lines, p.Line, p.Why, Printable(p.Text, 80))}
	}
	return &InputError{s.name, fmt.Errorf("none of its %d lines is a request: want Caddy's access log, or a common or combined log", r.stats.Lines)}
}

// hold reads one more request and holds it back, or returns io.EOF.
func (r *Reader) hold() error {
	for len(r.pending) > 0 {
		s := r.pending[0]
		if next := r.earliest(); next != nil && next.head.written < s.first {
			break
		}
		r.pending = r.pending[1:]
		if s.stream == nil {
			s.parser = parser{format: r.options.Format, latest: r.latest}
			if err := s.open(&r.read); err != nil {
				r.stats.Broken = append(r.stats.Broken, err)
				continue
			}
			r.advance(s)
		}
		if s.head != nil {
			r.active = append(r.active, s)
		}
	}
	s := r.earliest()
	if s == nil {
		return io.EOF
	}
	req := s.head
	r.newest = max(r.newest, req.written)
	r.held.add(req)
	if r.advance(s); s.head == nil {
		r.active = slices.DeleteFunc(r.active, func(other *source) bool { return other == s })
	}
	return nil
}

// earliest returns the open log whose next line was written first.
func (r *Reader) earliest() (first *source) {
	for _, s := range r.active {
		if first == nil || s.head.written < first.head.written {
			first = s
		}
	}
	return first
}

// advance reads the next request of a log.
func (r *Reader) advance(s *source) {
	req := r.take()
	for {
		line, length, err := s.readLine()
		if err != nil {
			s.head = nil
			r.recycle(req)
			if !errors.Is(err, io.EOF) {
				r.stats.Broken = append(r.stats.Broken, &InputError{s.name, fmt.Errorf("it ends too early after line %d: %w", s.line, err)})
			}
			s.close()
			return
		}
		s.line++
		r.stats.Lines++
		r.lines.Store(r.stats.Lines)
		v := unreadable
		var why string
		if length > mostLine {
			why = fmt.Sprintf("a line of %d bytes: want at most %d", length, mostLine)
		} else {
			v, why = r.parse(s, req, line)
		}
		switch v {
		case request:
			req.File, req.Line = s.name, s.line
			s.head = req
			return
		case other:
			r.stats.Other++
		default:
			r.stats.Unreadable++
			if len(r.stats.Problems) < mostProblems {
				r.stats.Problems = append(r.stats.Problems, Problem{s.name, s.line, why, string(line[:min(len(line), 400)])})
			}
		}
	}
}

// parse reads a line into a request.
func (r *Reader) parse(s *source, req *Request, line []byte) (verdict, string) {
	line = bytes.TrimRight(line, "\r \t")
	if len(line) == 0 {
		return other, ""
	}
	req.buf = append(req.buf[:0], line...)
	req.Size, req.Received, req.Duration = -1, -1, NoDuration
	var v verdict
	var why string
	if s.parser.format == Caddy || s.parser.format == Auto && line[0] == '{' {
		req.Format = Caddy
		v, why = s.parser.parseCaddy(req, req.buf)
	} else {
		req.Format = max(s.parser.format, Nginx)
		v, why = s.parser.parseCombined(req, req.buf)
	}
	if v == unreadable && bytes.IndexByte(line, 0) >= 0 {
		why = "binary data"
	}
	if v != request {
		req.reset()
	}
	return v, why
}

// reset forgets everything but the memory.
func (r *Request) reset() { *r = Request{buf: r.buf} }

// take returns an empty request.
func (r *Reader) take() *Request {
	if n := len(r.free); n > 0 {
		req := r.free[n-1]
		r.free = r.free[:n-1]
		return req
	}
	return new(Request)
}

func (r *Reader) recycle(req *Request) {
	if req.kept || cap(req.buf) > keptBuffer {
		return
	}
	req.reset()
	r.free = append(r.free, req)
}

// held are the requests that are held back until they are in order. Most come in order
// and go through a queue; a heap holds the others.
type held struct {
	queue []*Request
	from  int // the first of queue
	late  lateRequests
	seq   uint64
	bytes int
}

// add holds a request back.
func (h *held) add(r *Request) {
	h.bytes += len(r.buf)
	if n := len(h.queue); h.from == n || r.arrived >= h.queue[n-1].arrived {
		if h.from == n {
			h.queue, h.from = h.queue[:0], 0
		}
		h.queue = append(h.queue, r)
		return
	}
	h.seq++
	heap.Push(&h.late, lateRequest{r.arrived, h.seq, r})
}

// due reports whether the first request may be returned, if the last line was written
// at newest.
func (h *held) due(newest int64) bool {
	if len(h.queue)-h.from+len(h.late) >= windowLines || h.bytes >= windowBytes {
		return true
	}
	first := h.first()
	return first != nil && newest-first.arrived > int64(window)
}

// first returns the request that arrived first, or nil.
func (h *held) first() *Request {
	switch {
	case h.from == len(h.queue) && len(h.late) == 0:
		return nil
	case h.from == len(h.queue) || len(h.late) > 0 && h.late[0].arrived < h.queue[h.from].arrived:
		return h.late[0].Request
	}
	return h.queue[h.from]
}

// next removes and returns the request that arrived first, or nil.
func (h *held) next() *Request {
	first := h.first()
	if first == nil {
		return nil
	}
	h.bytes -= len(first.buf)
	if len(h.late) > 0 && h.late[0].Request == first {
		heap.Pop(&h.late)
		return first
	}
	h.queue[h.from] = nil
	if h.from++; h.from > windowLines {
		h.queue = h.queue[:copy(h.queue, h.queue[h.from:])]
		h.from = 0
	}
	return first
}

// A lateRequest is in the heap. Requests that arrived at the same time keep their order.
type lateRequest struct {
	arrived int64
	seq     uint64
	*Request
}

type lateRequests []lateRequest

// Len implements sort.Interface.
func (l lateRequests) Len() int { return len(l) }

// Less implements sort.Interface.
func (l lateRequests) Less(i, j int) bool {
	return l[i].arrived < l[j].arrived || l[i].arrived == l[j].arrived && l[i].seq < l[j].seq
}

// Swap implements sort.Interface.
func (l lateRequests) Swap(i, j int) { l[i], l[j] = l[j], l[i] }

// Push implements heap.Interface.
func (l *lateRequests) Push(x any) { *l = append(*l, x.(lateRequest)) }

// Pop implements heap.Interface.
func (l *lateRequests) Pop() any {
	last := (*l)[len(*l)-1]
	(*l)[len(*l)-1].Request = nil
	*l = (*l)[:len(*l)-1]
	return last
}
