package signer

import (
	"encoding/binary"
	"strings"
	"testing"
	"testing/quick"
	"time"
)

func TestATokenIsGoodForWhatItIsBoundToAndForItsTime(t *testing.T) {
	r := ringAt(t, newMemoryStorage(), began)
	c := claimsAt(began)
	c.Expires = began.Add(time.Hour)
	token := sign(t, r, c)
	got, ok := r.Verify(t.Context(), token, Claims{Purpose: c.Purpose, Host: c.Host, Zone: c.Zone, Subject: c.Subject}, began)
	if !ok || got.ID != c.ID || !got.Issued.Equal(c.Issued) || !got.Expires.Equal(c.Expires) {
		t.Fatalf("got %+v, %v, want what was signed", got, ok)
	}
	for name, change := range map[string]func(*Claims){
		"another purpose":      func(c *Claims) { c.Purpose = "pass" },
		"another host":         func(c *Claims) { c.Host = "example.org" },
		"another zone":         func(c *Claims) { c.Zone = "admin" },
		"another subject":      func(c *Claims) { c.Subject[31] = 1 },
		"swapped fields":       func(c *Claims) { c.Host, c.Zone = c.Zone, c.Host },
		"a byte moved":         func(c *Claims) { c.Host, c.Zone = c.Host+"l", c.Zone[1:] },
		"an empty field":       func(c *Claims) { c.Host, c.Zone = c.Host+c.Zone, "" },
		"purpose and host one": func(c *Claims) { c.Purpose, c.Host = "", c.Purpose+c.Host },
	} {
		bound := c
		change(&bound)
		if _, ok := r.Verify(t.Context(), token, bound, began); ok {
			t.Errorf("%s: got the token accepted", name)
		}
	}
	for _, test := range []struct {
		name string
		now  time.Time
		want bool
	}{
		{"a clock that is slightly late", began.Add(-leeway), true},
		{"from the future", began.Add(-leeway - time.Second), false},
		{"in its last second", c.Expires.Add(-time.Second), true},
		{"expired", c.Expires, false},
		{"long expired", began.Add(400 * 24 * time.Hour), false},
	} {
		if got := r.accepts(token, test.now); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

func TestATokenThatWasChangedIsRefused(t *testing.T) {
	r := ringAt(t, newMemoryStorage(), began)
	token := sign(t, r, claimsAt(began))
	if !r.accepts(token, began) {
		t.Fatal("got the token itself refused")
	}
	for n := range len(token) {
		if r.accepts(token[:n], began) || r.accepts(token[n+1:], began) {
			t.Errorf("got it accepted cut at %d", n)
		}
	}
	for _, longer := range []string{token + "A", "A" + token, token + "=", token + "\n", token[:40] + "\n" + token[41:], token + token} {
		if r.accepts(longer, began) {
			t.Errorf("got %q accepted", longer)
		}
	}
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for i := range len(token) {
		for bit := range 6 {
			digit := digits[strings.IndexByte(digits, token[i])^1<<bit]
			if r.accepts(token[:i]+string(digit)+token[i+1:], began) {
				t.Errorf("got it accepted with bit %d of digit %d flipped", bit, i)
			}
		}
	}
}

// fieldsOf reads back what appendTo has written.
func fieldsOf(b []byte) (fields []string) {
	for len(b) >= 8 {
		n := binary.BigEndian.Uint64(b)
		if b = b[8:]; n > uint64(len(b)) {
			return nil
		}
		fields = append(fields, string(b[:n]))
		b = b[n:]
	}
	return fields
}

func checkEncoding(t testing.TB, purpose, host, zone string, issued, expires int64) bool {
	c := Claims{Purpose: purpose, Host: host, Zone: zone, Issued: time.Unix(issued, 0), Expires: time.Unix(expires, 0)}
	fields := fieldsOf(c.appendTo(nil))
	if len(fields) != 7 || fields[0] != purpose || fields[1] != host || fields[2] != zone ||
		fields[3] != string(c.Subject[:]) || fields[4] != string(c.ID[:]) ||
		int64(binary.BigEndian.Uint64([]byte(fields[5]))) != issued || int64(binary.BigEndian.Uint64([]byte(fields[6]))) != expires {
		t.Errorf("got %q back from %+v", fields, c)
		return false
	}
	return true
}

// TestNoTwoClaimsEncodeAlike holds because each encoding can be read back.
func TestNoTwoClaimsEncodeAlike(t *testing.T) {
	if err := quick.Check(func(purpose, host, zone string, issued, expires int64) bool {
		return checkEncoding(t, purpose, host, zone, issued, expires)
	}, nil); err != nil {
		t.Error(err)
	}
}

func FuzzClaims(f *testing.F) {
	f.Add("device", "example.com", "login", int64(0), int64(1))
	f.Add("", "\x00\x00\x00\x00\x00\x00\x00\x01a", "", int64(-1), int64(1)<<62)
	f.Fuzz(func(t *testing.T, purpose, host, zone string, issued, expires int64) {
		checkEncoding(t, purpose, host, zone, issued, expires)
	})
}

func FuzzVerify(f *testing.F) {
	storage := newMemoryStorage()
	r := New(storage, nil)
	if err := r.Maintain(f.Context(), began); err != nil {
		f.Fatal(err)
	}
	good, _ := r.Sign(claimsAt(began))
	f.Add(good)
	f.Add(strings.Repeat("A", TokenSize))
	f.Add(strings.Repeat("_", TokenSize))
	f.Fuzz(func(t *testing.T, token string) {
		Expiry(token)
		if r.accepts(token, began) && token != good {
			t.Errorf("got %q accepted, which nobody has signed", token)
		}
	})
}

func TestAnHMACIsGoodForItsMessageAlone(t *testing.T) {
	r := ringAt(t, newMemoryStorage(), began)
	message := Field(Field(nil, "other"), "text")
	keyID, sum, ok := r.MAC(message, began)
	if !ok || !r.Check(t.Context(), keyID[:], message, sum[:], began) || !r.Check(t.Context(), keyID[:], message, sum[:16], began) {
		t.Fatal("got the HMAC refused, or half of it")
	}
	for n := range 16 {
		if r.Check(t.Context(), keyID[:], message, sum[:n], began) {
			t.Errorf("got %d bytes of it accepted", n)
		}
	}
	if r.Check(t.Context(), keyID[:], append(message, 0), sum[:], began) || r.Check(t.Context(), keyID[:3], message, sum[:], began) || r.Check(t.Context(), keyID[:], message, append(sum[:], 0), began) {
		t.Error("got another message, key or HMAC accepted")
	}
	if _, _, ok := New(newMemoryStorage(), nil).MAC(message, began); ok {
		t.Error("got an HMAC without a key")
	}
}
