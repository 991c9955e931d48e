package survey

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A charge is one request of a key.
type charge struct {
	at   leakybucket.Instant
	cost float64       // in units
	took time.Duration // to serve; negative if that is not known
	key  int32
}

// mostBuffered is how many charges are kept in memory.
const mostBuffered = 1 << 17

// A recording keeps charges in whatever order they come, and gives them back in that of
// time. Above mostBuffered, they go to a temporary file, as runs that are in order, in
// some twelve bytes each.
type recording struct {
	buffer []charge
	file   *os.File // nil until the buffer was full
	runs   []run
	failed atomic.Pointer[error] // the first error of the file; what is read after it is not complete
}

// A run is a part of the file with charges in order. While it is read, next is the first
// that is left.
type run struct {
	from, size int64 // in the file
	left       int   // charges
	in         *bufio.Reader
	next       charge
}

func byTime(a, b charge) int { return cmp.Compare(a.at, b.at) }

// add records a charge.
func (r *recording) add(c charge) {
	if r.buffer = append(r.buffer, c); len(r.buffer) == mostBuffered {
		r.spill()
	}
}

// sort puts the charges in order. After it, each may be called by several goroutines.
func (r *recording) sort() {
	if r.file != nil && len(r.buffer) > 0 {
		r.spill()
	}
	slices.SortStableFunc(r.buffer, byTime)
}

// check notes the first error of the file, and reports whether there was one.
func (r *recording) check(err error) (failed bool) {
	if err != nil {
		err = fmt.Errorf("keeping the charges in a temporary file: %w", err)
		r.failed.CompareAndSwap(nil, &err)
	}
	return r.failed.Load() != nil
}

// spill writes the buffer to the file.
func (r *recording) spill() {
	slices.SortStableFunc(r.buffer, byTime)
	if r.file == nil {
		var err error
		if r.file, err = os.CreateTemp("", "throttle-recommend-*"); r.check(err) {
			return
		}
	}
	var out []byte
	last := leakybucket.Instant(0)
	for _, c := range r.buffer {
		// The last bits of most costs are zeros.
		cost := bits.ReverseBytes64(math.Float64bits(c.cost))
		for _, number := range [...]uint64{uint64(c.key), uint64(c.at - last), cost, uint64(max(c.took, -1) + 1)} {
			out = binary.AppendUvarint(out, number)
		}
		last = c.at
	}
	from := int64(0)
	if n := len(r.runs); n > 0 {
		from = r.runs[n-1].from + r.runs[n-1].size
	}
	r.runs = append(r.runs, run{from: from, size: int64(len(out)), left: len(r.buffer)})
	r.buffer = r.buffer[:0]
	_, err := r.file.Write(out)
	r.check(err)
}

// each calls f with every charge, in order.
func (r *recording) each(f func(charge)) {
	for _, c := range r.buffer {
		f(c)
	}
	open := slices.Clone(r.runs)
	for i := range open {
		open[i].in = bufio.NewReaderSize(io.NewSectionReader(r.file, open[i].from, open[i].size), runBuffer)
		if r.check(open[i].advance()) {
			return
		}
	}
	slices.SortFunc(open, byNext)
	for len(open) > 0 {
		f(open[0].next)
		if open[0].left == 0 {
			open = open[1:]
			continue
		}
		if r.check(open[0].advance()) {
			return
		}
		if later := open[0]; len(open) > 1 && byNext(later, open[1]) > 0 { // rarely: logs are in order
			i, _ := slices.BinarySearchFunc(open[1:], later, byNext)
			copy(open, open[1:i+1])
			open[i] = later
		}
	}
}

// byNext compares runs by what is left. Of charges at once, those come first that were
// recorded first.
func byNext(a, b run) int { return cmp.Or(byTime(a.next, b.next), cmp.Compare(a.from, b.from)) }

const (
	runBuffer = 16 << 10 // bytes
	mostBytes = 4 * binary.MaxVarintLen64
)

// advance reads the next charge.
func (r *run) advance() error {
	bytes, err := r.in.Peek(mostBytes)
	if len(bytes) == 0 || err != nil && err != io.EOF {
		return cmp.Or(err, io.ErrUnexpectedEOF)
	}
	used := 0
	number := func() uint64 {
		v, n := binary.Uvarint(bytes[used:])
		used += n
		return v
	}
	r.next.key = int32(number())
	r.next.at += leakybucket.Instant(number())
	r.next.cost = math.Float64frombits(bits.ReverseBytes64(number()))
	r.next.took = time.Duration(number()) - 1
	_, _ = r.in.Discard(used) // which was peeked
	r.left--
	return nil
}

// close removes the temporary file, and returns what has failed.
func (r *recording) close() error {
	if r.file != nil {
		_ = r.file.Close()
		_ = os.Remove(r.file.Name())
	}
	if failed := r.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}
