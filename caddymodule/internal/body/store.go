package body

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
)

// blockSize is the size of the blocks of the file, and of the largest pieces of memory. In
// bytes.
const blockSize = 64 << 10

// Bounds are those of received bodies and of responses that wait for their clients. In
// bytes; 0 stands for the default.
type Bounds struct {
	Request int64 // of the body of one request; default 64 MiB
	Memory  int64 // of what lies in memory, of all together; default 64 MiB
	Files   int64 // of what lies in the file, of all together; default 1 GiB
}

// A Store keeps received bodies and responses that wait for their clients: in memory, and
// in a file for what is too long for that. There is one in a process, since the bounds are
// those of the machine. The file is made when it is needed, and exists while something lies
// in it. Where the system allows that it has no name, so that it never outlives the process.
//
// Nobody waits for room: a client prefix may hold no more of the memory, or of the file, than
// is still free. So alone it may hold half, and something is always free. The file may also
// be no longer than what its disk has free. A Store is safe for concurrent use.
type Store struct {
	dir    string
	logf   func(error)
	create func(dir string) (file, error)
	failed sync.Once // the file has, and that was logged

	request atomic.Int64

	memory, disk Shares

	mu     sync.Mutex
	bounds Bounds
	file   file    // nil while no block is held
	length int64   // of the file, in blocks
	unused []int64 // blocks of the file that nobody holds
}

// A file is where blocks lie. It is a variable for tests.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Free returns how many bytes the disk has free.
	Free() (int64, error)
}

// NewStore returns a store whose file lies in a directory, which is made when it is needed.
// If there can be no file, everything stays in memory; logf is told so once.
func NewStore(dir string, logf func(error)) *Store {
	s := &Store{dir: dir, logf: logf, create: createFile}
	s.SetBounds(Bounds{})
	return s
}

// SetBounds sets the bounds. What is held already stays, even if it exceeds them.
func (s *Store) SetBounds(b Bounds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.request.Store(cmp.Or(b.Request, 64<<20))
	s.bounds = Bounds{Memory: cmp.Or(b.Memory, 64<<20), Files: cmp.Or(b.Files, 1<<30)}
}

// Held returns how many bytes are held in memory and in the file now.
func (s *Store) Held() (memory, file int64) { return s.memory.Taken(), s.disk.Taken() }

// Shares divide something among clients, such as the memory, the file, or the places of a queue. They
// outlive configs: each call brings how much there may be. The zero value is ready for use. They are
// safe for concurrent use.
type Shares struct {
	mu      sync.Mutex
	taken   int64
	clients map[netip.Prefix]int64
}

// Taken returns how much all clients hold.
func (s *Shares) Taken() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// Take takes so much of most for a client, unless it held more than is free then.
func (s *Shares) Take(client netip.Prefix, n, most int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[client]+n > most-s.taken-n {
		return false
	}
	if s.clients == nil {
		s.clients = make(map[netip.Prefix]int64)
	}
	s.clients[client] += n
	s.taken += n
	return true
}

// Give gives so much back.
func (s *Shares) Give(client netip.Prefix, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken -= n
	if s.clients[client] -= n; s.clients[client] == 0 {
		delete(s.clients, client)
	}
}

// smallPiece is the size of the smallest of the pieces in which memory is handed out, so that what
// sends little holds little. There are three sizes, each four times the last.
const smallPiece = 4 << 10

// piece returns an empty piece of memory for at least so many bytes, up to a block; nil if
// there is no room. The caller gives it back by freePiece.
func (s *Store) piece(client netip.Prefix, size int) []byte {
	given := smallPiece
	for given < size && given < blockSize {
		given *= 4
	}
	s.mu.Lock()
	most := s.bounds.Memory
	s.mu.Unlock()
	if !s.memory.Take(client, int64(given), most) {
		return nil
	}
	return make([]byte, 0, given)
}

// freePiece gives a piece back. Smaller ones are not the store's.
func (s *Store) freePiece(client netip.Prefix, piece []byte) {
	if cap(piece) >= smallPiece {
		s.memory.Give(client, int64(cap(piece)))
	}
}

// A block is one of the file.
type block struct {
	file
	index int64
}

func (b block) offset() int64 { return b.index * blockSize }

// block returns a block of the file, if there is room for one. The caller gives it back by
// freeBlock.
func (s *Store) block(client netip.Prefix) (b block, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.disk.Take(client, blockSize, s.bounds.Files) {
		return b, false
	}
	if err := s.grow(); err != nil {
		s.fail(err)
		if s.disk.Give(client, blockSize); s.disk.Taken() == 0 && s.file != nil {
			_ = s.file.Close()
			s.file = nil
		}
		return b, false
	}
	last := len(s.unused) - 1
	b = block{file: s.file, index: s.unused[last]}
	s.unused = s.unused[:last]
	return b, true
}

// grow sees to it that there is a file with a block that nobody holds. The caller holds the lock.
func (s *Store) grow() error {
	if s.file == nil {
		f, err := s.create(s.dir)
		if err != nil {
			return err
		}
		s.file = f
	}
	if len(s.unused) > 0 {
		return nil
	}
	free, err := s.file.Free()
	if err != nil {
		return err
	}
	if size := (s.length + 1) * blockSize; size > free {
		return fmt.Errorf("the disk has %d MiB free, and the file would be longer than that", free>>20)
	}
	s.unused = append(s.unused, s.length)
	s.length++
	return nil
}

func (s *Store) freeBlock(client netip.Prefix, b block) {
	s.mu.Lock()
	s.disk.Give(client, blockSize)
	s.unused = append(s.unused, b.index)
	last := s.disk.Taken() == 0
	if last {
		s.file, s.length, s.unused = nil, 0, nil
	}
	s.mu.Unlock()
	if last {
		_ = b.Close() // which takes time if the file is long
	}
}

// fail logs the first error of the file: it cannot be written, such as on a full disk, or read.
func (s *Store) fail(err error) {
	s.failed.Do(func() {
		s.logf(fmt.Errorf("storing request bodies and responses in %s: %w: want a directory that Caddy may write to, with room; what fits stays in memory", s.dir, err))
	})
}

// A diskFile is a file that the system removes when it is closed, or the process is killed.
type diskFile struct{ *os.File }

// deleteOnClose is FILE_FLAG_DELETE_ON_CLOSE of Windows.
const deleteOnClose = 0x04000000

func createFile(dir string) (file, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	flag := os.O_RDWR | os.O_CREATE | os.O_EXCL
	if runtime.GOOS == "windows" { // where files have their names until they are closed
		flag |= deleteOnClose
	}
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("bodies-%x.tmp", rand.Uint64())), flag, 0o600)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name())
	return &diskFile{f}, nil
}
