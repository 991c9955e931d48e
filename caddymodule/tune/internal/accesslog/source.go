package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
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

// never is when the next request of a log was written of which none is left.
const never = math.MaxInt64

// A source is a log: a file, or the standard input.
type source struct {
	name   string
	info   os.FileInfo   // nil if it can be read only once, as the standard input
	spool  *spill        // of what was read of that
	next   int64         // when its next request was written, or never
	nth    int           // how many requests were read
	late   bits          // which of them are left out
	lines  *bufio.Reader // nil unless it is open
	opened []func()      // what closes it
	parser parser

	ahead chan *chunk // that were read
	chunk *chunk      // of head
	head  *Request    // that request; nil before the log is read, and at its end
}

// same reports whether two logs are one file.
func (s *source) same(as *source) bool {
	return s.info != nil && as.info != nil && os.SameFile(s.info, as.info)
}

// open opens the log, and finds out how it is compressed.
func (s *source) open(read *atomic.Int64, options Options) error {
	in := options.Stdin
	if spool := options.spools[s.name]; spool != nil {
		var err error
		if in, err = spool.again(); err != nil {
			return err
		}
	} else if s.name != "-" {
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
	if head, _ := s.lines.Peek(bufferSize); bytes.IndexByte(head, '\r') >= 0 && bytes.IndexByte(head, '\n') < 0 {
		s.lines = bufio.NewReaderSize(returns{s.lines}, bufferSize)
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

// returns ends lines whose end is a carriage return.
type returns struct{ io.Reader }

// Read implements io.Reader.
func (r returns) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	copy(p, bytes.ReplaceAll(p[:n], []byte("\r"), []byte("\n")))
	return n, err
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

// A chunk is what some lines of a log say.
type chunk struct {
	requests                 []Request
	lines, other, unreadable int64
	problems                 []string
	strange                  string // fields of JSON that is no request
	broken                   error  // why the log ends too early, behind these lines
}

// read reads the log to its end, chunk by chunk, until done is closed.
func (s *source) read(done <-chan struct{}) {
	defer close(s.ahead)
	defer s.close()
	number := 0
	for more := true; more; {
		c := new(chunk)
		for size := 0; size < chunkSize && more; {
			line, length, err := s.readLine()
			if more = err == nil; more {
				number++
				s.parse(c, string(line), length, number)
				size += len(line)
			} else if err != io.EOF {
				c.broken = fmt.Errorf("it ends too early after line %d: %w", number, err)
			}
		}
		if !more {
			for _, b := range s.parser.begun { // and never completed
				if v, _ := s.parser.timed(&b.Request, b.At, false); v == request {
					b.File, b.Line = s.name, number
					c.requests = append(c.requests, b.Request)
				}
			}
		}
		select {
		case s.ahead <- c:
		case <-done:
			if s.spool != nil {
				_, _ = io.Copy(io.Discard, s.lines) // the spool gets it
			}
			return
		}
	}
}

// parse adds a line of that length and number to a chunk.
func (s *source) parse(c *chunk, line string, length, number int) {
	c.lines++
	var req Request
	v, why := s.parser.parse(&req, line)
	if length > mostLine {
		v, why = unreadable, fmt.Sprintf("a line of %d bytes: want at most %d", length, mostLine)
	}
	switch v {
	case request:
		req.File, req.Line = s.name, number
		c.requests = append(c.requests, req)
	case other:
		if c.other++; c.strange == "" {
			c.strange = fieldsOf(line)
		}
	case unreadable:
		if c.unreadable++; len(c.problems) < mostProblems {
			where, said := text.Printable(s.name, 200), text.Printable(line[:min(len(line), 400)], 80)
			c.problems = append(c.problems, fmt.Sprintf("%s:%d: %s: %s", where, number, why, said))
		}
	}
}
