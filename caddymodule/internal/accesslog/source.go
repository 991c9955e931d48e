package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// mostLine is how long a line may be, in bytes. Caddy refuses requests with larger
	// headers.
	mostLine = 1 << 20

	// firstBuffer is how many bytes are read at once, as long as no line is longer.
	firstBuffer = 64 << 10
)

// A source is a log: a file, or the standard input.
type source struct {
	name   string
	path   string // to open; empty if it is open
	first  int64  // when its first request was written
	order  int
	stream io.Reader
	closer func()
	parser parser

	buf      []byte
	from, to int // what is left of buf
	ended    error
	line     int
	head     *Request // the next request; nil at the end
}

// open opens the file, and finds out how it is compressed.
func (s *source) open(read *atomic.Int64) error {
	file, err := os.Open(s.path)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return &InputError{s.name, err}
	}
	if info, err := file.Stat(); err == nil && info.IsDir() {
		_ = file.Close()
		return &InputError{s.name, errors.New("it is a directory: want log files")}
	}
	s.closer = func() { _ = file.Close() }
	if err := s.unpack(&counted{file, read}); err != nil {
		s.close()
		return err
	}
	return nil
}

// unpack sets what the lines are read from.
func (s *source) unpack(file io.Reader) error {
	buffered := bufio.NewReaderSize(file, firstBuffer)
	magic, err := buffered.Peek(4)
	if err != nil && err != io.EOF {
		return &InputError{s.name, err}
	}
	s.stream, s.ended, s.line, s.from, s.to = buffered, nil, 0, 0, 0
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return &InputError{s.name, fmt.Errorf("gzip: %w", err)}
		}
		s.stream = unzipped
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		unpacked, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return &InputError{s.name, fmt.Errorf("zstd: %w", err)}
		}
		inner := s.closer
		s.stream, s.closer = unpacked, func() { unpacked.Close(); inner() }
	case bytes.HasPrefix(magic, []byte("BZh")):
		return &InputError{s.name, errors.New("it is compressed with bzip2: unpack it, and read it from the standard input with -")}
	case bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X'}):
		return &InputError{s.name, errors.New("it is compressed with xz: unpack it, and read it from the standard input with -")}
	}
	return nil
}

func (s *source) close() {
	if s.closer != nil {
		s.closer()
	}
	s.stream, s.closer, s.buf = nil, nil, nil
}

// readLine returns the next line without its end, which is valid until the next call.
// Of a line that is too long it returns the beginning, and how long it is.
func (s *source) readLine() (line []byte, length int, err error) {
	for searched := 0; ; {
		if i := bytes.IndexByte(s.buf[s.from+searched:s.to], '\n'); i >= 0 {
			end := s.from + searched + i
			line = s.buf[s.from:end]
			s.from = end + 1
			return line, len(line), nil
		}
		searched = s.to - s.from
		switch {
		case s.ended != nil && searched == 0:
			return nil, 0, s.ended
		case s.ended != nil:
			line = s.buf[s.from:s.to]
			s.from = s.to
			return line, len(line), nil
		case searched >= mostLine:
			return s.skipLine()
		}
		s.fill()
	}
}

// fill reads more into the buffer.
func (s *source) fill() {
	if s.from > 0 {
		s.to = copy(s.buf, s.buf[s.from:s.to])
		s.from = 0
	}
	if s.to == len(s.buf) {
		larger := make([]byte, max(firstBuffer, 2*len(s.buf)))
		copy(larger, s.buf)
		s.buf = larger
	}
	n, err := s.stream.Read(s.buf[s.to:])
	s.to += n
	s.ended = err
}

// skipLine skips the rest of a line that fills the buffer.
func (s *source) skipLine() (line []byte, length int, err error) {
	line = bytes.Clone(s.buf[s.from:min(s.to, s.from+firstBuffer)])
	for {
		if i := bytes.IndexByte(s.buf[s.from:s.to], '\n'); i >= 0 {
			s.from += i + 1
			return line, length + i, nil
		}
		length += s.to - s.from
		s.from, s.to = 0, 0
		if s.ended != nil {
			return line, length, nil
		}
		s.fill()
	}
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
