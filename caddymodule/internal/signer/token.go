package signer

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"sync"
	"time"
)

// Claims are what a token says, and what it is bound to. Only ID, Issued and Expires
// can be read from a token.
type Claims struct {
	Purpose string // a label, so that no token is good for another purpose
	Host    string
	Zone    string
	Subject [sha256.Size]byte // a digest of what the token is about, such as a key

	ID      [16]byte // random
	Issued  time.Time
	Expires time.Time // both in whole seconds
}

// A token is, in base64url: the ID of the key, the ID, both times as Unix seconds, and
// an HMAC-SHA256.
const (
	idAt      = KeyIDSize
	issuedAt  = idAt + 16
	expiresAt = issuedAt + 8
	macAt     = expiresAt + 8
	rawSize   = macAt + sha256.Size

	// TokenSize is the length of every token.
	TokenSize = (rawSize*8 + 5) / 6
)

// encoding refuses texts that another text stands for, too.
var encoding = base64.RawURLEncoding.Strict()

// Sign returns the token for the claims. It expires with the key at the latest. Sign
// returns false if there is no key, because storage could not be read yet.
func (r *Ring) Sign(c Claims) (token string, ok bool) {
	k := r.signing(c.Issued)
	if k == nil {
		return "", false
	}
	if last := k.From.Add(2 * Term); c.Expires.After(last) {
		c.Expires = last
	}
	raw := make([]byte, 0, rawSize)
	raw = append(raw, k.ID...)
	raw = append(raw, c.ID[:]...)
	raw = binary.BigEndian.AppendUint64(raw, uint64(c.Issued.Unix()))
	raw = binary.BigEndian.AppendUint64(raw, uint64(c.Expires.Unix()))
	return encoding.EncodeToString(c.appendMAC(raw, k)), true
}

// Verify checks that a token is bound to the purpose, host, zone and subject of the
// claims, that a key in force has signed it, and that its time has come and is not
// over. It returns the claims with what the token says.
func (r *Ring) Verify(ctx context.Context, token string, bound Claims, now time.Time) (Claims, bool) {
	raw, ok := decode(token)
	if !ok {
		return Claims{}, false
	}
	c := bound
	copy(c.ID[:], raw[idAt:])
	c.Issued, c.Expires = times(raw)
	if c.Issued.After(now.Add(leeway)) || !now.Before(c.Expires) {
		return Claims{}, false
	}
	k := r.accepted(ctx, raw[:KeyIDSize], now)
	if k == nil || !hmac.Equal(c.appendMAC(nil, k), raw[macAt:]) {
		return Claims{}, false
	}
	return c, true
}

// MAC returns the HMAC-SHA256 of a message, and the ID of the key that made it, for
// tokens of another form. The message must begin with a [Field] that says its purpose,
// which is no other's. MAC returns false if there is no key, because storage could not
// be read yet.
func (r *Ring) MAC(message []byte, now time.Time) (keyID [KeyIDSize]byte, sum [sha256.Size]byte, ok bool) {
	k := r.signing(now)
	if k == nil {
		return keyID, sum, false
	}
	copy(keyID[:], k.ID)
	k.sum(sum[:0], message)
	return keyID, sum, true
}

// Check reports whether a key in force, which the ID names, has made the HMAC of a
// message. The HMAC may be cut off, to 16 bytes at least.
func (r *Ring) Check(ctx context.Context, keyID, message, sum []byte, now time.Time) bool {
	if len(keyID) != KeyIDSize || len(sum) < sha256.Size/2 || len(sum) > sha256.Size {
		return false
	}
	k := r.accepted(ctx, keyID, now)
	if k == nil {
		return false
	}
	want := sums.Get().(*[sha256.Size]byte)
	defer sums.Put(want)
	return hmac.Equal(k.sum(want[:0], message)[:len(sum)], sum)
}

// sums is memory for HMACs, kept between requests.
var sums = sync.Pool{New: func() any { return new([sha256.Size]byte) }}

func (k *key) sum(b, message []byte) []byte {
	mac := k.macs.Get().(hash.Hash)
	defer k.macs.Put(mac)
	mac.Reset()
	mac.Write(message)
	return mac.Sum(b)
}

// Expiry returns when a token says that it expires, without checking that it is
// genuine. It returns false for a text that is no token.
func Expiry(token string) (time.Time, bool) {
	raw, ok := decode(token)
	if !ok {
		return time.Time{}, false
	}
	_, expires := times(raw)
	return expires, true
}

func decode(token string) ([]byte, bool) {
	if len(token) != TokenSize {
		return nil, false
	}
	raw, err := encoding.DecodeString(token)
	return raw, err == nil && len(raw) == rawSize
}

func times(raw []byte) (issued, expires time.Time) {
	at := func(i int) time.Time { return time.Unix(int64(binary.BigEndian.Uint64(raw[i:])), 0) }
	return at(issuedAt), at(expiresAt)
}

// appendMAC appends the HMAC of all claims.
func (c *Claims) appendMAC(b []byte, k *key) []byte {
	return k.sum(b, c.appendTo(nil))
}

// appendTo appends the claims, each as a [Field].
func (c *Claims) appendTo(b []byte) []byte {
	b = Field(b, c.Purpose)
	b = Field(b, c.Host)
	b = Field(b, c.Zone)
	b = Field(b, c.Subject[:])
	b = Field(b, c.ID[:])
	b = Field(b, binary.BigEndian.AppendUint64(nil, uint64(c.Issued.Unix())))
	return Field(b, binary.BigEndian.AppendUint64(nil, uint64(c.Expires.Unix())))
}

// Field appends a field of a message after its length, so that different fields never
// look alike.
func Field[T string | []byte](b []byte, field T) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(field)))
	return append(b, field...)
}
