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

// Bound is what alone a token is good for.
type Bound struct {
	Purpose    string // a label, which no other kind of token has
	Host, Zone string
	Subject    string // what the token is about, such as an account
}

// A token is, in base64url: the ID of the key, what the token says, and half an
// HMAC-SHA256. Its kind says how long that is.
const (
	macSize  = sha256.Size / 2
	overhead = KeyIDSize + macSize
)

// encoding refuses texts that another text stands for, too.
var encoding = base64.RawURLEncoding.Strict()

// TokenSize returns the length of a token that says so many bytes.
func TokenSize(says int) int { return encoding.EncodedLen(overhead + says) }

// A scratch is memory for tokens, kept between requests.
type scratch struct {
	token, raw, message []byte
	sum                 [sha256.Size]byte
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Sign returns a token that says something. It returns false if there is no key, because
// storage could not be read yet.
func (r *Ring) Sign(b *Bound, says []byte) (token string, ok bool) {
	k := r.key.Load()
	if k == nil {
		return "", false
	}
	m := scratches.Get().(*scratch)
	defer scratches.Put(m)
	m.raw = append(append(append(m.raw[:0], k.ID...), says...), m.mac(k, b, says)...)
	return encoding.EncodeToString(m.raw), true
}

// Open reads into says what a token says, as long as that must be. It returns false if no
// key in force has signed the token for what it is to be good for.
func (r *Ring) Open(ctx context.Context, token string, b *Bound, says []byte, now time.Time) (genuine bool) {
	m := scratches.Get().(*scratch)
	defer scratches.Put(m)
	if !m.decode(token, says) {
		return false
	}
	k := r.accepted(ctx, m.raw[:KeyIDSize], now)
	return k != nil && hmac.Equal(m.mac(k, b, says), m.raw[KeyIDSize+len(says):])
}

// Read is Open for a token that anybody may have made.
func Read(token string, says []byte) (ok bool) {
	m := scratches.Get().(*scratch)
	defer scratches.Put(m)
	return m.decode(token, says)
}

func (m *scratch) decode(token string, says []byte) bool {
	if len(token) != TokenSize(len(says)) {
		return false
	}
	m.token = append(m.token[:0], token...)
	m.raw = append(m.raw[:0], m.token...) // longer than what comes of it
	n, err := encoding.Decode(m.raw, m.token)
	if err != nil || n != overhead+len(says) {
		return false
	}
	m.raw = m.raw[:n]
	copy(says, m.raw[KeyIDSize:])
	return true
}

// mac returns the HMAC of all that a token is bound to and says. It holds until the next
// call.
func (m *scratch) mac(k *key, b *Bound, says []byte) []byte {
	m.message = m.message[:0]
	for _, field := range [...]string{b.Purpose, b.Host, b.Zone, b.Subject} {
		m.message = Field(m.message, field)
	}
	m.message = append(m.message, says...)
	mac := k.macs.Get().(hash.Hash)
	defer k.macs.Put(mac)
	mac.Reset()
	mac.Write(m.message)
	return mac.Sum(m.sum[:0])[:macSize]
}

// Field appends a field of a message after its length, so that different fields never
// look alike.
func Field(b []byte, field string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(field)))
	return append(b, field...)
}
