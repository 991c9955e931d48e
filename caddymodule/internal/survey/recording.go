package survey

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// spillAfter is how many bytes of a recording are kept in memory.
const spillAfter = 16 << 20

// A recording keeps charges in the order in which they came, in some six bytes each.
// The first megabytes are kept in memory, the rest in a temporary file.
type recording struct {
	buffer []byte
	file   *os.File // nil until the buffer was full
	last   leakybucket.Instant
	n      int
}

// add appends a charge. An even first number says that the cost is 1.
func (r *recording) add(key int, at leakybucket.Instant, cost float64) error {
	tagged := uint64(key) << 1
	if cost != 1 {
		tagged |= 1
	}
	r.buffer = binary.AppendUvarint(r.buffer, tagged)
	r.buffer = binary.AppendVarint(r.buffer, int64(at-r.last))
	if cost != 1 {
		r.buffer = binary.LittleEndian.AppendUint64(r.buffer, math.Float64bits(cost))
	}
	r.last = at
	r.n++
	if len(r.buffer) < spillAfter {
		return nil
	}
	return r.spill()
}

func (r *recording) spill() error {
	if r.file == nil {
		f, err := os.CreateTemp("", "throttle-replay-*")
		if err != nil {
			return fmt.Errorf("creating a file for the charges: %w", err)
		}
		r.file = f
	}
	if _, err := r.file.Write(r.buffer); err != nil {
		return fmt.Errorf("writing charges to a file: %w", err)
	}
	r.buffer = r.buffer[:0]
	return nil
}

// each calls f with every charge, in order.
func (r *recording) each(f func(key int, at leakybucket.Instant, cost float64)) error {
	var all io.Reader = bytes.NewReader(r.buffer)
	if r.file != nil {
		size, err := r.file.Seek(0, io.SeekEnd)
		if err != nil {
			return fmt.Errorf("reading charges from a file: %w", err)
		}
		all = io.MultiReader(io.NewSectionReader(r.file, 0, size), all)
	}
	in := bufio.NewReaderSize(all, 1<<16)
	at := leakybucket.Instant(0)
	for range r.n {
		tagged, err := binary.ReadUvarint(in)
		later, cut := binary.ReadVarint(in)
		cost := 1.0
		if cut == nil && tagged&1 == 1 {
			cut = binary.Read(in, binary.LittleEndian, &cost)
		}
		if err = cmp.Or(err, cut); err != nil {
			return fmt.Errorf("reading charges from a file: %w", err)
		}
		at += leakybucket.Instant(later)
		f(int(tagged>>1), at, cost)
	}
	return nil
}

// close removes the temporary file.
func (r *recording) close() error {
	if r.file == nil {
		return nil
	}
	_ = r.file.Close()
	return os.Remove(r.file.Name())
}
