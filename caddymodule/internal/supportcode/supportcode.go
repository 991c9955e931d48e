// Package supportcode gives refusals short random codes, and remembers what was refused
// under the last of them. So the owner of a site can find out what a visitor has met who
// reads the code aloud. Begin with [Ring].
package supportcode

import (
	"encoding/base32"
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	// kept is how many refusals a Ring remembers, in shares among which networks are spread: else a
	// flood from one would make it forget those of all visitors within seconds.
	kept, shares = 10_000, 10

	// longestKey is how many bytes of a key are kept, since clients choose some keys.
	longestKey = 200

	bits = 40
)

// encoding is Crockford's base32, without the letters that are easily confused.
var encoding = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ")

// A Code names a refusal. Codes are random, so they tell nothing about other refusals.
// Zero is no code.
type Code uint64

// String returns the code as people read it, such as 7K2M-Q8XD. No code is "".
func (c Code) String() string { return string(c.AppendTo(nil)) }

// AppendTo appends what String returns.
func (c Code) AppendTo(text []byte) []byte {
	if c == 0 {
		return text
	}
	var raw, symbols [8]byte
	binary.BigEndian.PutUint64(raw[:], uint64(c))
	encoding.Encode(symbols[:], raw[8-bits/8:])
	return append(append(append(text, symbols[:4]...), '-'), symbols[4:]...)
}

// typed replaces what people write by what a code has.
var typed = strings.NewReplacer("-", "", " ", "", "O", "0", "I", "1", "L", "1")

// Parse reads a code as people write it: in any case, with hyphens and blanks or without,
// and with the letters O, I and L for digits.
func Parse(text string) (c Code, ok bool) {
	raw, err := encoding.DecodeString(typed.Replace(strings.ToUpper(text)))
	if err != nil || len(raw) != bits/8 {
		return 0, false
	}
	c = Code(binary.BigEndian.Uint64(append(make([]byte, 8-bits/8), raw...)))
	return c, c != 0
}

// A Refusal is what is remembered of one. It does not change.
type Refusal struct {
	At       time.Time    `json:"at"`
	Client   netip.Prefix `json:"client,omitzero"` // its address, or the /64 of an IPv6 address
	Zone     string       `json:"zone"`
	Key      string       `json:"key"` // after 200 bytes cut off with …
	Reason   string       `json:"reason"`
	Cost     float64      `json:"cost"`  // in units, like the next two
	Level    float64      `json:"level"` // of the bucket
	Capacity float64      `json:"capacity"`
	Wait     float64      `json:"wait,omitempty"`    // seconds that the visitor was told; 0 if waiting does not help
	Blocked  float64      `json:"blocked,omitempty"` // seconds that were left then
}

// A Coded is a refusal and its code.
type Coded struct {
	Code Code
	Refusal
}

// A Ring remembers the last 10,000 refusals, in ten shares. Clients of one network (IPv4 /24, IPv6
// /48) have a share. It is safe for concurrent use. The zero value is ready for use, and needs no
// memory before the first refusal.
type Ring struct {
	mu     sync.Mutex
	shares [shares][]Coded
	added  [shares]int // how many refusals each share has had
}

var seed = maphash.MakeSeed()

// Add remembers a refusal, instead of an old one, and returns its code.
func (r *Ring) Add(refusal Refusal) (code Code) {
	if len(refusal.Key) > longestKey {
		refusal.Key = strings.ToValidUTF8(refusal.Key[:longestKey], "") + "…" // as the admin API takes one that is cut
	}
	for code == 0 {
		code = Code(rand.Uint64() >> (64 - bits))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := shareOf(refusal.Client)
	if share := r.shares[n]; len(share) < kept/shares {
		r.shares[n] = append(share, Coded{code, refusal})
	} else {
		share[r.added[n]%len(share)] = Coded{code, refusal}
	}
	r.added[n]++
	return code
}

func shareOf(client netip.Prefix) int {
	return int(maphash.Comparable(seed, key.ClientPrefix(client.Addr(), 24, 48)) % shares)
}

// Of returns the last refusal by each key of each zone of clients in a network, the newest
// first.
func (r *Ring) Of(network netip.Prefix) (last []Coded) {
	r.mu.Lock()
	for _, share := range r.shares {
		for i := range share {
			if client := share[i].Client; client.IsValid() && client.Overlaps(network) {
				last = append(last, share[i])
			}
		}
	}
	r.mu.Unlock()
	slices.SortFunc(last, func(a, b Coded) int { return b.At.Compare(a.At) })
	met := make(map[[2]string]bool)
	return slices.DeleteFunc(last, func(one Coded) bool {
		by := [2]string{one.Zone, one.Key}
		again := met[by]
		met[by] = true
		return again
	})
}

// Find returns the refusal of a code, and false if it is not remembered.
func (r *Ring) Find(code Code) (refusal Coded, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, share := range r.shares {
		if i := slices.IndexFunc(share, func(one Coded) bool { return one.Code == code }); i >= 0 {
			return share[i], true
		}
	}
	return Coded{}, false
}
