package body

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// newStore returns a store whose file must not fail, and which must hold nothing at the end of
// the test.
func newStore(t *testing.T, b Bounds) *Store {
	t.Helper()
	s := NewStore(t.TempDir(), func(err error) { t.Error(err) })
	s.SetBounds(b)
	t.Cleanup(func() { holdsNothing(t, s) })
	return s
}

func holdsNothing(t *testing.T, s *Store) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory.taken != 0 || s.disk.taken != 0 || len(s.memory.clients) != 0 || len(s.disk.clients) != 0 || s.file != nil {
		t.Errorf("got %d bytes of memory and %d of the file left behind for %v and %v, want nothing", s.memory.taken, s.disk.taken, s.memory.clients, s.disk.clients)
	}
}

// client returns the prefix of the n-th client.
func client(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 32)
}

// TestSpool writes and reads at random, as in a bytes.Buffer.
func TestSpool(t *testing.T) {
	for name, memory := range map[string]int{"file": 0, "small memory": 10 << 10, "memory and file": 200 << 10, "memory": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Bounds{Memory: int64(max(memory, 1))})
			random := rand.New(rand.NewPCG(1, uint64(memory)))
			for range 6 {
				spool, want := s.NewSpool(alice, memory), new(bytes.Buffer)
				for range 200 {
					if random.IntN(2) == 0 {
						p := randomPiece(random)
						want.Write(p)
						n, err := spool.Write(p)
						check.Assume(t, n == len(p) && err == nil, "got %d, %v, want all %d bytes written", n, err, len(p))
						continue
					}
					empty := want.Len() == 0
					got := readSome(t, random, &spool)
					check.Assume(t, bytes.Equal(got, want.Next(len(got))) && (len(got) == 0) == empty && spool.Empty() == (want.Len() == 0), "got %d bytes, which are others than were written", len(got))
				}
				if random.IntN(2) == 0 {
					rest, err := io.ReadAll(&spool)
					check.Assume(t, bytes.Equal(rest, want.Bytes()) && err == nil, "got %d bytes, %v, want the last %d", len(rest), err, want.Len())
				}
				spool.Close()
				holdsNothing(t, s)
			}
		})
	}
}

func randomPiece(random *rand.Rand) []byte {
	p := make([]byte, random.IntN(1<<random.IntN(18)))
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	return p
}

// readSome reads in one of the two ways. What Next returns stays what it is while more is written.
func readSome(t *testing.T, random *rand.Rand, spool *Spool) []byte {
	t.Helper()
	if random.IntN(2) == 0 {
		p := make([]byte, 1+random.IntN(200<<10))
		n, err := spool.Read(p)
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		return p[:n]
	}
	p := check.Must(spool.Next())(t)
	if len(p) == 0 {
		return nil
	}
	got := bytes.Clone(p[:1+random.IntN(len(p))])
	spool.Discard(len(got))
	return got
}

// TestMemoryIsUsedAgain, so that a response that comes in pieces costs no garbage.
func TestMemoryIsUsedAgain(t *testing.T) {
	spool, p := newStore(t, Bounds{}).NewSpool(alice, 1), make([]byte, 100)
	defer spool.Close()
	got := testing.AllocsPerRun(100, func() {
		_, _ = spool.Write(p)
		next, _ := spool.Next()
		spool.Discard(len(next))
	})
	check.Equal(t, got, 0, "allocations")
}

func TestNextStaysWhatItIs(t *testing.T) {
	for _, memory := range []int{0, 1 << 20} {
		s := newStore(t, Bounds{})
		spool := s.NewSpool(alice, memory)
		_, _ = spool.Write([]byte("first"))
		next, err := spool.Next()
		for range 40 {
			_, _ = spool.Write(make([]byte, 10<<10))
		}
		check.That(t, string(next) == "first" && err == nil, "got %q, %v after more was written, want what it was", next, err)
		spool.Close()
	}
}

// TestRoomAtRandom holds the law after every step.
func TestRoomAtRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	p, most := new(Shares), int64(1<<20)
	refused := 0
	for range 100_000 {
		c, n := client(random.IntN(10)), 1+random.Int64N(1<<16)
		switch held, free := p.clients[c], most-p.taken; {
		case random.IntN(3) == 0:
			p.Give(c, min(n, held))
		case p.Take(c, n, most):
			check.Assume(t, held+n <= free-n, "got %d more for a client that held %d with %d free", n, held, free)
		default:
			refused++
			check.Assume(t, held+n > free-n, "got no %d for a client that held %d with %d free", n, held, free)
		}
		sum := int64(0)
		for _, held := range p.clients {
			sum += held
		}
		check.Assume(t, sum == p.taken && p.taken < most, "got %d in use of %d, want the sum %d and something free", p.taken, most, sum)
	}
	check.That(t, refused != 0, "got nobody refused")
}

func TestAnIPv6NetworkHoldsNoMoreThanIsFree(t *testing.T) {
	s, held := newStore(t, Bounds{Files: 64 * blockSize}), 0
	for i := range 64 {
		spool := s.NewSpool(netip.MustParsePrefix(fmt.Sprintf("2001:db8:0:%d::/64", i)), 0)
		defer spool.Close()
		n, _ := spool.Write(make([]byte, 64*blockSize))
		held += n
	}
	check.Equal(t, held, 32*blockSize, "bytes that the prefixes of a /48 hold together")
}

func TestTheFileExistsWhileSomethingLiesInIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	s := NewStore(dir, func(err error) { t.Error(err) })
	for range 2 {
		a, b := s.NewSpool(alice, 0), s.NewSpool(bob, 0)
		_, err := os.Stat(dir)
		check.That(t, s.file == nil, "got a file, %v, before it is needed", err)
		_, _ = a.Write(make([]byte, 3*blockSize))
		_, _ = b.Write([]byte("b"))
		if left, err := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 && runtime.GOOS != "windows" || err != nil {
			t.Errorf("got the names %v, %v, want the file without one", left, err)
		}
		opened := s.file
		a.Close()
		got, err := io.ReadAll(&b)
		check.That(t, string(got) == "b" && err == nil && s.file == nil, "got %q, %v, want b, and the file gone after it", got, err)
		_, err = opened.WriteAt([]byte("x"), 0)
		check.That(t, errors.Is(err, fs.ErrClosed), "got %v, want the file closed", err)
		b.Close()
	}
}

func TestAKilledProcessLeavesNoFile(t *testing.T) {
	if dir := os.Getenv("KILLED_WITH_FILE_IN"); dir != "" {
		check.Must(createFile(dir))(t)
		check.OK(t, check.Must(os.FindProcess(os.Getpid()))(t).Kill())
		select {}
	}
	killed := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	dir := t.TempDir()
	killed.Env = append(os.Environ(), "KILLED_WITH_FILE_IN="+dir)
	err := killed.Run()
	left, failed := os.ReadDir(dir)
	check.That(t, err != nil && failed == nil && len(left) == 0, "got %v, and the files %v, %v, want it killed, and none", err, left, failed)
}

// A fullFile is one on a disk that has so much free, and takes no more than that.
type fullFile struct {
	file
	free, took int64
}

func (f *fullFile) Free() (int64, error) { return f.free, nil }

func (f *fullFile) WriteAt(p []byte, at int64) (int, error) {
	if n := max(0, f.took-at); n < int64(len(p)) {
		n, _ := f.file.WriteAt(p[:n], at)
		return n, syscall.ENOSPC
	}
	return f.file.WriteAt(p, at)
}

func TestAFullDisk(t *testing.T) {
	for name, test := range map[string]struct {
		free, took int64
		want       int
		said       string
	}{
		"little free":            {5*blockSize + 100, math.MaxInt64, 5 * blockSize, "0 MiB free"},
		"nothing free":           {100, math.MaxInt64, 0, "0 MiB free"},
		"full while it is used":  {math.MaxInt64, 3*blockSize + 100, 3*blockSize + 100, syscall.ENOSPC.Error()},
		"full from the start on": {math.MaxInt64, 0, 0, syscall.ENOSPC.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			var said []string
			s := NewStore(t.TempDir(), func(err error) { said = append(said, err.Error()) })
			s.create = func(dir string) (file, error) {
				f, err := createFile(dir)
				return &fullFile{file: f, free: test.free, took: test.took}, err
			}
			for range 2 {
				spool := s.NewSpool(alice, 0)
				want := randomBytes(1 << 20)
				n, err := spool.Write([]byte(want))
				check.That(t, n == test.want && errors.Is(err, ErrNoRoom), "got %d, %v, want %d bytes and then no room", n, err, test.want)
				more, err := spool.Write([]byte("more"))
				check.That(t, more == 0 && errors.Is(err, ErrNoRoom), "got %d, %v, want no room", more, err)
				got, err := io.ReadAll(&spool)
				check.That(t, string(got) == want[:n] && err == nil, "got %d bytes, %v, want what was written", len(got), err)
				spool.Close()
				holdsNothing(t, s)
			}
			check.That(t, len(said) == 1 && strings.Contains(said[0], test.said) && strings.Contains(said[0], s.dir), "got told %q, want once with %q and the place", said, test.said)
		})
	}
}

// Root may write everywhere, so a file stands where the folder should.
func TestWithoutAFolderThereIsMemory(t *testing.T) {
	in := filepath.Join(t.TempDir(), "file")
	check.OK(t, os.WriteFile(in, nil, 0o600))
	said := 0
	s := NewStore(filepath.Join(in, "folder"), func(error) { said++ })
	for range 3 {
		spool := s.NewSpool(alice, 1<<20)
		n, err := spool.Write(make([]byte, 2<<20))
		check.That(t, n >= 1<<20 && n <= 1<<20+blockSize && errors.Is(err, ErrNoRoom), "got %d, %v, want what lies in memory", n, err)
		spool.Close()
	}
	check.Equal(t, said, 1, "times it was told")
	holdsNothing(t, s)
}

// A brokenFile cannot be read.
type brokenFile struct{ file }

func (brokenFile) ReadAt([]byte, int64) (int, error) { return 0, syscall.EIO }

// TestStoreIsSafeForConcurrentUse lets spools of a few clients fill and empty a small store.
func TestStoreIsSafeForConcurrentUse(t *testing.T) {
	s := newStore(t, Bounds{Memory: 1 << 20, Files: 4 << 20})
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(3, uint64(n)))
			for range 50 {
				check.NoError(t, fillAndEmpty(s, client(n%3), random))
			}
		})
	}
	all.Wait()
}

func fillAndEmpty(s *Store, client netip.Prefix, random *rand.Rand) error {
	spool, want := s.NewSpool(client, 100<<10), new(bytes.Buffer)
	defer spool.Close()
	for range 10 {
		p := randomPiece(random)
		n, _ := spool.Write(p)
		want.Write(p[:n])
		got := make([]byte, random.IntN(100<<10))
		n, err := spool.Read(got)
		if !bytes.Equal(got[:n], want.Next(n)) || err != nil && err != io.EOF {
			return fmt.Errorf("got %d bytes, %w, which are others than were written", n, err)
		}
	}
	return nil
}
