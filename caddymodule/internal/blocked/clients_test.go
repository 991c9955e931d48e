package blocked

import (
	"net/netip"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

var (
	start = time.Unix(1_800_000_000, 0)
	later = start.Add(24 * time.Hour)
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// found reports whether a peer is on the list of config 1.
func (l *Clients) found(peer string, now time.Time) bool {
	_, found := l.Find(addr(peer), 1, now)
	return found
}

func TestOnlyAddressesOfTheInternetAreAdded(t *testing.T) {
	for peer, want := range map[string]bool{
		"203.0.113.7": true, "8.8.8.8": true, "2001:db8::7": true, "2606:4700::1": true,
		"127.0.0.1": false, "127.8.8.8": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false, "169.254.1.1": false,
		"100.64.0.1": false, "100.127.255.255": false, "0.0.0.0": false, "224.0.0.1": false, "255.255.255.255": false,
		"::1": false, "::": false, "fe80::1": false, "fd00::1": false, "ff02::1": false, "::ffff:203.0.113.7": false,
	} {
		l := NewClients()
		if got := l.Add(addr(peer), 64, Entry{Config: 1}, later, start); got != want || l.Empty() == want || l.found(peer, start) != want {
			t.Errorf("%s: got added: %v, found: %v, want %v", peer, got, l.found(peer, start), want)
		}
	}
}

func TestAnEntryHoldsForAnHourAtMost(t *testing.T) {
	for _, test := range []struct{ until, last time.Duration }{
		{24 * time.Hour, time.Hour}, {time.Hour, time.Hour}, {time.Minute, time.Minute},
	} {
		l := NewClients()
		l.Add(addr("203.0.113.7"), 64, Entry{Config: 1}, start.Add(test.until), start)
		if !l.found("203.0.113.7", start.Add(test.last-time.Second)) || l.found("203.0.113.7", start.Add(test.last)) {
			t.Errorf("until %v: got another end, want it to hold for %v", test.until, test.last)
		}
	}
}

func TestAnEntryIsOfItsAddressOrNetworkAndOfItsConfig(t *testing.T) {
	l := NewClients()
	l.Add(addr("203.0.113.7"), 64, Entry{Config: 1}, later, start)
	l.Add(addr("2001:db8:0:1::7"), 64, Entry{Config: 1}, later, start)
	l.Add(addr("2001:db8:0:2::7"), 128, Entry{Config: 1}, later, start)
	l.Add(addr("198.51.100.1"), 64, Entry{Config: 2}, later, start)
	for peer, want := range map[string]bool{
		"203.0.113.7": true, "203.0.113.8": false, "198.51.100.1": false,
		"2001:db8:0:1::7": true, "2001:db8:0:1:ffff::": true, "2001:db8:0:2::7": true, "2001:db8:0:2::8": false, "2001:db8:0:3::7": false,
	} {
		if got := l.found(peer, start); got != want {
			t.Errorf("%s: got %v, want %v", peer, got, want)
		}
	}
}

func TestAnEntryIsReplacedByAnotherReason(t *testing.T) {
	l := NewClients()
	gate, other := &leakybucket.Charge{Zone: "gate", Key: "k"}, &leakybucket.Charge{Zone: "other", Key: "k"}
	for _, e := range []Entry{{Config: 1}, {Config: 1, Block: gate}, {Config: 1, Block: other}, {Config: 2, Block: other}, {Config: 2}} {
		if !l.Add(addr("203.0.113.7"), 64, e, later, start) {
			t.Fatalf("%+v: got it refused, want it added", e)
		}
		if got, found := l.Find(addr("203.0.113.7"), e.Config, start); !found || got != e {
			t.Errorf("got %+v, %v, want %+v", got, found, e)
		}
	}
}

func TestAProxyIsNeverFoundForADayAfterItsLastForwardingHeader(t *testing.T) {
	for _, peer := range []string{"203.0.113.7", "2001:db8::7"} {
		l := NewClients()
		if !l.Add(addr(peer), 128, Entry{Config: 1}, later, start) {
			t.Fatal("got it refused, want it added")
		}
		l.Proxy(addr(peer), start)
		if l.found(peer, start) || l.Add(addr(peer), 128, Entry{Config: 1, Block: new(leakybucket.Charge)}, later, start) {
			t.Errorf("%s: got a proxy on the list, want it never there", peer)
		}
		now := start
		for range 50 { // it goes on forwarding
			now = now.Add(time.Hour)
			l.Proxy(addr(peer), now)
		}
		if now = now.Add(23*time.Hour - time.Second); l.Add(addr(peer), 128, Entry{Config: 1}, now.Add(time.Hour), now) {
			t.Errorf("%s: got it added within a day, want it refused", peer)
		}
		if now = now.Add(2 * time.Hour); !l.Add(addr(peer), 128, Entry{Config: 1}, now.Add(time.Hour), now) {
			t.Errorf("%s: got it refused after a day without forwarding headers, want it added", peer)
		}
	}
}

func TestNobodyIsAddedWhileSomeProxiesAreUnknown(t *testing.T) {
	l := NewClients()
	a := addr("203.0.113.0")
	for range mostProxies {
		l.Proxy(a, start)
		a = a.Next()
	}
	if !l.Add(addr("198.51.100.1"), 64, Entry{Config: 1}, later, start) {
		t.Fatal("got it refused with all proxies known, want it added")
	}
	l.Proxy(a, start)
	if l.Add(addr("198.51.100.2"), 64, Entry{Config: 1}, later, start) {
		t.Error("got it added with a proxy unknown, want it refused")
	}
}

func TestAFullListAddsNobody(t *testing.T) {
	l := NewClients()
	a := addr("203.0.113.0")
	for range mostClients {
		if !l.Add(a, 64, Entry{Config: 1}, later, start) {
			t.Fatalf("%v: got it refused, want it added", a)
		}
		a = a.Next()
	}
	if l.Add(a, 64, Entry{Config: 1}, later, start) {
		t.Error("got one more than the list holds, want it refused")
	}
	if now := start.Add(time.Hour); !l.Add(a, 64, Entry{Config: 1}, later, now) {
		t.Error("got it refused after the others have ended, want it added")
	}
}

func TestOnlyPacketsThatOpenAConnectionDoSo(t *testing.T) {
	for _, test := range []struct {
		name   string
		packet []byte
		want   bool
	}{
		{"nothing", nil, false},
		{"one byte", []byte{0xc0}, false},
		{"Initial", []byte{0xc3, 0, 0, 0, 1, 8}, true},
		{"0-RTT", []byte{0xd3, 0, 0, 0, 1, 8}, true},
		{"Handshake", []byte{0xe3, 0, 0, 0, 1, 8}, false},
		{"Retry", []byte{0xf3, 0, 0, 0, 1, 8}, false},
		{"Initial, version 2", []byte{0xd3, 0x6b, 0x33, 0x43, 0xcf, 8}, true},
		{"0-RTT, version 2", []byte{0xe3, 0x6b, 0x33, 0x43, 0xcf, 8}, true},
		{"Handshake, version 2", []byte{0xf3, 0x6b, 0x33, 0x43, 0xcf, 8}, false},
		{"Retry, version 2", []byte{0xc3, 0x6b, 0x33, 0x43, 0xcf, 8}, false},
		{"an unknown version", []byte{0xe3, 0x1a, 0x2a, 0x3a, 0x4a, 8}, true},
		{"data of a connection", []byte{0x43, 1, 2, 3, 4, 5, 6}, false},
	} {
		if got := OpensConnection(test.packet); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}
