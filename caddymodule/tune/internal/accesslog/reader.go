package accesslog

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
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

	// Stdin is what the name - means, such as the standard input.
	Stdin io.Reader
}

const (
	// aDay is how far in the future a time may be: the clock of another machine.
	aDay = 24 * time.Hour

	// manyHeaders is of how many requests the headers are looked at, to know what the log has.
	manyHeaders = 1000

	// fewestProxied is by how many requests a proxy with a public address is known.
	fewestProxied = 20
)

// units are those of the time field.
var units = map[string]time.Duration{"s": time.Second, "ms": time.Millisecond, "us": time.Microsecond, "ns": time.Nanosecond}

// A Reader reads the requests of logs, and returns them in the order of their arrival. Logs may be
// given in any order, and may overlap.
type Reader struct {
	stdin   io.Reader
	sources []*source
	stats   Stats
	facts   Facts
	sorter  sorter
	read    int // requests
	proxied int // of these, for which a proxy names another client than the peer
}

// Open prepares to read logs by their names; - is the standard input. Names that do not exist
// are found at once.
func Open(names []string, options Options) (_ *Reader, err error) {
	p := parser{options: options, formats: formats, latest: time.Now().Add(aDay)}
	field, unit, given := strings.Cut(options.TimeField, ":")
	p.options.TimeField, p.unit = field, units[unit]
	if given && p.unit == 0 {
		return nil, fmt.Errorf("unknown unit %q of the time field: want s, ms, us or ns", unit)
	}
	if options.Fields != "" {
		fields, err := compile(options.Fields)
		if err != nil {
			return nil, fmt.Errorf("--fields: %w", err)
		}
		p.formats = []pattern{fields}
	}
	r := &Reader{stdin: options.Stdin, facts: Facts{Headers: make(map[string]bool)}, stats: Stats{Files: names, Problems: []string{}}}
	for _, name := range slices.Backward(names) { // a rotated set is listed from its newest file on
		s := &source{name: name, parser: p}
		if name != "-" {
			if s.info, err = os.Stat(name); err != nil {
				return nil, mistake(name, err)
			}
		}
		if !slices.ContainsFunc(r.sources, s.same) {
			r.sources = append(r.sources, s)
		}
	}
	return r, nil
}

// Close removes temporary files.
func (r *Reader) Close() { r.sorter.close() }

// Stats returns what was read.
func (r *Reader) Stats() *Stats { return &r.stats }

// Facts returns what the logs hold, once there is a request.
func (r *Reader) Facts() *Facts { return &r.facts }

// Requests iterates over the requests, which belong to the caller. It must be called once. An error
// is the last that comes.
func (r *Reader) Requests(yield func(*Request, error) bool) {
	for _, s := range r.sources {
		if err := r.readAll(s); err != nil {
			yield(nil, fmt.Errorf("sorting the requests: %w", err))
			return
		}
	}
	if r.read == 0 {
		yield(nil, r.nothing())
		return
	}
	for req, err := range r.sorter.all {
		if err != nil {
			yield(nil, fmt.Errorf("sorting the requests: %w", err))
			return
		}
		if r.count(req); !yield(req, nil) {
			return
		}
	}
}

// readAll reads a log to its end.
func (r *Reader) readAll(s *source) error {
	defer s.close()
	if err := s.open(r.stdin); err != nil {
		r.broken(s, err)
		return nil
	}
	for s.lines != nil {
		if req := new(Request); r.readRequest(s, req) {
			r.read++
			r.facts.add(req, r.read <= manyHeaders)
			if req.Named.IsValid() {
				r.proxied++
			}
			if err := r.sorter.add(req); err != nil {
				return err
			}
		}
	}
	return nil
}

// readRequest reads the next line of a log, and reports whether it is a request.
func (r *Reader) readRequest(s *source, req *Request) bool {
	st := &r.stats
	line, length, err := s.readLine()
	switch {
	case err != nil && len(s.parser.begun) > 0: // and never completed
		*req, s.parser.begun = s.parser.begun[0].Request, s.parser.begun[1:]
		v, _ := s.parser.timed(req, req.At, false)
		req.File, req.Line = s.name, s.line
		return v == request
	case err != nil:
		if s.close(); !errors.Is(err, io.EOF) {
			r.broken(s, fmt.Errorf("it ends too early after line %d: %w", s.line, err))
		}
		return false
	}
	s.line++
	st.Lines++
	v, why := s.parser.parse(req, string(line))
	if length > mostLine {
		v, why = unreadable, fmt.Sprintf("a line of %d bytes: want at most %d", length, mostLine)
	}
	req.File, req.Line = s.name, s.line
	switch v {
	case request:
		if req.fraction {
			st.Fractions++
		}
	case other:
		st.Other++
	case unreadable:
		if st.Unreadable++; len(st.Problems) < mostProblems {
			where, said := command.Printable(s.name, 200), command.Printable(string(line[:min(len(line), 400)]), 80)
			st.Problems = append(st.Problems, fmt.Sprintf("%s:%d: %s: %s", where, s.line, why, said))
		}
	}
	return v == request
}

// count counts a request that is returned. If most name another client than their peer, that is a
// proxy.
func (r *Reader) count(req *Request) {
	if r.read >= fewestProxied && r.proxied*4 > r.read*3 && req.Named.IsValid() {
		req.behind(req.Named)
	}
	st := &r.stats
	if st.To = req.At; st.Requests == 0 {
		st.From = req.At
	}
	st.Requests++
	st.Unlogged += req.Unlogged
	for _, is := range []struct {
		n  *int64
		so bool
	}{{&st.NoClient, !req.Client.IsValid()}, {&st.StandIns, req.StandsIn}, {&st.Behind, req.Behind}, {&st.Mixed, req.Mixed}, {&st.Upgraded, req.Upgraded}} {
		if is.so {
			*is.n++
		}
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
	return mistake(name, fmt.Errorf("none of its %d lines is a request: want the access log of a web server, or name the fields of its lines with --fields", lines))
}

// broken notes why a log ended too early.
func (r *Reader) broken(s *source, err error) {
	err = mistake(s.name, err)
	r.stats.Broken, r.stats.Problems = cmp.Or(r.stats.Broken, err), append(r.stats.Problems, err.Error())
}

const (
	// mostLine is how long a line may be, in bytes. Caddy refuses requests with larger
	// headers.
	mostLine = 1 << 20

	// bufferSize is how many bytes are read at once.
	bufferSize = 64 << 10
)

// A source is a log: a file, or the standard input.
type source struct {
	name   string
	info   os.FileInfo   // nil of the standard input
	lines  *bufio.Reader // nil unless it is open
	opened []func()      // what closes it
	parser parser
	line   int // the number of the last line
}

// same reports whether two logs are one file.
func (s *source) same(as *source) bool {
	return s.info != nil && as.info != nil && os.SameFile(s.info, as.info)
}

// open opens the log, and finds out how it is compressed.
func (s *source) open(stdin io.Reader) (err error) {
	in := stdin
	if s.name != "-" {
		if s.info.IsDir() {
			return errors.New("it is a directory: want log files")
		}
		file, err := os.Open(s.name)
		if err != nil {
			return err
		}
		s.opened = append(s.opened, func() { _ = file.Close() })
		in = file
	}
	packed := bufio.NewReaderSize(in, bufferSize)
	magic, err := packed.Peek(4)
	if err != nil && err != io.EOF {
		return err
	}
	s.lines = packed
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		plain, err := gzip.NewReader(packed)
		if err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
		s.lines = bufio.NewReaderSize(plain, bufferSize)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		plain, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return fmt.Errorf("zstd: %w", err)
		}
		s.opened = append(s.opened, plain.Close)
		s.lines = bufio.NewReaderSize(plain, bufferSize)
	case bytes.HasPrefix(magic, []byte("BZh")), bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X'}):
		return errors.New("it is compressed by bzip2 or xz: unpack it, and read it from the standard input with -")
	}
	return nil
}

func (s *source) close() {
	for _, closes := range slices.Backward(s.opened) {
		closes()
	}
	s.lines, s.opened = nil, nil
}

// readLine returns the next line without its end, which is valid until the next call.
// Of a line that is too long it returns the beginning, and how long it is.
func (s *source) readLine() (line []byte, length int, err error) {
	line, more, err := s.lines.ReadLine()
	length = len(line)
	if !more {
		return line, length, err
	}
	line = slices.Clone(line)
	for more && err == nil {
		var part []byte
		part, more, err = s.lines.ReadLine()
		length += len(part)
		line = append(line, part[:min(len(part), mostLine-len(line))]...)
	}
	return line, length, nil // the next call returns the error
}

const (
	// mostHeld is how many bytes of requests the memory takes.
	mostHeld = 32 << 20

	requestBytes = 512 // of a request, beside its line
)

// A sorter puts requests in the order of their arrival. What is too much for the memory goes to
// temporary files.
type sorter struct {
	held  []*Request
	bytes int        // of these
	files []*os.File // each in order
}

func (s *sorter) add(req *Request) error {
	s.held = append(s.held, req)
	if s.bytes += requestBytes + req.length; s.bytes > mostHeld {
		return s.flush()
	}
	return nil
}

func (s *sorter) sort() {
	slices.SortStableFunc(s.held, func(a, b *Request) int { return a.At.Compare(b.At) })
}

// flush writes the requests to a compressed file.
func (s *sorter) flush() error {
	file, err := os.CreateTemp("", "throttle-*")
	if err != nil {
		return err
	}
	_ = os.Remove(file.Name()) // if files that are open can be removed
	s.files = append(s.files, file)
	packed := s2.NewWriter(file, s2.WriterConcurrency(1), s2.WriterBlockSize(bufferSize))
	s.sort()
	into := gob.NewEncoder(packed)
	for _, req := range s.held {
		err = cmp.Or(err, into.Encode(req))
	}
	clear(s.held)
	s.held, s.bytes = s.held[:0], 0
	return cmp.Or(err, packed.Close())
}

// A run is some requests in order: the first that is left, if it was read, and the file of the others.
type run struct {
	head *Request
	rest *gob.Decoder
}

// all iterates over the requests in order. An error is the last that comes.
func (s *sorter) all(yield func(*Request, error) bool) {
	if len(s.files) == 0 {
		s.sort()
		for i, req := range s.held {
			if s.held[i] = nil; !yield(req, nil) {
				return
			}
		}
		return
	}
	if err := s.flush(); err != nil {
		yield(nil, err)
		return
	}
	var runs []*run
	for _, file := range s.files {
		runs = append(runs, &run{rest: gob.NewDecoder(s2.NewReader(io.NewSectionReader(file, 0, math.MaxInt64), s2.ReaderMaxBlockSize(bufferSize)))})
	}
	for {
		var first *run
		for i, r := range slices.Backward(runs) {
			var err error
			if r.head == nil {
				r.head = new(Request)
				err = r.rest.Decode(r.head)
			}
			switch {
			case errors.Is(err, io.EOF):
				runs = slices.Delete(runs, i, i+1)
			case err != nil:
				yield(nil, err)
				return
			case first == nil || !first.head.At.Before(r.head.At):
				first = r
			}
		}
		if first == nil || !yield(first.head, nil) {
			return
		}
		first.head = nil
	}
}

// close removes the files.
func (s *sorter) close() {
	for _, file := range s.files {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}
}
