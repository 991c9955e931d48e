package body

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

var (
	alice = netip.MustParsePrefix("203.0.113.1/32")
	bob   = netip.MustParsePrefix("203.0.113.2/32")
)

const mib = 1 << 20

func wantUnused(t testing.TB, m *Memory) {
	t.Helper()
	if n := m.Used(); n != 0 {
		t.Errorf("got %d bytes in use when all is over, want none", n)
	}
}

// A mute body sends nothing until it is closed.
type mute struct{ closed chan struct{} }

func (m mute) Read([]byte) (int, error) {
	<-m.closed
	return 0, io.ErrUnexpectedEOF
}

func (m mute) Close() error { return nil }

// TestSilentBodiesHoldLittle, whether or not they say how long they will be. Before, each
// held 72 KiB.
func TestSilentBodiesHoldLittle(t *testing.T) {
	const requests = 2000
	for _, length := range []int64{-1, kib64, 10} {
		synctest.Test(t, func(t *testing.T) {
			memory, end := NewMemory(64*mib), make(chan struct{})
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var all sync.WaitGroup
			for range requests {
				r := httptest.NewRequest("POST", "/", mute{end})
				r.ContentLength = length
				all.Go(func() {
					reader, _ := memory.Look(r, alice, kib64)
					<-end
					<-reader.done
					reader.End(httptest.NewRecorder())
				})
			}
			synctest.Wait()
			runtime.GC()
			runtime.ReadMemStats(&after)
			each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / requests
			t.Logf("length %d: %d bytes for each silent body", length, each)
			if each > 6000 {
				t.Errorf("length %d: got %d bytes for each silent body, want at most 6000", length, each)
			}
			close(end)
			all.Wait()
			wantUnused(t, memory)
		})
	}
}

func TestAClientHasATenthOfTheMemory(t *testing.T) {
	memory := NewMemory(10 * kib64)
	var first, second, other holding
	first.memory, second.memory, other.memory = memory, memory, memory
	first.client, second.client, other.client = alice, alice, bob
	for _, step := range []struct {
		holding *holding
		bytes   int64
		want    bool
	}{
		{&first, kib64 - 1, true},
		{&second, 2, false},
		{&other, kib64 + 1, false},
		{&other, kib64, true},
		{&second, 1, true},
	} {
		if got := step.holding.take(step.bytes); got != step.want {
			t.Errorf("taking %d: got %v, want %v", step.bytes, got, step.want)
		}
	}
	first.give(1)
	if !second.take(1) || memory.Used() != 2*kib64 {
		t.Errorf("got %d bytes in use, want what was given back taken", memory.Used())
	}
	first.end()
	if first.take(1) {
		t.Error("got more for a body that has ended, want nothing")
	}
	first.give(1)
	second.end()
	other.end()
	if wantUnused(t, memory); len(memory.clients) != 0 {
		t.Errorf("got the clients %v, want them forgotten", memory.clients)
	}
}

// TestABodyWithoutMemoryIsUnreadAndHandedOn, also when the memory ends in its middle.
func TestABodyWithoutMemoryIsUnreadAndHandedOn(t *testing.T) {
	data := randomBytes(kib64)
	for _, share := range []int64{0, firstRead, 3 * smallestPiece, kib64, kib64 + 1} {
		memory := NewMemory(clientShare * share)
		r := httptest.NewRequest("POST", "/", strings.NewReader(data))
		reader, seen := memory.Look(r, alice, kib64)
		if whole := share > kib64; reader.Starved() == whole || (seen != nil) != whole {
			t.Errorf("%d bytes: got starved %v and read %v, want it read %v", share, reader.Starved(), seen != nil, whole)
		}
		if got, err := io.ReadAll(r.Body); string(got) != data || err != nil {
			t.Errorf("%d bytes: got %d bytes handed on, %v, want all", share, len(got), err)
		}
		wantUnused(t, memory)
		reader.End(httptest.NewRecorder())
		wantUnused(t, memory)
	}
	r := httptest.NewRequest("GET", "/", http.NoBody)
	if reader, _ := NewMemory(0).Look(r, alice, kib64); reader.Starved() {
		t.Error("got a request without a body starved")
	}
}
