package memstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"runtime"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// A snapshot is a header, a record for each bucket with its zone and key behind it, and a
// checksum of all that. Numbers are little-endian. Instants are microseconds since 1970 on
// the wall clock.
const (
	snapshotMagic   = "throttle snapshot\n"
	snapshotVersion = 4 // of the header, the record and leakybucket.State
)

type snapshotHeader struct {
	Magic   [len(snapshotMagic)]byte
	Version uint64
	Written leakybucket.Instant
}

type snapshotRecord struct {
	Zone, Key uint16 // lengths
	Shadow    bool
	State     leakybucket.State
}

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
	head := snapshotHeader{[len(snapshotMagic)]byte([]byte(snapshotMagic)), snapshotVersion, s.wall()}
	_ = binary.Write(buffered, binary.LittleEndian, &head) // the first error is that of Flush
	var copied shard
	var record []byte
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
	zone, key := sh.spelled(s)
	r := snapshotRecord{Zone: uint16(len(zone)), Key: uint16(len(key)), Shadow: s.zone&shadowBit != 0}
	s.state(&r.State)
	r.State.At += later
	if r.State.BlockedUntil != 0 { // which means none
		r.State.BlockedUntil += later
	}
	record, _ = binary.Append(record, binary.LittleEndian, &r) // fails for no type that it knows
	return append(append(record, zone...), key...)
}

// Restored says what [Store.ReadSnapshot] has found.
type Restored struct {
	Buckets int       // restored, without those that are empty by now
	Dropped int       // of zones that are not known
	Written time.Time // when the snapshot was written, by its writer's clock
}

// ReadSnapshot adds the buckets that [Store.WriteSnapshot] wrote, as
// [store.Restore] restores them. A bucket that is kept already gets the
// restored level on top of its own.
//
// For each bucket, limits is called with a charge that names it and with its state on
// this store's clock. It sets Limit, Debt and Block of the charge, or returns false to
// drop the bucket.
//
// Nothing is restored unless the whole snapshot can be read. See [ErrBadSnapshot].
func (s *Store) ReadSnapshot(saved []byte, limits func(*leakybucket.Charge, leakybucket.State) bool) (found Restored, err error) {
	written, records, err := openSnapshot(saved)
	if err == nil {
		err = readRecords(records, func(*leakybucket.Charge, leakybucket.State) {})
	}
	if err != nil {
		return found, err
	}
	wall := s.wall()
	earlier := max(wall, written) - s.now() // if the writer's clock was ahead, so are all its instants
	found.Written = time.UnixMicro(int64(written))
	return found, readRecords(records, func(c *leakybucket.Charge, state leakybucket.State) {
		state.At -= earlier
		if state.BlockedUntil != 0 {
			state.BlockedUntil -= earlier
		}
		if !limits(c, state) || tooLong(c.Zone, c.Key) {
			found.Dropped++
			return
		}
		now := s.now()
		if restored := store.Restore(c, state, now); store.Expiry(c, &restored) > now {
			s.update(c, 0, func(state leakybucket.State, kept bool, now leakybucket.Instant) (leakybucket.State, bool) {
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
}

// wall returns the time on the wall clock. Unlike the store's clock, it may have been
// set since the process began.
func (s *Store) wall() leakybucket.Instant {
	if s.clock != nil {
		return s.clock()
	}
	return leakybucket.Instant(time.Now().UnixMicro())
}

// openSnapshot checks all but the records, and returns when the snapshot was written.
func openSnapshot(saved []byte) (written leakybucket.Instant, records []byte, err error) {
	var head snapshotHeader
	begin, err := binary.Decode(saved, binary.LittleEndian, &head)
	end := len(saved) - crc32.Size
	switch {
	case err != nil || begin > end:
		return 0, nil, fmt.Errorf("%w: it is cut off", ErrBadSnapshot)
	case string(head.Magic[:]) != snapshotMagic:
		return 0, nil, fmt.Errorf("%w: it does not begin as one", ErrBadSnapshot)
	case head.Version != snapshotVersion:
		return 0, nil, fmt.Errorf("%w: it is of version %d, want %d", ErrBadSnapshot, head.Version, snapshotVersion)
	case crc32.Checksum(saved[:end], castagnoli) != binary.LittleEndian.Uint32(saved[end:]):
		return 0, nil, fmt.Errorf("%w: it is damaged", ErrBadSnapshot)
	}
	return head.Written, saved[begin:end], nil
}

// readRecords calls yield with each bucket, and with its state on the wall clock.
func readRecords(records []byte, yield func(*leakybucket.Charge, leakybucket.State)) error {
	for len(records) > 0 {
		var r snapshotRecord
		n, err := binary.Decode(records, binary.LittleEndian, &r)
		zone := n + int(r.Zone)
		next := zone + int(r.Key)
		if err != nil || next > len(records) {
			return fmt.Errorf("%w: its last bucket is cut off", ErrBadSnapshot)
		}
		yield(&leakybucket.Charge{
			Zone: string(records[n:zone]), Key: string(records[zone:next]), Shadow: r.Shadow,
		}, r.State)
		records = records[next:]
	}
	return nil
}
