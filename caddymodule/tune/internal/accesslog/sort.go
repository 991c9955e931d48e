package accesslog

import (
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// ErrLate ends the reading of logs in which a request is far from its place.
var ErrLate = errors.New("a request is far from its place in the log")

// Sorted ends the reading and returns another Reader of the same logs, in which all requests come in
// the order of their arrival. It reads the logs once to find those that are late.
func (r *Reader) Sorted(ctx context.Context) (*Reader, error) {
	r.Close()
	r.done = make(chan struct{}) // Close may come once more
	options := r.options
	options.spools = make(map[string]*spill)
	for _, s := range r.sources {
		if s.ahead == nil {
			continue
		}
		for c := range s.ahead { // until it is at its end
			if c.broken != nil {
				r.broken(s, c.broken)
			}
		}
		if s.spool != nil {
			options.spools[s.name] = s.spool
		}
	}
	var broken error // of what can be read only once: a copy ends as if it were whole
	if len(options.spools) > 0 {
		broken = r.stats.Broken
	}
	first, err := Open(r.stats.Files, options)
	if err != nil {
		return nil, err
	}
	defer first.Close()
	first.sorter = &sorter{late: make(map[string]bits)}
	for more := true; more && err == nil; {
		_, more = first.next()
		err = cmp.Or(ctx.Err(), first.sorter.err)
	}
	if err != nil {
		return nil, fmt.Errorf("sorting late lines: %w", err)
	}
	sorted, err := Open(r.stats.Files, options)
	if err != nil {
		return nil, err
	}
	for _, s := range sorted.sources {
		s.late = first.sorter.late[s.name]
	}
	if broken != nil {
		sorted.stats.Broken, sorted.stats.Problems = broken, append(sorted.stats.Problems, broken.Error())
	}
	sorted.runs = first.sorter.runs(sorted.done)
	for _, run := range sorted.runs {
		sorted.advance(run)
	}
	return sorted, nil
}

// bits are numbers from 0 on.
type bits []uint64

func (b bits) has(n int) bool { return n>>6 < len(b) && b[n>>6]>>(n&63)&1 > 0 }

// A sorter sorts requests that come late. What is too much for the memory goes to files.
type sorter struct {
	requests []Request
	bytes    int
	spills   []*spill
	late     map[string]bits // which requests of each log they are
	err      error
}

const (
	// sorterBytes is how much of the memory the late requests take.
	sorterBytes = 32 << 20

	requestBytes = 512 // of a request, beside its line
)

// add adds the last request that was read of a log.
func (s *sorter) add(of *source, req *Request) {
	b := s.late[of.name]
	for len(b) <= of.nth>>6 {
		b = append(b, 0)
	}
	b[of.nth>>6] |= 1 << (of.nth & 63)
	s.late[of.name] = b
	late := *req
	late.written = late.arrived // which is its place
	s.requests = append(s.requests, late)
	if s.bytes += requestBytes + req.length; s.bytes > sorterBytes {
		s.flush()
	}
}

// A spilled request is as it is in a file.
type spilled struct {
	Request
	Referer, Agent, Headers string
	Unlogged                int64
	Behind                  bool
}

func (s *sorter) sort() {
	slices.SortStableFunc(s.requests, func(a, b Request) int { return cmp.Compare(a.arrived, b.arrived) })
}

// flush writes the requests to a file.
func (s *sorter) flush() {
	s.sort()
	file := newSpill()
	into := gob.NewEncoder(file)
	for i := range s.requests {
		r := &s.requests[i]
		s.err = cmp.Or(s.err, into.Encode(&spilled{Request: *r, Referer: r.referer, Agent: r.agent, Headers: r.headers, Unlogged: r.unlogged, Behind: r.behind}), file.err)
	}
	clear(s.requests)
	s.spills, s.requests, s.bytes = append(s.spills, file), s.requests[:0], 0
}

// runs returns the requests in logs, each of which is in order.
func (s *sorter) runs(done <-chan struct{}) (runs []*source) {
	s.sort()
	kept := &source{ahead: make(chan *chunk, 1)}
	kept.ahead <- &chunk{requests: s.requests}
	close(kept.ahead)
	runs = append(runs, kept)
	for _, file := range s.spills {
		run := &source{name: "a temporary file", ahead: make(chan *chunk, 1)}
		runs = append(runs, run)
		go run.readSpilled(file, done)
	}
	return runs
}

// readSpilled reads the requests of a file.
func (s *source) readSpilled(file *spill, done <-chan struct{}) {
	defer close(s.ahead)
	defer s.close()
	err := s.open(new(atomic.Int64), Options{spools: map[string]*spill{s.name: file}})
	if err != nil {
		s.ahead <- &chunk{broken: err}
		return
	}
	for from := gob.NewDecoder(s.lines); err == nil; {
		c := new(chunk)
		for len(c.requests) < batchSize/4 && err == nil {
			var r spilled
			if err = from.Decode(&r); err == nil {
				r.referer, r.agent, r.headers, r.unlogged, r.behind = r.Referer, r.Agent, r.Headers, r.Unlogged, r.Behind
				r.arrived = r.At.UnixNano()
				r.written = r.arrived
				c.requests = append(c.requests, r.Request)
			} else if err != io.EOF {
				c.broken = err
			}
		}
		select {
		case s.ahead <- c:
		case <-done:
			return
		}
	}
}

// A spill is a compressed temporary file, which has no name.
type spill struct {
	file   *os.File
	packed *zstd.Encoder
	err    error // the first one
}

func newSpill() *spill {
	s := new(spill)
	if s.file, s.err = os.CreateTemp("", "throttle-*"); s.err == nil {
		_ = os.Remove(s.file.Name())
		s.packed, s.err = zstd.NewWriter(s.file, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(bufferSize))
	}
	return s
}

// Write implements io.Writer. It never fails: again does.
func (s *spill) Write(p []byte) (int, error) {
	if s.err == nil {
		_, s.err = s.packed.Write(p)
	}
	return len(p), nil
}

// again returns what was written, compressed, from the beginning.
func (s *spill) again() (io.Reader, error) {
	if s.packed != nil && s.err == nil {
		s.err, s.packed = s.packed.Close(), nil
	}
	if s.err != nil {
		return nil, s.err
	}
	_, err := s.file.Seek(0, io.SeekStart)
	return s.file, err
}
