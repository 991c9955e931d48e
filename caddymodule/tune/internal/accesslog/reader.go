package accesslog

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Options say how logs are read. The zero value works.
type Options struct {
	// TimeField is the name of the duration's field, or its number behind the user agent in
	// combined logs. After a colon may follow its unit. If empty, it is found.
	TimeField string

	// Client is the name of the client's field, or its number as above; remote_addr is the
	// peer of combined logs. If empty, it is found.
	Client string

	// Fields are those of each line, in the spelling of Apache's LogFormat or nginx's
	// log_format. If empty, they are found.
	Fields string

	// Host is that of requests whose line has none.
	Host string

	// Stdin is what the name - means, such as the standard input. Only with it is there such a name.
	Stdin io.Reader

	spools map[string]*spill // of what can be read only once, if this is not the first time
}

const (
	// A request is returned once a line was written that much later than it arrived, or
	// if that many requests or bytes are held back.
	window      = 10 * time.Minute
	windowLines = 1 << 14
	windowBytes = 16 << 20

	// aDay is how far in the future a time may be: the clock of another machine.
	aDay = 24 * time.Hour
)

// A Reader reads the requests of logs in the order of their arrival. Logs may be
// given in any order, and may overlap. It holds back as many requests as it must to put
// them in order, and no more than a fixed number. If one comes later nevertheless, it ends with
// [ErrLate]: go on with [Reader.Sorted].
type Reader struct {
	options Options
	parser  parser // as that of each log begins
	sources []*source
	runs    []*source // of requests that are late in these
	sorter  *sorter   // collects such requests, or is nil
	stats   Stats
	strange string // fields of JSON that is no request

	peeked, forwarded int // requests of the first lines, and those for which a proxy names the client

	held   []*Request // until they are in order
	bytes  int        // of their lines
	newest int64      // when the last line was written
	last   int64      // the latest arrival of the requests that were returned

	read  atomic.Int64 // bytes of the files
	total int64
	done  chan struct{} // closed when nobody reads on
}

// batchSize is how many requests are returned at once.
const batchSize = 1000

// Open opens logs by their names; - is the standard input. Names that cannot be read are
// found at once.
func Open(names []string, options Options) (*Reader, error) {
	r := &Reader{
		options: options, parser: parser{host: options.Host, clientField: options.Client, formats: formats, latest: time.Now().Add(aDay)},
		stats: Stats{Files: names, Problems: []string{}}, done: make(chan struct{}),
	}
	field, unit, given := strings.Cut(options.TimeField, ":")
	r.parser.timeField = field
	if given {
		var err error
		if r.parser.unit, err = time.ParseDuration("1" + unit); err != nil || r.parser.unit <= 0 {
			return nil, fmt.Errorf("unknown unit %q of the time field: want s, ms, us or ns", unit)
		}
	}
	if options.Fields != "" {
		fields, err := compile(options.Fields)
		if err != nil {
			return nil, fmt.Errorf("--fields: %w", err)
		}
		r.parser.formats, r.parser.given = []pattern{fields}, true
	}
	for _, name := range names {
		s := &source{name: name}
		if err := r.begin(s); err != nil {
			s.close()
			return nil, mistake(name, err)
		}
		if !slices.ContainsFunc(r.sources, s.same) {
			r.sources = append(r.sources, s)
		}
	}
	slices.Reverse(r.sources) // a rotated set is listed from its newest file on
	slices.SortStableFunc(r.sources, byNext)
	return r, nil
}

// Close ends the reading. It must be called once.
func (r *Reader) Close() { close(r.done) }

// Stats returns what was read so far, with the last batch.
func (r *Reader) Stats() *Stats { return &r.stats }

// Progress returns how many bytes of the files were read, and how many there are in all,
// or 0 if that is not known.
func (r *Reader) Progress() (read, total int64) { return r.read.Load(), r.total }

// Batches iterates over the requests, several at once, while more are read. It must be called
// once. The slices belong to the caller. An error is the last that comes: the logs hold no
// request at all, or it is ErrLate.
func (r *Reader) Batches() iter.Seq2[[]*Request, error] {
	return func(yield func([]*Request, error) bool) {
		for more := true; more; {
			batch := make([]*Request, 0, batchSize)
			for len(batch) < batchSize && more {
				var req *Request
				if req, more = r.next(); more {
					batch = append(batch, req)
				}
			}
			switch {
			case r.stats.Requests == 0:
				yield(nil, r.nothing())
				return
			case r.stats.Late > 0 && r.runs == nil: // else the log has grown
				yield(nil, ErrLate)
				return
			}
			if !yield(batch, nil) {
				return
			}
		}
	}
}

// begin finds out when a log begins, and closes it until its time comes. What is no file
// can be read only once, and its time is the beginning.
func (r *Reader) begin(s *source) error {
	if s.name == "-" {
		return nil
	}
	if info, err := os.Stat(s.name); err == nil {
		if !info.Mode().IsRegular() && !info.IsDir() {
			return nil
		}
		r.total += info.Size()
		s.info = info
	}
	var peeked atomic.Int64
	if err := s.open(&peeked, Options{}); err != nil {
		return err
	}
	s.next = r.peek(s)
	s.close()
	return nil
}

// fewestPeeked is by how many requests a proxy with a public address is known.
const fewestPeeked = 20

// peek returns when the first request of a log was written, or 0 if the log has none in its first
// lines. By these it finds out whether a proxy names the clients.
func (r *Reader) peek(s *source) (first int64) {
	head, _ := s.lines.Peek(bufferSize)
	p := r.parser
	for line := range strings.Lines(string(head)) {
		var req Request
		if v, _ := p.parse(&req, line); v != request {
			continue
		}
		first = cmp.Or(first, req.written)
		if r.peeked++; req.forwarded {
			r.forwarded++
		}
	}
	r.parser.proxied = r.peeked >= fewestPeeked && r.forwarded*4 > r.peeked*3
	return first
}

// next returns the next request in order, or false at the end.
func (r *Reader) next() (req *Request, more bool) {
	more = true
	for more && !r.due() {
		more = r.hold()
	}
	run := &source{next: never}
	if len(r.runs) > 0 {
		run = slices.MinFunc(r.runs, byNext)
	}
	switch {
	case len(r.held) > 0 && r.held[0].arrived <= run.next:
		req, r.held[0] = r.held[0], nil
		r.held = r.held[1:]
		r.bytes -= req.length
		r.last = req.arrived
	case run.head != nil:
		req = run.head
		r.advance(run)
	default:
		return nil, false
	}
	r.deliver(req)
	return req, true
}

// due reports whether the first request that is held back may be returned.
func (r *Reader) due() bool {
	return len(r.held) >= windowLines || r.bytes >= windowBytes ||
		len(r.held) > 0 && r.newest-r.held[0].arrived > int64(window)
}

// deliver counts a request that is about to be returned.
func (r *Reader) deliver(req *Request) {
	st := &r.stats
	if st.Requests == 0 || req.At.Before(st.From) {
		st.From = req.At
	}
	if req.At.After(st.To) {
		st.To = req.At
	}
	st.Unlogged += req.unlogged
	st.Requests++
	switch {
	case !req.Client.IsValid():
		st.NoClient++
	case req.StandsIn:
		st.StandIns++
	}
	if req.behind {
		st.Behind++
	}
	if req.written%int64(time.Second) != 0 {
		st.Fractions++
	}
	if req.Duration >= 0 && req.Status != http.StatusSwitchingProtocols {
		st.timed++
		st.busy += req.Duration.Seconds()
	}
}

// nothing returns why there is no request at all.
func (r *Reader) nothing() error {
	name, lines := r.stats.Files[0], r.stats.Lines
	switch {
	case r.stats.Broken != nil:
		return r.stats.Broken
	case lines == 0:
		return mistake(name, errors.New("it is empty"))
	case len(r.stats.Problems) > 0:
		return fmt.Errorf("none of %d lines is a request: %s", lines, r.stats.Problems[0])
	}
	what := ""
	if r.strange != "" {
		what = "; they are JSON with the fields " + r.strange
	}
	return mistake(name, fmt.Errorf("none of its %d lines is a request: want the access log of a web server, or name the fields of its lines with --fields%s", lines, what))
}

// broken notes why a log ended too early.
func (r *Reader) broken(s *source, err error) {
	err = mistake(s.name, err)
	r.stats.Broken, r.stats.Problems = cmp.Or(r.stats.Broken, err), append(r.stats.Problems, err.Error())
}

// hold reads one more request and holds it back, or returns false at the end.
func (r *Reader) hold() (more bool) {
	s := r.earliest()
	for ; s.head == nil && s.next < never; s = r.earliest() {
		r.start(s)
	}
	if s.head == nil {
		return false
	}
	req := s.head
	if req.arrived < r.last {
		if r.stats.Late++; r.sorter != nil {
			r.sorter.add(s, req)
			r.advance(s)
			return true
		}
		req.arrived = r.last // it counts as arriving now
	}
	r.newest = max(r.newest, req.written)
	at := len(r.held) // most come in order
	for at > 0 && r.held[at-1].arrived > req.arrived {
		at--
	}
	r.held = slices.Insert(r.held, at, req)
	r.bytes += req.length
	r.advance(s)
	return true
}

// earliest returns the log whose next line was written first.
func (r *Reader) earliest() *source { return slices.MinFunc(r.sources, byNext) }

func byNext(a, b *source) int { return cmp.Compare(a.next, b.next) }

// start opens a log when its time has come, and reads its first request.
func (r *Reader) start(s *source) {
	err := s.open(&r.read, r.options)
	if err == nil && s.info == nil { // it can be read only once
		if s.spool = r.options.spools[s.name]; s.spool == nil {
			s.spool = newSpill()
			s.lines = bufio.NewReaderSize(io.TeeReader(s.lines, s.spool), bufferSize)
		}
		r.peek(s)
	}
	if s.parser = r.parser; err != nil {
		s.close()
		r.broken(s, err)
		s.next = never
		return
	}
	s.ahead = make(chan *chunk, chunksAhead)
	go s.read(r.done)
	r.advance(s)
}

// advance reads the next request of a log.
func (r *Reader) advance(s *source) {
	for late := true; late; late = s.late.has(s.nth) {
		for s.chunk == nil || len(s.chunk.requests) == 0 {
			c, more := <-s.ahead
			if !more {
				s.head, s.next = nil, never
				return
			}
			s.chunk = c
			st := &r.stats
			st.Lines += c.lines
			st.Other += c.other
			r.strange = cmp.Or(r.strange, c.strange)
			st.Unreadable += c.unreadable
			st.Problems = append(st.Problems, c.problems[:min(len(c.problems), max(0, mostProblems-len(st.Problems)))]...)
			if c.broken != nil {
				r.broken(s, c.broken)
			}
		}
		s.head, s.chunk.requests = &s.chunk.requests[0], s.chunk.requests[1:]
		s.next = s.head.written
		s.nth++
	}
}
