package memstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"runtime"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A snapshot is a header, a record for each bucket, and a checksum of all that. Numbers are
// little-endian. The header is
//
//	magic, version uint64, written int64
//
// and a record is
//
//	flags uint8, zone and key, each behind its length as a uint16,
//	level float64, at int64, leak float64, [until int64, step uint8]
//
// Instants are microseconds since 1970 on the wall clock.
const (
	snapshotMagic   = "throttle snapshot\n"
	snapshotVersion = 3

	// Flags are the upper bits of slot.zone.
	recordFlags   = 13
	recordShadow  = shadowBit >> recordFlags
	recordBlocked = blockedBit >> recordFlags
	recordDigest  = digestBit >> recordFlags
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrBadSnapshot is wrapped by errors of [Store.ReadSnapshot] about what it reads:
// it is no snapshot, it is damaged, or another version wrote it.
var ErrBadSnapshot = errors.New("no usable snapshot")

// Changes returns a number that grows with every bucket written or dropped.
func (s *Store) Changes() (n uint64) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += sh.changes
		sh.mu.Unlock()
	}
	return n
}

// WriteSnapshot writes all buckets, for [Store.ReadSnapshot] of another process. It
// copies a shard at a time, so takes wait no longer than that. Each shard is as it
// was at one instant, the store as a whole is not.
func (s *Store) WriteSnapshot(w io.Writer) error {
	sum := crc32.New(castagnoli)
	buffered := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<18)
	record := binary.LittleEndian.AppendUint64([]byte(snapshotMagic), snapshotVersion)
	record = binary.LittleEndian.AppendUint64(record, uint64(s.wall()))
	_, _ = buffered.Write(record) // the first error is that of Flush
	var copied shard
	for i := range s.shards {
		s.shards[i].copyTo(&copied)
		now := s.now()
		later := s.wall() - now // writing takes time, so not the wall of the header
		for at, tag := range copied.tags {
			if tag == 0 || copied.slots[at].forget() <= now {
				continue
			}
			record = copied.appendRecord(record[:0], &copied.slots[at], later)
			_, _ = buffered.Write(record)
		}
		runtime.Gosched() // requests come first
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	_, err := w.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

// copyTo copies all buckets of the shard, with their names.
func (sh *shard) copyTo(to *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	to.tags = append(to.tags[:0], sh.tags...)
	to.slots = append(to.slots[:0], sh.slots...)
	to.zones = append(to.zones[:0], sh.zones...)
	to.names = append(to.names[:0], sh.names...)
}

// appendRecord appends the record of a slot. later is how far the wall clock is ahead of the
// store's.
func (sh *shard) appendRecord(record []byte, s *slot, later leakybucket.Instant) []byte {
	zone, key := sh.name(s)
	record = append(record, byte(s.zone>>recordFlags))
	record = append(binary.LittleEndian.AppendUint16(record, uint16(len(zone))), zone...)
	record = append(binary.LittleEndian.AppendUint16(record, uint16(len(key))), key...)

	var state leakybucket.State
	s.state(&state)
	record = binary.LittleEndian.AppendUint64(record, math.Float64bits(state.Level))
	record = binary.LittleEndian.AppendUint64(record, uint64(state.At+later))
	record = binary.LittleEndian.AppendUint64(record, math.Float64bits(state.Leak))
	if s.zone&blockedBit != 0 {
		until := state.BlockedUntil
		if until != 0 { // which means none
			until += later
		}
		record = append(binary.LittleEndian.AppendUint64(record, uint64(until)), state.Step)
	}
	return record
}

// Restored says what [Store.ReadSnapshot] has found.
type Restored struct {
	Buckets int       // restored, without those that are empty by now
	Dropped int       // of zones that are not known
	Written time.Time // when the snapshot was written, by its writer's clock

	// Ahead is how far Written lies in the future by this process's clock. If it is
	// not zero, all instants were moved back by as much.
	Ahead time.Duration
}

// ReadSnapshot adds the buckets that [Store.WriteSnapshot] wrote, as
// [leakybucket.Charge.Restore] restores them. A bucket that is kept already gets the
// restored level on top of its own.
//
// For each bucket, limits is called with a charge that names it and with its state on
// this store's clock. It sets Limit, Debt and Block of the charge, or returns false to
// drop the bucket.
//
// Nothing is restored unless the whole snapshot can be read. See [ErrBadSnapshot].
func (s *Store) ReadSnapshot(r io.ReadSeeker, limits func(*leakybucket.Charge, leakybucket.State) bool) (found Restored, err error) {
	written, err := readRecords(r, func(*leakybucket.Charge, leakybucket.State) {})
	if err != nil {
		return found, err
	}
	wall := s.wall()
	earlier := wall - s.now()
	found.Written = time.UnixMicro(int64(written))
	if written > wall {
		found.Ahead = written.Sub(wall)
		earlier += written - wall
	}
	_, err = readRecords(r, func(c *leakybucket.Charge, state leakybucket.State) {
		state.At -= earlier
		if state.BlockedUntil != 0 {
			state.BlockedUntil -= earlier
		}
		if !limits(c, state) || checkName(c) != nil {
			found.Dropped++
			return
		}
		now := s.now()
		if restored := c.Restore(state, now); c.Expiry(&restored) > now {
			s.update(c, func(state leakybucket.State, kept bool, now leakybucket.Instant) (leakybucket.State, bool) {
				if !kept {
					return restored, true
				}
				state = c.Limit.Settle(state, c.Limit.Level(restored, now), c.Debt, now, now)
				if restored.BlockedUntil > state.BlockedUntil {
					state.BlockedUntil, state.Step = restored.BlockedUntil, restored.Step
				}
				return state, true
			})
			found.Buckets++
		}
	})
	return found, err
}

// wall returns the time on the wall clock. Unlike the store's clock, it may have been
// set since the process began.
func (s *Store) wall() leakybucket.Instant {
	if s.clock != nil {
		return s.clock()
	}
	return leakybucket.Instant(time.Now().UnixMicro())
}

// readRecords calls yield with each bucket, and with its state on the wall clock. It
// returns when the snapshot was written. After an error, nothing that yield was given may be
// used.
func readRecords(r io.ReadSeeker, yield func(*leakybucket.Charge, leakybucket.State)) (written leakybucket.Instant, err error) {
	size, err := r.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	sum := crc32.New(castagnoli)
	body := io.TeeReader(io.LimitReader(r, size-crc32.Size), sum)
	d := decoder{r: bufio.NewReaderSize(body, 1<<18)}
	if string(d.bytes(len(snapshotMagic))) != snapshotMagic {
		d.fail("it does not begin as one")
	}
	if version := d.word(); version != snapshotVersion {
		d.fail("it is of version %d, want %d", version, snapshotVersion)
	}
	written = leakybucket.Instant(d.word())
	for d.more() {
		d.record(yield)
	}
	var want [crc32.Size]byte
	if _, err := io.ReadFull(r, want[:]); err != nil || sum.Sum32() != binary.LittleEndian.Uint32(want[:]) {
		d.fail("it is damaged")
	}
	return written, d.err
}

// A decoder reads the parts of a snapshot. After an error, what it returns means nothing.
type decoder struct {
	r    *bufio.Reader
	err  error
	read [longestName]byte
}

// more reports whether there is another record.
func (d *decoder) more() bool {
	if d.err != nil {
		return false
	}
	_, err := d.r.Peek(1)
	if err != nil && !errors.Is(err, io.EOF) {
		d.err = err
	}
	return err == nil
}

func (d *decoder) record(yield func(*leakybucket.Charge, leakybucket.State)) {
	flags := d.bytes(1)[0]
	if flags&^(recordShadow|recordBlocked|recordDigest) != 0 {
		d.fail("unknown flags %x", flags)
	}
	zone, key := d.text(), d.text()
	state := leakybucket.State{Level: math.Float64frombits(d.word()), At: leakybucket.Instant(d.word()), Leak: math.Float64frombits(d.word())}
	if flags&recordBlocked != 0 {
		state.BlockedUntil, state.Step = leakybucket.Instant(d.word()), d.bytes(1)[0]
	}
	if flags&recordDigest != 0 {
		if len(key) != digestBytes {
			d.fail("a digest of %d bytes", len(key))
		}
		key = string(spell([]byte(key)))
	}
	if d.err == nil {
		yield(&leakybucket.Charge{Zone: zone, Key: key, Shadow: leakybucket.ShadowIf(flags&recordShadow != 0)}, state)
	}
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrBadSnapshot, fmt.Sprintf(format, args...))
	}
}

// bytes returns the next n bytes, until the next call.
func (d *decoder) bytes(n int) []byte {
	switch _, err := io.ReadFull(d.r, d.read[:n]); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		d.fail("it is cut off")
	case err != nil && d.err == nil:
		d.err = err
	}
	return d.read[:n]
}

func (d *decoder) word() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

func (d *decoder) text() string {
	n := min(longestName, int(binary.LittleEndian.Uint16(d.bytes(2))))
	return string(d.bytes(n))
}
