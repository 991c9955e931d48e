package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

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
	opened []func()      // what closes it
	parser parser
	line   int
	head   *Request // the next request; nil at the end
}

// open opens the log, and finds out how it is compressed.
func (s *source) open(read *int64, stdin io.Reader) error {
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
	s.lines, s.line = packed, 0
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
	n *int64
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	*c.n += int64(n)
	return n, err
}
