package tests

import (
	"fmt"
	"strings"
	"testing"
)

// keyedSite charges two zones: one by header, which clients spell as they like,
// and one by address, which they must not evade. They have different paths, so
// that tests can look at each alone.
const keyedSite = `
http://:%d {
	throttle {
		zone keys {
			match {
				path /key
			}
			key header X-Api-Key plain
			limit 3 1/d
		}
		zone addresses {
			match {
				path /address
			}
			limit 3 1/d
		}
		zone forms {
			match {
				path /mix
			}
			key client_ip query id cookie id host method missing share
			limit 1000 1000/s
		}
	}
	respond ok
}`

// TestHostileRequestsNeverPanicNorGetAFreshBucket sends bytes that no HTTP
// library would send. Requests that HTTP forbids may get a 400, but none may get
// a 5xx.
func TestHostileRequestsNeverPanicNorGetAFreshBucket(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	caddy := startCaddy(t, config{sites: fmt.Sprintf(keyedSite, port)})
	address := fmt.Sprintf("127.0.0.1:%d", port)
	v := newVisitor(t, "h1")
	url := "http://" + address
	if got := v.countAdmitted(t, 5, url+"/address"); got != 3 {
		t.Fatalf("got %d of 5 admitted, want the capacity of 3", got)
	}

	long := strings.Repeat("k", 10<<10)
	for _, header := range []string{
		"X-Api-Key: " + long,
		"X-Api-Key: nul\x00byte",
		"X-Api-Key: \x01\x02\x7f",
		"X-Api-Key: \xff\xfe\xc0\xaf",
		"X-Api-Key: a/b%2fc%",
		"X-Api-Key: @client_ip/" + v.address,
		"X-Api-Key: @sha256:00",
		"X-Api-Key: {env.HOME}{http.request.uri}{",
		"X-Api-Key:",
		"X-Api-Key:   ",
		"X-Api-Key: one\r\nX-Api-Key: two",
		"X-Api-Key: one\r\n two",
		"X_Api_Key: one",
		"Connection: X-Api-Key\r\nX-Api-Key: one",
		"Cookie: id=" + long,
		"Cookie: id; id=; =id; id=\xff\x00",
		"Cookie: " + strings.Repeat("id=1; ", 1000),
		"X-Forwarded-For: " + hops(1000, 1),
		"X-Forwarded-For: \xff\x00",
		"X-Forwarded-For: ::ffff:1.2.3.4, fe80::1%eth0, [::1]:80, 0x7f.1, 1.2.3.4.5",
	} {
		for _, path := range []string{"/address", "/key", "/mix?id=%00%ff%&id=" + strings.Repeat("%41", 500)} {
			status, _ := v.askRaw(t, address, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+header+"\r\n\r\n")
			if status >= 500 || status == 0 {
				t.Errorf("got status %d for %s with %.60q, want no server error", status, path, header)
			}
			if path == "/address" && status == 200 {
				t.Errorf("got a fresh bucket with %.60q, want 429", header)
			}
		}
	}
	for _, host := range []string{"", "\xff", "x:y:z", strings.Repeat("h", 10<<10), "[::1%25eth0]:80", "X.EXAMPLE.:80"} {
		if status, _ := v.askRaw(t, address, "GET /mix HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); status >= 500 {
			t.Errorf("got status %d for the host %.60q, want no server error", status, host)
		}
	}
	if !caddy.ready() {
		t.Error("got no answer from the admin endpoint, want caddy alive")
	}
}

// TestKeysThatDifferNeverShareABucket tests keys that a careless bucket name
// would confuse, and a key that is sent twice.
func TestKeysThatDifferNeverShareABucket(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(keyedSite, port)})
	url := fmt.Sprintf("http://127.0.0.1:%d/key", port)

	eachProtocol(t, func(t *testing.T, protocol string) {
		v := newVisitor(t, protocol)
		long := strings.Repeat("k", 10<<10) + protocol
		for _, key := range []string{
			long + "1", long + "2",
			protocol + "a/b", protocol + "a%2fb", protocol + "a%2Fb", protocol + "a%252Fb",
			protocol + "\xff", protocol + "%FF", protocol + "%ff", protocol + "\xfe",
			protocol + "A", protocol + "a",
			"@client_ip/" + v.address, "%40client_ip/" + v.address, "@sha256:" + protocol,
		} {
			if got := v.countAdmitted(t, 5, url, "X-Api-Key", key); got != 3 {
				t.Errorf("got %d of 5 admitted with the key %.40q, want its own capacity of 3", got, key)
			}
		}

		// Without a key, or with two, the address is the key. Its bucket is none
		// of the buckets above.
		if got := v.countAdmitted(t, 1, url); got != 1 {
			t.Errorf("got %d of 1 admitted without a key, want the address's bucket to be untouched", got)
		}
		admitted := 0
		for n := range 10 {
			admitted += v.countAdmitted(t, 1, url, "X-Api-Key", fmt.Sprint("x", n), "X-Api-Key", fmt.Sprint("y", n))
		}
		if admitted != 2 {
			t.Errorf("got %d of 10 admitted with two keys at once, want the 2 that were left to the address", admitted)
		}
	})
}
