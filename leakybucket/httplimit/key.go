package httplimit

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// ipv6Bits is how much of an IPv6 address names a client: its provider gives it a /64.
const ipv6Bits = 64

// ByAddress is the key of a server that clients reach directly: the IPv4 address, or the /64
// of the IPv6 address. Behind a proxy all clients would share one bucket, see [Behind].
// Without an address, as over a Unix socket, the key is "unknown".
func ByAddress(r *http.Request) string { return nameOf(peer(r)) }

// Behind returns a key for a server behind proxies: the last address in X-Forwarded-For that
// none of them has. IPv4 networks are written as such, also if NAT64 stands before the server.
// Only what a proxy has written is believed: a client that comes to the server directly is
// known by its own address.
func Behind(proxies ...netip.Prefix) func(*http.Request) string {
	trusted := func(a netip.Addr) bool {
		return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return func(r *http.Request) string {
		client := peer(r)
		for hops := strings.Join(r.Header.Values("X-Forwarded-For"), ","); hops != "" && trusted(client); {
			last := strings.LastIndexByte(hops, ',')
			next := parseHop(strings.TrimSpace(hops[last+1:]))
			if !next.IsValid() {
				break
			}
			client, hops = next, hops[:max(0, last)]
		}
		return nameOf(client)
	}
}

// parseHop reads an address, perhaps with a port, as some proxies write it, or returns an
// invalid one.
func parseHop(text string) netip.Addr {
	addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		with, _ := netip.ParseAddrPort(text)
		addr = with.Addr()
	}
	return key.Unmap(addr)
}

// ByHeader returns a key of the value of a header, such as an API key, of which only a digest
// is kept. Requests without it are known by otherwise, such as [ByAddress]. Each value that a
// client makes up has a full bucket: call it for values that you have issued only.
func ByHeader(name string, otherwise func(*http.Request) string) func(*http.Request) string {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) string {
		value := r.Header.Get(name)
		if value == "" {
			return otherwise(r)
		}
		return string(key.DigestOf(value).Append([]byte(name + "/")))
	}
}

// peer returns the address of the other end of the connection, or an invalid one.
func peer(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	addr, _ := netip.ParseAddr(host)
	return key.Unmap(addr)
}

func nameOf(client netip.Addr) string {
	network := key.ClientPrefix(client, 32, ipv6Bits)
	switch {
	case !network.IsValid():
		return "unknown"
	case client.Is4():
		return client.String()
	}
	return network.String()
}
