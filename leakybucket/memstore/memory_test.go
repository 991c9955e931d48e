package memstore

import (
	"context"
	"runtime"
	"strconv"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const million = 1_000_000

// appendAddress appends the i-th of 16 million IPv4 addresses.
func appendAddress(key []byte, i int) []byte {
	key = append(key, "203."...)
	key = strconv.AppendInt(key, int64(i>>16&0xff), 10)
	key = strconv.AppendInt(append(key, '.'), int64(i>>8&0xff), 10)
	return strconv.AppendInt(append(key, '.'), int64(i&0xff), 10)
}

func heap() (bytes, objects uint64) {
	runtime.GC()
	runtime.GC() // what the first one found to be finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.HeapObjects
}

func TestAMillionAddressesTakeLittleMemory(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("a million buckets are for neither -short nor -race")
	}
	bytesBefore, objectsBefore := heap()
	s := New(Options{MaxBuckets: million})
	key, one, decisions := make([]byte, 0, 16), []leakybucket.Charge{charge("", 600)}, make([]leakybucket.Decision, 1)
	for i := range million {
		key = appendAddress(key[:0], i)
		one[0].Key = string(key)
		if err := s.Take(context.Background(), one, decisions); err != nil {
			t.Fatalf("taking a charge: %v", err)
		}
	}
	bytes, objects := heap()
	if got := buckets(s); got != million || s.Evictions() != 0 {
		t.Fatalf("buckets: got %d after %d evictions, want %d after none", got, s.Evictions(), million)
	}
	perKey := float64(bytes-bytesBefore) / million
	objectsPerKey := float64(objects-objectsBefore) / million
	t.Logf("%.1f bytes and %.4f objects a key", perKey, objectsPerKey)
	if perKey > 96 {
		t.Errorf("heap: got %.1f bytes a key, want at most 96", perKey)
	}
	if objectsPerKey > 0.05 {
		t.Errorf("heap: got %.4f objects a key, want at most 0.05", objectsPerKey)
	}
	runtime.KeepAlive(s)
}
