package verify

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestAListIsReadInEachShapeThatOperatorsPublish(t *testing.T) {
	for _, test := range []struct{ name, list, want string }{
		{"Google", `{"creationTime":"2026-11-01T00:00:00.000000","prefixes":[{"ipv6Prefix":"2001:4860:4801:10::/64"},{"ipv4Prefix":"66.249.64.0/27"}]}`, "[2001:4860:4801:10::/64 66.249.64.0/27]"},
		{"Common Crawl, with more fields", `{"synctoken":"1","notes":"x","prefixes":[{"ipv4Prefix":"18.97.9.168/29","more":[1]}]}`, "[18.97.9.168/29]"},
		{"Bing, with blanks", "{\r\n  \"creationTime\": \"2024-01-03T10:00:00.121331\",\r\n  \"prefixes\": [\r\n    {\r\n      \"ipv4Prefix\": \"18.97.9.168/29\"\r\n    }\r\n  ]\r\n}", "[18.97.9.168/29]"},
		{"both in one", `{"prefixes":[{"ipv4Prefix":"18.97.9.168/29","ipv6Prefix":"2600:1f28:365:80b0::/60"}]}`, "[18.97.9.168/29 2600:1f28:365:80b0::/60]"},
		{"an address", ` {"prefixes":[{"ipv4Prefix":"18.97.14.80"}]}`, "[18.97.14.80/32]"},
		{"text", "# ours\r\n\r\n18.97.9.168/29 # one\r\n2600:1f28:365:80b0::/60\n18.97.14.80", "[18.97.9.168/29 2600:1f28:365:80b0::/60 18.97.14.80/32]"},
		{"an address within its network", `{"prefixes":[{"ipv4Prefix":"66.249.64.17/27"}]}`, "[66.249.64.0/27]"},
		{"the widest", "64.0.0.0/12\n2a00:1450::/28", "[64.0.0.0/12 2a00:1450::/28]"},
	} {
		networks, err := parse([]byte(test.list))
		got := fmt.Sprint(networks)
		check.That(t, err == nil && got == test.want, "%s: got %v and %v, want %v", test.name, got, err, test.want)
	}
}

func TestAListThatCannotBeAnOperatorsIsRefused(t *testing.T) {
	for _, test := range []struct{ name, list, want string }{
		{"nothing", "", "has no networks"},
		{"what Google serves at the old place", `{"Action needed": "update the location you're fetching from"}`, "has no networks"},
		{"an HTML page", "<!DOCTYPE html><title>Moved</title>", "no network"},
		{"truncated", `{"prefixes":[{"ipv4Prefix":"66.249.64.0/27"},{"ipv4Pre`, "reading its JSON"},
		{"an entry without a network", `{"prefixes":[{"ipv4Prefix":"66.249.64.0/27"},{"ip":"66.249.64.1"}]}`, "prefix 2 has no ipv4Prefix"},
		{"the Internet", "66.249.64.0/27\n0.0.0.0/0", "wider than /12"},
		{"the Internet of IPv6", "::/0", "wider than /28"},
		{"half of it", "128.0.0.0/1", "wider than /12"},
		{"an eleventh", "64.0.0.0/11", "wider than /12"},
		{"a wide network of IPv6", "2a00:1450::/27", "wider than /28"},
		{"private", "10.1.0.0/16", "private or reserved"},
		{"private, around", "192.160.0.0/12", "private or reserved"},
		{"loopback", "127.0.0.1", "private or reserved"},
		{"link-local", "169.254.169.254", "private or reserved"},
		{"of carriers", "100.64.0.0/16", "private or reserved"},
		{"multicast", "224.0.0.1", "private or reserved"},
		{"unique local", "fd00::/32", "private or reserved"},
		{"loopback of IPv6", "::1", "private or reserved"},
		{"link-local of IPv6", "fe80::/64", "private or reserved"},
		{"mapped", "::ffff:10.0.0.0/104", "private or reserved"},
		{"translated", "64:ff9b::/96", "private or reserved"},
		{"with a zone", "fe80::1%eth0", "no network"},
		{"an array", `["18.97.9.168/29"]`, "no network"},
		{"strings", `{"prefixes":["18.97.9.168/29"]}`, "reading its JSON"},
		{"a number", `{"prefixes":[1]}`, "reading its JSON"},
		{"a name", "crawl.example.com", "no network"},
		{"too large", strings.Repeat("#", maxList+1), "larger than 1 MiB"},
	} {
		networks, err := parse([]byte(test.list))
		check.That(t, err != nil && strings.Contains(err.Error(), test.want), "%s: got %v and %v, want an error with %q", test.name, networks, err, test.want)
	}
	_, err := parse([]byte("66.249.64.0/27\n" + strings.Repeat("#", maxList-15)))
	check.That(t, err == nil, "of exactly 1 MiB: got %v, want it used", err)
}

func networks(text string) (all []netip.Prefix) {
	for _, word := range strings.Fields(text) {
		all = append(all, netip.MustParsePrefix(word))
	}
	return all
}

func TestATableContainsWhatItsNetworksContain(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var all []netip.Prefix
		for range random.IntN(20) {
			addr := netip.AddrFrom4([4]byte{66, byte(random.IntN(3)), byte(random.IntN(4)), byte(random.IntN(256))})
			if random.IntN(3) == 0 {
				addr = netip.AddrFrom16([16]byte{0x20, 0x01, byte(random.IntN(3)), 15: byte(random.IntN(256))})
			}
			network, _ := addr.Prefix(addr.BitLen() - random.IntN(20))
			all = append(all, network)
		}
		table := newTable(all)
		for range 200 {
			addr := netip.AddrFrom4([4]byte{66, byte(random.IntN(3)), byte(random.IntN(4)), byte(random.IntN(256))})
			if random.IntN(3) == 0 {
				addr = netip.AddrFrom16([16]byte{0x20, 0x01, byte(random.IntN(3)), 15: byte(random.IntN(256))})
			}
			want := false
			for _, network := range all {
				want = want || network.Contains(addr)
			}
			check.Need(t, table.contains(addr), want, "%v in %v", addr, all)
		}
	}
}

func FuzzAListNeverHoldsWhatItMust(f *testing.F) {
	for _, seed := range []string{`{"prefixes":[{"ipv4Prefix":"66.249.64.0/27"}]}`, `["2001:4860::/32"]`, "66.249.64.0/27 # x\n::1", "{", "[[]]", "0.0.0.0/0"} {
		f.Add([]byte(seed))
	}
	outside := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.168.1.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("fd00::1")}
	f.Fuzz(func(t *testing.T, list []byte) {
		networks, err := parse(list)
		if err != nil {
			return
		}
		table := newTable(networks)
		for _, addr := range outside {
			check.That(t, !table.contains(addr), "%v is in %v", addr, networks)
		}
		for _, network := range networks {
			check.That(t, table.contains(network.Addr()) && table.contains(last(network)), "%v is not in its table", network)
		}
	})
}

// last returns the last address of a network.
func last(network netip.Prefix) netip.Addr {
	raw := network.Addr().AsSlice()
	for bit := network.Bits(); bit < 8*len(raw); bit++ {
		raw[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}

// know gives a list networks.
func (l *Lists) know(source string, networks []netip.Prefix) {
	if l.lists == nil {
		l.lists = make(map[string]*list)
	}
	l.lists[source] = new(list)
	l.lists[source].networks.Store(newTable(networks))
}
