package signer

import (
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestATokenIsGoodForWhatItIsBoundToAlone(t *testing.T) {
	r := ringOf(t, newMemoryStorage())
	token := sign(t, r)
	check.Assume(t, r.accepts(token) && len(token) == TokenSize(len(testSays)), "got %q refused", token)
	for name, change := range map[string]func(*Bound){
		"another purpose":      func(b *Bound) { b.Purpose = "pass" },
		"another host":         func(b *Bound) { b.Host = "example.org" },
		"another zone":         func(b *Bound) { b.Zone = "admin" },
		"another subject":      func(b *Bound) { b.Subject = "bob" },
		"swapped fields":       func(b *Bound) { b.Host, b.Zone = b.Zone, b.Host },
		"a byte moved":         func(b *Bound) { b.Host, b.Zone = b.Host+"l", b.Zone[1:] },
		"an empty field":       func(b *Bound) { b.Host, b.Zone = b.Host+b.Zone, "" },
		"purpose and host one": func(b *Bound) { b.Purpose, b.Host = "", b.Purpose+b.Host },
		"no subject":           func(b *Bound) { b.Subject = "" },
	} {
		bound := testBound
		change(&bound)
		_, genuine := r.Open(token, &bound, make([]byte, len(testSays)))
		check.That(t, !genuine, "%s: got the token accepted", name)
	}
	for _, size := range []int{0, len(testSays) - 1, len(testSays) + 1, 100} {
		read, genuine := r.Open(token, &testBound, make([]byte, size))
		check.That(t, !read && !genuine, "got it accepted as a token that says %d bytes", size)
	}
	read, genuine := r.Open(strings.Repeat("A", len(token)), &testBound, make([]byte, len(testSays)))
	check.That(t, read && !genuine, "got a forged token accepted, or not even read")
}

func TestATokenThatWasChangedIsRefused(t *testing.T) {
	r := ringOf(t, newMemoryStorage())
	token := sign(t, r)
	check.Assume(t, r.accepts(token), "got the token itself refused")
	for n := range len(token) {
		check.That(t, !r.accepts(token[:n]) && !r.accepts(token[n+1:]), "got it accepted cut at %d", n)
	}
	for _, longer := range []string{token + "A", "A" + token, token + "=", token + "\n", token[:40] + "\n" + token[41:], token + token} {
		check.That(t, !r.accepts(longer), "got %q accepted", longer)
	}
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for i := range len(token) {
		for bit := range 6 {
			digit := digits[strings.IndexByte(digits, token[i])^1<<bit]
			check.That(t, !r.accepts(token[:i]+string(digit)+token[i+1:]), "got it accepted with bit %d of digit %d flipped", bit, i)
		}
	}
}

func FuzzVerify(f *testing.F) {
	r := new(Ring)
	if err := r.Maintain(f.Context(), newMemoryStorage()); err != nil {
		f.Fatal(err)
	}
	good, _ := r.Sign(&testBound, []byte(testSays))
	f.Add(good)
	f.Add(strings.Repeat("A", TokenSize(len(testSays))))
	f.Add(strings.Repeat("_", TokenSize(len(testSays))))
	f.Fuzz(func(t *testing.T, token string) {
		if r.accepts(token) && token != good {
			t.Errorf("got %q accepted, which nobody has signed", token)
		}
	})
}
