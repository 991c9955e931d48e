package memstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func snapshotOf(t testing.TB, s *Store) []byte {
	t.Helper()
	var b bytes.Buffer
	check.OK(t, s.WriteSnapshot(&b), "writing a snapshot")
	return b.Bytes()
}

// asBlocking sets the limit and the block of [blocking].
func asBlocking(c *leakybucket.Charge, _ leakybucket.State) bool {
	of := blocking("", 0)
	c.Limit, c.Block = of.Limit, of.Block
	return true
}

// keptBuckets returns the state of every bucket by its name, as of the last write.
func keptBuckets(s *Store) map[string]leakybucket.State {
	kept := make(map[string]leakybucket.State)
	for i := range s.shards {
		sh := &s.shards[i]
		for at := range sh.used() {
			c := sh.charge(at)
			kept[fmt.Sprint(c.Shadow, " ", c.Zone, " ", c.Key)] = sh.slots[at].stateOf()
		}
	}
	return kept
}

var someKeys = []string{
	"", "203.0.113.7", "2001:db8::/64", strings.Repeat("long", 20), "\x00\xff\r\n<script>", "twenty-four-characters-x",
	"@sha256:" + strings.Repeat("0123456789abcdef", 4), "@sha256:" + strings.Repeat("0123456789ABCDEF", 4),
}

// someBuckets returns a store with buckets of all kinds.
func someBuckets(t testing.TB, now *leakybucket.Instant) *Store {
	s := held(New(Options{MaxBuckets: 20_000}), now) // in several shards
	for _, zone := range []string{"zone", "another", ""} {
		for _, shadow := range []bool{false, true} {
			for i, key := range someKeys {
				c := leakybucket.Charge{Zone: zone, Key: key, Shadow: shadow}
				state := leakybucket.State{Level: float64(500 + i), At: *now, Leak: 1}
				s.Put(&c, state)
				c.Key = "blocked " + key
				c.Block = blocking("", 0).Block
				state.BlockedUntil, state.Step = *now+60*second, uint8(i%2)
				s.Put(&c, state)
			}
		}
	}
	check.Need(t, buckets(s), 3*2*2*len(someKeys), "buckets")
	return s
}

func TestASnapshotRestoresAllBuckets(t *testing.T) {
	now := 1000 * second
	from := someBuckets(t, &now)
	want := keptBuckets(from)
	saved := snapshotOf(t, from)
	to := held(New(Options{MaxBuckets: 5000}), &now)
	found, err := to.ReadSnapshot(saved, asBlocking)
	if err != nil || found.Buckets != len(want) || found.Dropped != 0 || !found.Written.Equal(time.UnixMicro(int64(now))) {
		t.Errorf("reading: got %+v and error %v, want %d buckets written now", found, err, len(want))
	}
	mustBeSound(t, to)
	got := keptBuckets(to)
	for name, state := range want {
		check.Equal(t, got[name], state, "%q", name)
	}
	check.Equal(t, len(got), len(want), "buckets")
}

// A slowWriter takes ten seconds for each write.
type slowWriter struct {
	bytes.Buffer
	now *leakybucket.Instant
}

func (w *slowWriter) Write(p []byte) (int, error) {
	*w.now += 10 * second
	return w.Buffer.Write(p)
}

func TestASlowDiskLetsNothingLeakFromASnapshot(t *testing.T) {
	now := 1000 * second
	from := held(New(Options{MaxBuckets: 20_000}), &now)
	for i := range 15_000 {
		c := blocking(fmt.Sprint(i), 0)
		from.Put(&c, leakybucket.State{Level: 900, At: now, Leak: 1, BlockedUntil: now + 600*second, Step: 1})
	}
	began, want := now, keptBuckets(from)
	saved := slowWriter{now: &now}
	check.OK(t, from.WriteSnapshot(&saved))
	check.Assume(t, now >= began+30*second, "writing took %v, want it to be slow", now.Sub(began))
	to := held(New(Options{MaxBuckets: 20_000}), &now)
	check.Must(to.ReadSnapshot(saved.Bytes(), asBlocking))(t)
	wrong := 0
	for name, got := range keptBuckets(to) {
		if (leakybucket.Limit{}).Level(got, now) != 900-now.Sub(began).Seconds() || got.BlockedUntil != want[name].BlockedUntil {
			wrong++
		}
	}
	kept := buckets(to)
	check.That(t, wrong == 0 && kept == len(want), "got %d buckets, %d of them with another level or block, want %d as in the store that wrote them", kept, wrong, len(want))
}

func TestBucketsThatAreInUseAlreadyGetTheRestoredLevelOnTop(t *testing.T) {
	now := 1000 * second
	from := held(New(Options{}), &now)
	mustTake(t, from, charge("a", 300), charge("b", 900))
	block(t, from, blocking("c", 1))
	saved := snapshotOf(t, from)
	to := held(New(Options{}), &now)
	mustTake(t, to, charge("a", 200), charge("b", 200), charge("c", 1))
	check.Must(to.ReadSnapshot(saved, asBlocking))(t)
	for key, want := range map[string]float64{"a": 500, "b": 1000} {
		check.Equal(t, level(t, to, key), want, "level of %s", key)
	}
	d := take(t, to, blocking("c", 1))[0]
	check.That(t, !d.Began && d.BlockedUntil == now+60*second, "c: got %+v, want it blocked for a minute", d)
}

func TestASnapshotFromTheFutureCountsAsWrittenNow(t *testing.T) {
	now := 1_000_000 * second
	from := held(New(Options{}), &now)
	mustTake(t, from, charge("a", 300))
	now += 10 * second
	block(t, from, blocking("b", 1))
	saved := snapshotOf(t, from)
	now -= 500_000 * second
	to := held(New(Options{}), &now)
	found, err := to.ReadSnapshot(saved, asBlocking)
	check.Assume(t, err == nil && found.Buckets == 2, "reading: got %+v and error %v, want 2 buckets from 500,000 s ahead", found, err)
	check.Equal(t, level(t, to, "a"), 290, "level, want 290, as when it was written")
	check.Equal(t, take(t, to, blocking("b", 1))[0].BlockedUntil, now+60*second, "the end of a block")
}

func TestBucketsOfUnknownZonesAreDropped(t *testing.T) {
	now := 1000 * second
	saved := snapshotOf(t, someBuckets(t, &now))
	to := held(New(Options{}), &now)
	found, err := to.ReadSnapshot(saved, func(c *leakybucket.Charge, s leakybucket.State) bool {
		return c.Zone == "zone" && asBlocking(c, s)
	})
	if want := 4 * len(someKeys); err != nil || found.Buckets != want || found.Dropped != 2*want || to.Buckets()["zone"] != want || buckets(to) != want {
		t.Errorf("got %+v and error %v, want %d buckets restored and %d dropped", found, err, want, 2*want)
	}
}

// mustRefuse reads a snapshot that is no good.
func mustRefuse(t *testing.T, what string, saved []byte) (why string) {
	t.Helper()
	s := New(Options{MaxBuckets: 100})
	_, err := s.ReadSnapshot(saved, asBlocking)
	check.Assume(t, errors.Is(err, ErrBadSnapshot) && buckets(s) == 0, "%s: got error %v and %d buckets, want it refused as no usable snapshot", what, err, buckets(s))
	return err.Error()
}

func TestASnapshotWithAFlippedBitIsRefused(t *testing.T) {
	now := 1000 * second
	saved := snapshotOf(t, someBuckets(t, &now))
	for i := range saved {
		for bit := range 8 {
			saved[i] ^= 1 << bit
			mustRefuse(t, fmt.Sprintf("bit %d of byte %d flipped", bit, i), saved)
			saved[i] ^= 1 << bit
		}
	}
}

func TestASnapshotOfAnotherVersionIsRefusedByName(t *testing.T) {
	now := 1000 * second
	saved := snapshotOf(t, someBuckets(t, &now))
	binary.LittleEndian.PutUint64(saved[len(snapshotMagic):], 7)
	for what, want := range map[string]string{
		string(signed(saved)):   "no usable snapshot: it is of version 7, want 4",
		strings.Repeat("x", 99): "no usable snapshot: it does not begin as one",
		"":                      "no usable snapshot: it is cut off",
	} {
		check.Equal(t, mustRefuse(t, want, []byte(what)), want)
	}
}

// signed returns a snapshot with the right checksum.
func signed(saved []byte) []byte {
	saved = bytes.Clone(saved)
	if body := len(saved) - 4; body >= 0 {
		binary.LittleEndian.PutUint32(saved[body:], crc32.Checksum(saved[:body], castagnoli))
	}
	return saved
}

// The checksum is put right, so that the fuzzer gets behind it.
func FuzzReadSnapshot(f *testing.F) {
	now := 1000 * second
	saved := snapshotOf(f, someBuckets(f, &now))
	f.Add(saved)
	header := saved[:len(snapshotMagic)+16]
	f.Add(header)
	f.Add(saved[:len(header)+200])
	f.Add(snapshotOf(f, New(Options{})))
	f.Add(append(bytes.Clone(header), 4, 0, 0xff, 0xff, 1))
	f.Fuzz(func(t *testing.T, saved []byte) {
		s := held(New(Options{MaxBuckets: 100}), &now)
		found, err := s.ReadSnapshot(signed(saved), asBlocking)
		if err != nil && (!errors.Is(err, ErrBadSnapshot) || buckets(s) != 0) {
			t.Fatalf("got error %v and %d buckets, want them of a snapshot that is refused", err, buckets(s))
		}
		mustBeSound(t, s)
		for name, state := range keptBuckets(s) {
			check.Assume(t, state.Level >= 0 && state.Level <= 1000 && state.At == now && state.BlockedUntil <= now+3600*second && state.Step <= 1, "%q: got %+v, want it within the limit", name, state)
		}
		if again := snapshotOf(t, s); found.Buckets > 0 {
			to := held(New(Options{MaxBuckets: 100}), &now)
			_, err := to.ReadSnapshot(again, asBlocking)
			check.Assume(t, err == nil, "reading what was restored: got error %v", err)
		}
	})
}

func TestChangesAreSeen(t *testing.T) {
	now := second
	s := held(New(Options{MaxBuckets: 10_000}), &now)
	last := s.Changes()
	for _, step := range []struct {
		what    string
		do      func()
		changes bool
	}{
		{"a pour", func() { mustTake(t, s, charge("a", 1)) }, true},
		{"a refusal", func() { take(t, s, charge("a", 5000)) }, false},
		{"a question", func() { s.State(&leakybucket.Charge{Zone: "zone", Key: "a"}) }, false},
		{"a snapshot", func() { snapshotOf(t, s) }, false},
		{"a block", func() { block(t, s, blocking("b", 1)) }, true},
		{"a reset", func() { reset(t, s, charge("a", 1)) }, true},
		{"another reset", func() { reset(t, s, charge("a", 1)) }, false},
	} {
		step.do()
		got := s.Changes()
		check.That(t, (got != last) == step.changes, "%s: got %d changes after %d, want it to count as a change: %v", step.what, got, last, step.changes)
		last = s.Changes()
	}
}
