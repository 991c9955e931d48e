package tests

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

const perClient = `
http://:%d {
	throttle {
		zone clients {
			limit 3 1/d
		}
	}
	respond ok
}`

// TestAnUntrustedPeerCannotChooseItsAddress forges every header from which
// servers take addresses.
func TestAnUntrustedPeerCannotChooseItsAddress(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(perClient, port)})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)

	lies := []func(n int) (name, value string){
		func(n int) (string, string) { return "X-Forwarded-For", fmt.Sprintf("203.0.113.%d", n) },
		func(n int) (string, string) { return "X-Forwarded-For", hops(1000, n) },
		func(n int) (string, string) { return "X-Real-Ip", fmt.Sprintf("203.0.113.%d", n) },
		func(n int) (string, string) { return "Cf-Connecting-Ip", fmt.Sprintf("203.0.113.%d", n) },
		func(n int) (string, string) { return "True-Client-Ip", fmt.Sprintf("203.0.113.%d", n) },
		func(n int) (string, string) { return "Forwarded", fmt.Sprintf("for=203.0.113.%d", n) },
		func(n int) (string, string) { return "X-Forwarded-For", fmt.Sprintf("2001:db8:%x::1", n) },
		func(n int) (string, string) { return "X-Forwarded-For", fmt.Sprintf("::ffff:203.0.113.%d", n) },
	}
	eachProtocol(t, func(t *testing.T, protocol string) {
		for _, lie := range lies {
			v := newVisitor(t, protocol)
			admitted := 0
			for n := range 10 {
				name, value := lie(n)
				admitted += v.countAdmitted(t, 1, url, name, value)
			}
			if admitted != 3 {
				name, value := lie(0)
				t.Errorf("got %d of 10 admitted with %s: %.40s..., want the capacity of 3", admitted, name, value)
			}
		}
	})
}

// hops is a way through n proxies that differs in its first and last.
func hops(n, different int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = "10.0." + strconv.Itoa(i/256) + "." + strconv.Itoa(i%256)
	}
	all[0] = fmt.Sprintf("203.0.113.%d", different)
	all[n-1] = fmt.Sprintf("198.51.100.%d", different)
	return strings.Join(all, ", ")
}

// TestBehindATrustedProxyTheRightMostUntrustedAddressCounts asks through
// 127.0.0.1 as the proxy; each list of spellings is one client.
func TestBehindATrustedProxyTheRightMostUntrustedAddressCounts(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{
		servers: "trusted_proxies static 127.0.0.1/32 10.0.0.0/8\ntrusted_proxies_strict",
		sites:   fmt.Sprintf(perClient, port),
	})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)

	clients := [][]string{
		{"203.0.113.1", "198.51.100.1, 203.0.113.1", "198.51.100.2,203.0.113.1", "203.0.113.1, 10.1.1.1", "203.0.113.1, 10.1.1.1, 10.2.2.2"},
		{"203.0.113.2", "::ffff:203.0.113.2", "1.1.1.1, ::ffff:203.0.113.2", "::ffff:cb00:7102"},
		{"2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1:ffff::", "2001:DB8:0:1::1", "203.0.113.1, 2001:db8:0:1::3"},
		{"2001:db8:0:2::1"},
		{"nonsense, 203.0.113.3", hops(1000, 7) + ", 203.0.113.3", "203.0.113.3"},
	}
	eachProtocol(t, func(t *testing.T, protocol string) {
		proxy := newVisitorFrom(t, protocol, "127.0.0.1")
		// Both protocols pour into the same buckets, so each has its own clients.
		own := strings.NewReplacer("203.0.113.", "203.0.114.", "0:1:", "0:3:", "0:2:", "0:4:", "cb00:7102", "cb00:7202")
		for _, spellings := range clients {
			admitted := 0
			for n := range 20 {
				address := spellings[n%len(spellings)]
				if protocol == "h2" {
					address = own.Replace(address)
				}
				admitted += proxy.countAdmitted(t, 1, url, "X-Forwarded-For", address)
			}
			if admitted != 3 {
				t.Errorf("got %d of 20 admitted for the client %q, want the capacity of 3", admitted, spellings[0])
			}
		}
	})
}

// TestAPeerBesideTheProxyIsItself: a client that connects past the proxy cannot
// claim another address.
func TestAPeerBesideTheProxyIsItself(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{
		servers: "trusted_proxies static 127.0.0.1/32\ntrusted_proxies_strict",
		sites:   fmt.Sprintf(perClient, port),
	})
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	v := newVisitor(t, "h1")
	admitted := 0
	for n := range 10 {
		admitted += v.countAdmitted(t, 1, url, "X-Forwarded-For", fmt.Sprintf("203.0.113.%d", n))
	}
	if admitted != 3 {
		t.Errorf("got %d of 10 admitted, want the capacity of 3", admitted)
	}
}
