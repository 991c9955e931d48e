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

	// bufferSize is how many bytes are read at once.
	bufferSize = 64 << 10
)

// A source is a log: a file, or the standard input.
type source struct {
	name   string
	first  int64         // when its first request was written
	lines  *bufio.Reader // nil unless it is open
	closer func()
	parser parser
	line   int
	head   *Request // the next request; nil at the end
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
			return &InputError{s.name, err}
		}
		s.closer = func() { _ = file.Close() }
		if info, err := file.Stat(); err == nil && info.IsDir() {
			return &InputError{s.name, errors.New("it is a directory: want log files")}
		}
		in = file
	}
	return s.unpack(&counted{in, read})
}

// unpack sets what the lines are read from.
func (s *source) unpack(file io.Reader) error {
	buffered := bufio.NewReaderSize(file, bufferSize)
	magic, err := buffered.Peek(4)
	if err != nil && err != io.EOF {
		return &InputError{s.name, err}
	}
	s.lines, s.line = buffered, 0
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return &InputError{s.name, fmt.Errorf("gzip: %w", err)}
		}
		s.lines = bufio.NewReaderSize(unzipped, bufferSize)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		unpacked, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return &InputError{s.name, fmt.Errorf("zstd: %w", err)}
		}
		inner := s.closer
		s.lines, s.closer = bufio.NewReaderSize(unpacked, bufferSize), func() {
			unpacked.Close()
			if inner != nil {
				inner()
			}
		}
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
	s.lines, s.closer = nil, nil
}

// readLine returns the next line without its end, which is valid until the next call.
// Of a line that is too long it returns the beginning, and how long it is.
func (s *source) readLine() (line []byte, length int, err error) {
	var long []byte // what was read of a line that is longer than the buffer
	for {
		line, err := s.lines.ReadSlice('\n')
		length += len(line)
		if full := errors.Is(err, bufio.ErrBufferFull); full || long != nil {
			if len(long) < mostLine {
				long = append(long, line...)
			}
			if full {
				continue
			}
			line = long
		}
		switch {
		case length == 0:
			return nil, 0, err
		case err != nil:
			return line, length, nil // the next call returns the error
		}
		length--
		return line[:min(len(line), length)], length, nil
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
