package body

import (
	"errors"
	"io"
	"net/netip"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// ErrNoRoom is what writing to a [Spool] ends with if no more may be held, and receiving a body
// likewise.
var ErrNoRoom = errors.New("no room for received bodies and responses")

// A Spool is a queue of bytes: in memory until that is as much as it may hold there, or there is
// no room, and then in the file. Its methods must not be called concurrently. Close it.
type Spool struct {
	store    *Store
	client   netip.Prefix
	most     int // bytes of memory
	held     int // of these
	segments []segment
	read     int    // bytes of the first segment
	window   []byte // onto the first segment if that lies in the file; nil before there was one
}

// A segment is a part of the queue, in memory or in a block of the file.
type segment struct {
	piece []byte // nil if it lies in the file
	block block
	size  int // of what lies in the block
}

func (g *segment) len() int { return max(len(g.piece), g.size) }

func (g *segment) room() int {
	if g.piece != nil {
		return cap(g.piece) - len(g.piece)
	}
	return blockSize - g.size
}

// NewSpool returns an empty spool, which counts as its client's, of IPv6 as its /48's, where anybody
// has many clients. It takes no more memory once it holds so many bytes of it.
func (s *Store) NewSpool(client netip.Prefix, memory int) Spool {
	return Spool{store: s, client: key.ClientPrefix(client.Addr(), 32, 48), most: memory}
}

// Write implements io.Writer. Its error is [ErrNoRoom], after as much as there was room for.
func (s *Spool) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if (len(s.segments) == 0 || s.last().room() == 0) && !s.extend(len(p)-n) {
			return n, ErrNoRoom
		}
		last := s.last()
		more := p[n : n+min(len(p)-n, last.room())]
		if last.piece != nil {
			last.piece = append(last.piece, more...)
			n += len(more)
			continue
		}
		written, err := last.block.WriteAt(more, last.block.offset()+int64(last.size))
		last.size += written
		n += written
		if err != nil {
			s.store.fail(err)
			if last.size == 0 {
				s.store.freeBlock(s.client, last.block)
				s.segments = s.segments[:len(s.segments)-1]
			}
			return n, ErrNoRoom
		}
	}
	return n, nil
}

// add appends a piece of memory, which is the spool's then.
func (s *Spool) add(piece []byte) {
	if len(piece) == 0 {
		s.store.freePiece(s.client, piece)
		return
	}
	s.segments = append(s.segments, segment{piece: piece})
}

func (s *Spool) last() *segment { return &s.segments[len(s.segments)-1] }

// extend appends a segment, for so many bytes, if there is room for one.
func (s *Spool) extend(size int) bool {
	if len(s.segments) > 0 {
		size = max(size, 4*cap(s.last().piece))
	}
	if s.held < s.most {
		if piece := s.store.piece(s.client, size); piece != nil {
			s.held += cap(piece)
			s.segments = append(s.segments, segment{piece: piece})
			return true
		}
	}
	block, ok := s.store.block(s.client)
	if ok {
		s.segments = append(s.segments, segment{block: block})
	}
	return ok
}

// Empty reports whether everything that was written has been read.
func (s *Spool) Empty() bool { return len(s.segments) == 0 || s.read == s.segments[0].len() }

// Read implements io.Reader. It returns io.EOF if the spool is empty.
func (s *Spool) Read(p []byte) (n int, err error) {
	if s.Empty() {
		return 0, io.EOF
	}
	n, err = s.peek(p, 0, s.read)
	s.Discard(n)
	return n, err
}

// peek copies bytes of a segment, from an offset on. It never returns io.EOF.
func (s *Spool) peek(p []byte, segment, from int) (int, error) {
	g := &s.segments[segment]
	if g.piece != nil {
		return copy(p, g.piece[from:]), nil
	}
	n, err := g.block.ReadAt(p[:min(len(p), g.size-from)], g.block.offset()+int64(from))
	if errors.Is(err, io.EOF) { // somebody has cut the file
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		s.store.fail(err)
	}
	return n, err
}

// Next returns bytes from the front, none if the spool is empty. Until Discard they stay as they
// are, and may be read while more is written.
func (s *Spool) Next() ([]byte, error) {
	if s.Empty() {
		return nil, nil
	}
	if first := &s.segments[0]; first.piece != nil {
		return first.piece[s.read:], nil
	}
	if s.window == nil {
		if s.window = s.store.piece(s.client, blockSize); s.window == nil {
			s.window = make([]byte, 0, smallPiece) // one for each block of the file at most
		}
	}
	n, err := s.peek(s.window[:cap(s.window)], 0, s.read)
	return s.window[:n], err
}

// Discard removes so many bytes from the front, which [Spool.Next] has returned.
func (s *Spool) Discard(n int) {
	s.read += n
	first := &s.segments[0]
	switch {
	case s.read < first.len():
	case s.most > 0 && first.piece != nil && len(s.segments) == 1: // more may be written
		first.piece, s.read = first.piece[:0], 0
	default:
		s.free()
	}
}

// free gives back the first segment.
func (s *Spool) free() {
	if first := &s.segments[0]; first.piece != nil {
		s.held -= cap(first.piece)
		s.store.freePiece(s.client, first.piece)
	} else {
		s.store.freeBlock(s.client, first.block)
	}
	s.segments[0] = segment{}
	s.segments, s.read = s.segments[1:], 0
}

// Close gives back all that is held.
func (s *Spool) Close() {
	for len(s.segments) > 0 {
		s.free()
	}
	if cap(s.window) == blockSize {
		s.store.freePiece(s.client, s.window)
	}
	s.window, s.segments = nil, nil
}
