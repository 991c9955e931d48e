package key_test

import (
	"fmt"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

// A value that a client wrote cannot pass for another part of the name.
func ExampleAppendPart() {
	name := []byte("login")
	for _, value := range []string{"203.0.113.7", "alice/../@client_ip"} {
		name = key.AppendPart(append(name, '/'), value)
	}
	fmt.Printf("%s\n", name)
	// Output: login/203.0.113.7/alice%2F..%2F@client_ip
}

// A login name is kept as its digest, from which it cannot be read.
func ExampleDigest() {
	name := key.DigestOf("alice").Append([]byte("login/"))
	digest, is := key.ParseDigest(string(name[len("login/"):]))
	fmt.Println(is, digest == key.DigestOf("alice"))
	// Output: true true
}
