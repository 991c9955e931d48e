package evidence

import (
	"net/netip"
	"testing"
	"unsafe"
)

// Evidence has at most 64 KiB a zone: what is counted in sets, and two sketches of keys and
// networks, which take 24 KiB each when they are used.
func TestEvidenceIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Zone{}) + 2*24<<10; size > 64<<10 {
		t.Errorf("got %d bytes of evidence a zone, want at most 64 KiB", size)
	}
}

// When more networks come than a day's sets can tell apart, those that came first are judged.
func TestADayOfTooManyNetworksIsJudgedByTheFirst(t *testing.T) {
	e := New(nil, Options{})
	for i := range 100_000 {
		client := netip.AddrFrom4([4]byte{byte(1 + i>>16), byte(i >> 8), byte(i), 1})
		if i < 2000 {
			e.show(client, charged)
		} else {
			e.show(client, charged, spared)
		}
	}
	d := e.endDay()
	if most := networkBits/4 + 1; d.shown[came] > most || d.shown[charged] != d.shown[came] || d.shown[spared] >= d.shown[came] {
		t.Errorf("got the networks %v, want at most %d, all of them charged and not all spared", d.shown, most)
	}
	if d := e.endDay(); d != (dayShown{}) {
		t.Errorf("the next day: got %v, want nothing", d)
	}
}
