package perkey

import (
	"net/netip"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// FuzzTable makes a table of two overrides for a key of an address and a text,
// and asks it for a client and for what the first override names.
func FuzzTable(f *testing.F) {
	for _, seed := range [][5]string{
		{"203.0.113.7", "login", "10 1/s", "203.0.113.0/24", "203.0.113.7"},
		{"203.0.113.0/24", "login", "gold", "0.0.0.0/0", "::ffff:203.0.113.7"},
		{"2001:db8::/64", "", "unlimited", "::/0", "2001:db8::1%eth0"},
		{"::ffff:203.0.113.7", "a b", "deny", "203.0.113.7/32", "203.0.113.7"},
		{"203.0.113.7/24", "\xff", "10,1/s", "fe80::1%eth0", "fe80::1"},
		{"2001:db8::1", "/", "silver", "::ffff:0.0.0.0/96", "::"},
		{"0.0.0.0/33", "login", "1000000 1/d", "", "0.0.0.0"},
		{"203.0.113.7", "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae", "5 1/s", "::/0", "203.0.113.7"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, network, text, limit, wide, client string) {
		config := tableOf("at")
		config.Overrides = []Override{{Parts: []string{network, text}, Limit: limit}, {Parts: []string{wide}, Limit: "5 1/s"}}
		table, err := NewTable(config)
		check.Assume(t, (table == nil) != (err == nil), "%q: got table %v and error %v, want one of both", config.Overrides, table, err)
		if err != nil {
			return
		}
		for _, l := range table.Limits() {
			if err := l.Validate(); err != nil {
				t.Errorf("%q: got a limit that is none: %v", config.Overrides, err)
			}
		}
		// A key that the override names must find it.
		named, err := netip.ParsePrefix(network)
		if err != nil {
			addr := netip.MustParseAddr(network)
			named = netip.PrefixFrom(addr, addr.BitLen())
		}
		want, err := config.parseEntry(limit)
		check.Assume(t, err == nil, "limit %q: got it into a table, want error %v", limit, err)
		parts := []Part{{Network: key.ClientPrefix(named.Addr(), 32, 64)}, {Text: text}}
		if IsDigest(text) {
			parts[1].Digest, _ = key.ParseDigest("@" + text) // which was valid
		}
		if got := table.Lookup(parts); got.Rule != want.Rule || got.Limit != want.Limit {
			t.Errorf("%q: got %+v for what it names, want %+v", config.Overrides, got, want)
		}
		addr, err := netip.ParseAddr(client)
		if err != nil {
			return
		}
		got := table.Lookup([]Part{{Network: key.ClientPrefix(addr, 32, 64)}, {Text: client}})
		if got.Rule == Limited && got.Limit.Validate() != nil {
			t.Errorf("%q: got a limit of %v for %q, want a valid one", config.Overrides, got.Limit, client)
		}
	})
}
