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

// A snapshot is a header, a record for each bucket, an end mark with the number of
// records, and a checksum of all that. Numbers are little-endian. The header is
//
//	magic, version uint32, written int64
//
// and a record is
//
//	flags uint8, zone uvarint, key uvarint and bytes,
//	level float64, at int64, leak float64, [until int64, step uint8]
//
// Instants are microseconds since 1970 on the wall clock. A zone is its number in
// order of appearance. The first record of a zone has its length and name behind the
// number.
const (
	snapshotMagic   = "throttle snapshot\n"
	snapshotVersion = 2
	snapshotHeader  = len(snapshotMagic) + 4 + 8

	// Flags are the upper bits of slot.zone.
	recordFlags   = 13
	recordShadow  = shadowBit >> recordFlags
	recordBlocked = blockedBit >> recordFlags
	recordDigest  = digestBit >> recordFlags
	recordEnd     = 0xff
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
	record := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion)
	record = binary.LittleEndian.AppendUint64(record, uint64(s.wall()))
	_, _ = buffered.Write(record) // the first error is that of Flush
	var buckets uint64
	var copied shard
	zones := make(map[string]uint64)
	for i := range s.shards {
		s.shards[i].copyTo(&copied)
		now := s.now()
		later := s.wall() - now // writing takes time, so not the wall of the header
		for at, tag := range copied.tags {
			if tag == 0 || copied.slots[at].forget() <= now {
				continue
			}
			record = copied.appendRecord(record[:0], &copied.slots[at], zones, later)
			_, _ = buffered.Write(record)
			buckets++
		}
		runtime.Gosched() // requests come first
	}
	_, _ = buffered.Write(binary.AppendUvarint(append(record[:0], recordEnd), buckets))
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

// appendRecord appends the record of a slot. zones has the numbers of the zones that
// have appeared. later is how far the wall clock is ahead of the store's.
func (sh *shard) appendRecord(record []byte, s *slot, zones map[string]uint64, later leakybucket.Instant) []byte {
	zone, key := sh.name(s)
	record = append(record, byte(s.zone>>recordFlags))
	number, known := zones[zone]
	if !known {
		number = uint64(len(zones))
		zones[zone] = number
	}
	record = binary.AppendUvarint(record, number)
	if !known {
		record = append(binary.AppendUvarint(record, uint64(len(zone))), zone...)
	}
	record = append(binary.AppendUvarint(record, uint64(len(key))), key...)

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
	if err := checkSum(r); err != nil {
		return found, err
	}
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

// checkSum checks the header, and the checksum of all.
func checkSum(r io.ReadSeeker) error {
	size, err := r.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return err
	}
	var header [snapshotHeader]byte
	if _, err := io.ReadFull(r, header[:]); endsEarly(err) {
		return fmt.Errorf("%w: it has %d bytes, and the header alone has %d", ErrBadSnapshot, size, snapshotHeader)
	} else if err != nil {
		return err
	}
	if string(header[:len(snapshotMagic)]) != snapshotMagic {
		return fmt.Errorf("%w: it does not begin as one", ErrBadSnapshot)
	}
	if version := binary.LittleEndian.Uint32(header[len(snapshotMagic):]); version != snapshotVersion {
		return fmt.Errorf("%w: it is of version %d, want %d", ErrBadSnapshot, version, snapshotVersion)
	}
	sum := crc32.New(castagnoli)
	_, _ = sum.Write(header[:]) // never fails
	var want [4]byte
	if _, err := io.CopyN(sum, r, size-int64(len(header)+len(want))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := io.ReadFull(r, want[:]); err != nil || sum.Sum32() != binary.LittleEndian.Uint32(want[:]) {
		return fmt.Errorf("%w: it is cut off or damaged", ErrBadSnapshot)
	}
	return nil
}

// readRecords calls yield with each bucket, and with its state on the wall clock. It
// returns when the snapshot was written. The checksum must have been checked.
func readRecords(r io.ReadSeeker, yield func(*leakybucket.Charge, leakybucket.State)) (written leakybucket.Instant, err error) {
	if _, err := r.Seek(int64(len(snapshotMagic)+4), io.SeekStart); err != nil {
		return 0, err
	}
	d := decoder{r: bufio.NewReaderSize(r, 1<<18)}
	written = leakybucket.Instant(d.word())
	var zones []string
	var buckets uint64
	for d.err == nil {
		flags := d.bytes(1)[0]
		if flags == recordEnd {
			break
		}
		if flags&^(recordShadow|recordBlocked|recordDigest) != 0 {
			d.fail("unknown flags %x", flags)
		}
		number := d.number(len(zones))
		if number == len(zones) {
			zones = append(zones, string(d.bytes(d.number(longestName))))
		}
		key := string(d.bytes(d.number(longestName)))
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
			yield(&leakybucket.Charge{Zone: zones[number], Key: key, Shadow: leakybucket.ShadowIf(flags&recordShadow != 0)}, state)
			buckets++
		}
	}
	if counted := d.number(math.MaxInt); d.err == nil && uint64(counted) != buckets {
		d.fail("%d buckets where %d are counted", buckets, counted)
	}
	return written, d.err
}

// A decoder reads the parts of a record. After an error, what it returns means nothing.
type decoder struct {
	r    *bufio.Reader
	err  error
	text [longestName]byte
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrBadSnapshot, fmt.Sprintf(format, args...))
	}
}

// bytes returns the next n bytes, until the next call.
func (d *decoder) bytes(n int) []byte {
	if _, err := io.ReadFull(d.r, d.text[:n]); err != nil {
		d.fail("it ends in the middle of a bucket: %v", err)
	}
	return d.text[:n]
}

func (d *decoder) word() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

// number returns a number that is no more than most.
func (d *decoder) number(most int) int {
	n, err := binary.ReadUvarint(d.r)
	if err != nil || n > uint64(most) {
		d.fail("a number of %d where at most %d may be", n, most)
	}
	if d.err != nil {
		return 0
	}
	return int(n)
}

func endsEarly(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
