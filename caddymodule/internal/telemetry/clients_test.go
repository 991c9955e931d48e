package telemetry

import (
	"net/netip"
	"testing"
	"time"
)

func TestThePeopleTableIsBounded(t *testing.T) {
	table, now := newPeople(), time.Now()
	address := func(i int) netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	for i := range mostPeople + 1000 {
		table.mark(address(i), now)
	}
	counted := 0
	for i := range mostPeople + 1000 {
		if table.report(address(i), now) {
			counted++
		}
	}
	if counted != mostPeople || table.marked.Len() > mostPeople || table.counted.Len() > mostPeople {
		t.Errorf("got %d counted, %d and %d kept, want at most %d", counted, table.marked.Len(), table.counted.Len(), mostPeople)
	}
}
