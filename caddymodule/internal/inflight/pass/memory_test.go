package pass

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

var office = netip.MustParseAddr("203.0.113.7")

// moved returns the cookie of a client whose pass a refusal has moved.
func moved(t *testing.T, z *Issuer, at time.Time, after time.Duration, addr netip.Addr, cookies string) string {
	t.Helper()
	c, header := z.Client(request(cookies), host, at), make(http.Header)
	check.Need(t, c.Refused(header, at, after, addr), Moved, "want the pass moved")
	return given(header)
}

func TestAnOlderCopyOfAMovedPassIsEarlyToo(t *testing.T) {
	z := node(t, new(storage))
	first := refused(t, z, now, 5*time.Second)
	at := now.Add(10 * time.Second)
	newer := moved(t, z, at, 7*time.Second, office, first)
	for _, test := range []struct {
		name  string
		pass  string
		after time.Duration
		want  State
		tries int
	}{
		{"the older copy at once", first, 0, Early, 2},
		{"the older copy a moment before its time", first, 7*time.Second - 1, Early, 2},
		{"the older copy in time", first, 7 * time.Second, Valid, 2},
		{"the newer one at once", newer, 0, Early, 2},
		{"the newer one in time", newer, 7 * time.Second, Valid, 2},
		{"the older copy when it is forgotten", first, 7*time.Second + Forgotten, Valid, 1},
	} {
		c := z.Client(request(test.pass), host, at.Add(test.after))
		// It has no tries any more when the pass itself is long valid.
		tries := test.tries
		if test.after > Forgotten {
			tries = 0
		}
		got := c.Tries(at.Add(test.after))
		check.That(t, c.State() == test.want && got == tries, "%s: got %v with %d tries, want %v with %d", test.name, c.State(), got, test.want, tries)
	}
	// Whoever keeps the first copy waits longer each time, as others do.
	for range 3 {
		moved(t, z, at, 7*time.Second, office, first)
	}
	if c := z.Client(request(first), host, at); c.Tries(at) != 2+3 {
		t.Errorf("got %d tries, want 5", c.Tries(at))
	}
	// A shorter wait, told to a request that came at the same time, changes nothing.
	moved(t, z, at, time.Second, office, first)
	check.Equal(t, clientOf(z, request(first), host, at.Add(5*time.Second)).State(), Early, "want the latest time to hold")
}

func TestAFirstRefusalIsNotRemembered(t *testing.T) {
	z := node(t, new(storage))
	for range 100 {
		refused(t, z, now, 5*time.Second)
		refused(t, z, now, 5*time.Second, "__Host-throttle-php=made-up")
	}
	check.Equal(t, z.Memory.moved.Len(), 0, "entries")
}

func TestRefusedImagesMoveAValidPassOnceAndNoMembers(t *testing.T) {
	z := node(t, new(storage))
	pass := refused(t, z, now, 5*time.Second)
	at := now.Add(time.Minute)
	for i, want := range []Event{Moved, None, None} {
		c := z.Client(request(pass), host, at)
		check.Equal(t, c.RefusedApart(at, 5*time.Second, office), want, "image %d", i+1)
	}
	if c := z.Client(request(pass), host, at); c.State() != Early || c.Tries(at) != 1 {
		t.Errorf("got %v with %d tries, want it early, and no further try", c.State(), c.Tries(at))
	}
	check.Equal(t, clientOf(z, request(pass), host, at.Add(5*time.Second)).State(), Valid, "in time")
	member := z.Client(request(loggedIn(t, z, at, wordpress)), host, at)
	check.Equal(t, member.RefusedApart(at, 5*time.Second, office), None, "for a member, want nothing moved")
}

func TestANetworkHasAHundredthOfTheMemory(t *testing.T) {
	z := node(t, new(storage))
	full := 0
	z.Full = func() { full++ }
	victim := refused(t, z, now, 5*time.Second)
	at := now.Add(time.Minute)
	moved(t, z, at, 5*time.Second, netip.MustParseAddr("198.51.100.1"), victim)
	for i := range movedOfNetwork + 500 {
		p := Pass{ID: ID{1, byte(i), byte(i >> 8)}, NotBefore: at.Add(time.Minute), Tries: 9}
		z.Memory.move(&p, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), at)
	}
	if n := z.Memory.moved.Len(); n != movedOfNetwork+1 || full != 0 {
		t.Errorf("got %d entries, told %d times that all is full, want %d and none", n, full, movedOfNetwork+1)
	}
	check.Equal(t, clientOf(z, request(victim), host, at).State(), Early, "for a pass of another network, want it remembered")
	for i := range mostMoved {
		p := Pass{ID: ID{2, byte(i), byte(i >> 8), byte(i >> 16)}, NotBefore: at.Add(time.Minute), Tries: 9}
		if !z.Memory.move(&p, netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i), 1}), at) {
			full++
		}
	}
	if n := z.Memory.moved.Len(); n != mostMoved || full != movedOfNetwork+1 {
		t.Errorf("got %d entries, told %d times, want %d and the news that it is full", n, full, mostMoved)
	}
}
