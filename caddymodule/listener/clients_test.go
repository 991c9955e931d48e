package listener

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// refuse has a handler refuse a client for a day, or for longer than a test.
func (l *clients) refuse(network string) (added bool) {
	return l.Refused(caddymodule.Refused{Client: netip.MustParsePrefix(network), Until: time.Now().Add(24 * time.Hour)})
}

// has reports whether a peer is on the list.
func (l *clients) has(peer string) bool {
	_, found := l.find(netip.MustParseAddr(peer))
	return found
}

func TestOnlyAddressesOfTheInternetAreAdded(t *testing.T) {
	for peer, want := range map[string]bool{
		"203.0.113.7": true, "8.8.8.8": true, "2001:db8::7": true, "2606:4700::1": true,
		"127.0.0.1": false, "127.8.8.8": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false, "169.254.1.1": false,
		"100.64.0.1": false, "100.127.255.255": false, "0.0.0.0": false, "224.0.0.1": false, "255.255.255.255": false,
		"::1": false, "::": false, "fe80::1": false, "fd00::1": false, "ff02::1": false,
	} {
		l, addr := newClients(), netip.MustParseAddr(peer)
		got := l.refuse(netip.PrefixFrom(addr, addr.BitLen()).String())
		check.That(t, got == want && l.some.Load() == want && l.has(peer) == want, "%s: got added: %v, found: %v, want %v", peer, got, l.has(peer), want)
	}
}

func TestAClientIsItsAddressOrItsNetwork(t *testing.T) {
	l := newClients()
	for _, network := range []string{"203.0.113.7/32", "2001:db8:0:1::/64", "2001:db8:0:2::7/128"} {
		l.refuse(network)
	}
	for peer, want := range map[string]bool{
		"203.0.113.7": true, "203.0.113.8": false,
		"2001:db8:0:1::7": true, "2001:db8:0:1:ffff::": true, "2001:db8:0:2::7": true, "2001:db8:0:2::8": false, "2001:db8:0:3::7": false,
	} {
		check.Equal(t, l.has(peer), want, "%s", peer)
	}
}

func TestAProxyIsNoClientForADayAfterItsLastForwardingHeader(t *testing.T) {
	for _, network := range []string{"203.0.113.7/32", "2001:db8::7/128"} {
		synctest.Test(t, func(t *testing.T) {
			l, peer := newClients(), netip.MustParsePrefix(network).Addr()
			check.Assume(t, l.refuse(network), "got it refused, want it added")
			l.Forwards(peer)
			check.That(t, !l.has(peer.String()) && !l.refuse(network), "%s: got a proxy on the list, want it never there", network)
			for range 50 { // it goes on forwarding
				time.Sleep(time.Hour)
				l.Forwards(peer)
			}
			time.Sleep(23*time.Hour - time.Second)
			check.That(t, !l.refuse(network), "%s: got it added within a day, want it refused", network)
			time.Sleep(2 * time.Hour)
			check.That(t, l.refuse(network), "%s: got it refused after a day without forwarding headers, want it added", network)
		})
	}
}

func TestNobodyIsAddedWhileSomeProxiesAreUnknown(t *testing.T) {
	l := newClients()
	a := netip.MustParseAddr("203.0.113.0")
	for range mostProxies {
		l.Forwards(a)
		a = a.Next()
	}
	check.Assume(t, l.refuse("198.51.100.1/32"), "got it refused with all proxies known, want it added")
	l.Forwards(a)
	check.That(t, !l.refuse("198.51.100.2/32"), "got it added with a proxy unknown, want it refused")
}

func TestAFullListAddsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newClients()
		a := netip.MustParseAddr("203.0.113.0")
		for range mostClients {
			check.Assume(t, l.refuse(a.String()+"/32"), "%v: got it refused, want it added", a)
			a = a.Next()
		}
		check.That(t, !l.refuse(a.String()+"/32"), "got one more than the list holds, want it refused")
		time.Sleep(24 * time.Hour)
		check.That(t, !l.has("203.0.113.0") && l.refuse(a.String()+"/32"), "got it refused after the others have ended, want it added")
	})
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
		check.Equal(t, opensConnection(test.packet), test.want, "%s", test.name)
	}
}
