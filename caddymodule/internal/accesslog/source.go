package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

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
	first  int64         // when its first request was written
	lines  *bufio.Reader // nil unless it is open
	opened []func()      // what closes it
	parser parser

	ahead chan *chunk // that were read
	chunk *chunk      // of head
	head  *Request    // the next request; nil at the end
}

// open opens the log, and finds out how it is compressed.
func (s *source) open(read *atomic.Int64, stdin io.Reader) error {
	in := stdin
	if s.name != "-" {
		file, err := os.Open(s.name)
		if err != nil {
			var path *os.PathError
			if errors.As(err, &path) {
				err = path.Err
			}
			return err
		}
		s.opened = append(s.opened, func() { _ = file.Close() })
		if info, err := file.Stat(); err == nil && info.IsDir() {
			return errors.New("it is a directory: want log files")
		}
		in = file
	}
	packed := bufio.NewReaderSize(&counted{in, read}, bufferSize)
	magic, err := packed.Peek(4)
	if err != nil && err != io.EOF {
		return err
	}
	s.lines = packed
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		unpacked, err := gzip.NewReader(packed)
		if err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
		s.lines = bufio.NewReaderSize(unpacked, bufferSize)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		unpacked, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return fmt.Errorf("zstd: %w", err)
		}
		s.opened = append(s.opened, unpacked.Close)
		s.lines = bufio.NewReaderSize(unpacked, bufferSize)
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

// counted counts the bytes that are read.
type counted struct {
	io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

const (
	chunkSize   = 128 << 10 // bytes
	chunksAhead = 4
)

// A chunk is some lines of a log, which are parsed while others are read.
type chunk struct {
	source *source
	text   strings.Builder
	lines  []span
	first  int           // the number of its first line
	parsed chan struct{} // closed when the rest is valid

	requests          []Request
	other, unreadable int64
	problems          []string
	strange           string // fields of JSON that is no request
	broken            error  // why the log ends here
}

// A span is a line of a chunk: where it ends, and how long it was in the log.
type span struct{ end, length int }

// read reads the log to its end, chunk by chunk, until done is closed. Chunks are parsed
// beside each other, with what the lines of the first one have taught.
func (s *source) read(done <-chan struct{}) {
	defer close(s.ahead)
	defer s.close()
	for next := 1; ; {
		c := &chunk{source: s, first: next, parsed: make(chan struct{})}
		c.text.Grow(chunkSize + chunkSize/4)
		for c.text.Len() < chunkSize {
			line, length, err := s.readLine()
			if err != nil {
				c.broken = err
				break
			}
			c.text.Write(line)
			c.lines = append(c.lines, span{c.text.Len(), length})
		}
		if next += len(c.lines); c.first == 1 {
			c.parse(&s.parser)
		} else {
			taught := s.parser
			go c.parse(&taught)
		}
		select {
		case s.ahead <- c:
		case <-done:
			return
		}
		if c.broken != nil {
			return
		}
	}
}

// parse parses the lines.
func (c *chunk) parse(p *parser) {
	defer close(c.parsed)
	c.requests = make([]Request, 0, len(c.lines))
	all, from := c.text.String(), 0
	for i, span := range c.lines {
		line := all[from:span.end]
		from = span.end
		c.requests = c.requests[:len(c.requests)+1]
		req := &c.requests[len(c.requests)-1]
		v, why := p.parse(req, line)
		if span.length > mostLine {
			v, why = unreadable, fmt.Sprintf("a line of %d bytes: want at most %d", span.length, mostLine)
		}
		if v == request {
			req.File, req.Line = c.source.name, c.first+i
			continue
		}
		c.requests = c.requests[:len(c.requests)-1]
		if v == other {
			if c.other++; c.strange == "" {
				c.strange = fieldsOf(line)
			}
			continue
		}
		if c.unreadable++; len(c.problems) < mostProblems {
			where, said := text.Printable(c.source.name, 200), text.Printable(line[:min(len(line), 400)], 80)
			c.problems = append(c.problems, fmt.Sprintf("%s:%d: %s: %s", where, c.first+i, why, said))
		}
	}
}
