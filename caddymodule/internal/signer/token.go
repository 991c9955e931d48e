package signer

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
)

// Bound is what alone a token is good for.
type Bound struct {
	Purpose    string // a label, which no other kind of token has
	Host, Zone string
	Subject    string // what the token is about, such as an account
}

// A token is, in base64url, what it says and half an HMAC-SHA256. Its kind says how long that is.
const macSize = sha256.Size / 2

// encoding refuses texts that another text stands for, too.
var encoding = base64.RawURLEncoding.Strict()

// TokenSize returns the length of a token that says so many bytes.
func TokenSize(says int) int { return encoding.EncodedLen(says + macSize) }

// Sign returns a token that says something. It returns false if there is no key, because
// storage could not be read yet.
func (r *Ring) Sign(b *Bound, says []byte) (token string, ok bool) {
	key := r.key.Load()
	if key == nil {
		return "", false
	}
	return encoding.EncodeToString(slices.Concat(says, mac(*key, b, says))), true
}

// Open reads into says what a token says, as long as that must be, and reports whether the key in
// force has signed the token for what it is to be good for. Otherwise it is none, or anybody may
// have made it.
func (r *Ring) Open(token string, b *Bound, says []byte) (read, genuine bool) {
	if len(token) != TokenSize(len(says)) {
		return false, false // before it is decoded: cookies may be long
	}
	raw, err := encoding.DecodeString(token)
	if err != nil || len(raw) != len(says)+macSize {
		return false, false
	}
	sum, key := raw[copy(says, raw):], r.key.Load()
	return true, key != nil && hmac.Equal(mac(*key, b, says), sum)
}

// mac returns the HMAC of all that a token is bound to and says.
func mac(key []byte, b *Bound, says []byte) []byte {
	var message []byte
	for _, field := range [...]string{b.Purpose, b.Host, b.Zone, b.Subject} {
		message = Field(message, field)
	}
	sum := hmac.New(sha256.New, key)
	sum.Write(append(message, says...))
	return sum.Sum(nil)[:macSize]
}

// Field appends a field of a message after its length, so that different fields never
// look alike.
func Field(b []byte, field string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(field)))
	return append(b, field...)
}
