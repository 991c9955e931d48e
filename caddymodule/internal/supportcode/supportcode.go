// Package supportcode gives refusals short random codes, and remembers what was refused
// under the last of them. So the owner of a site can find out what a visitor has met who
// reads the code aloud. Begin with [Ring].
package supportcode

import (
	"encoding/base32"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/key"
)

const (
	// kept is how many refusals a Ring remembers, and keptOfNetwork of clients in one network: else
	// a flood from one would make it forget those of visitors within seconds.
	kept, keptOfNetwork = 10_000, kept / 10

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
	for _, b := range raw {
		c = c<<8 | Code(b)
	}
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

// A Ring remembers the last 10,000 refusals, of a network (IPv4 /24, IPv6 /48) the last 1,000. It is
// safe for concurrent use. The zero value is ready for use, and needs no memory before the first refusal.
type Ring struct {
	mu   sync.Mutex
	all  []Coded
	next int                    // where the next one goes, once there are as many as are kept
	of   map[netip.Prefix][]int // where those of a network are, in the order of arrival
}

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
	if r.of == nil {
		r.of = make(map[netip.Prefix][]int)
	}
	network, at := networkOf(refusal), len(r.all)
	switch own := r.of[network]; {
	case len(own) == keptOfNetwork:
		at, r.of[network] = own[0], own[1:]
	case at < kept:
		r.all = append(r.all, Coded{})
	default:
		at, r.next = r.next, (r.next+1)%kept
		old := networkOf(r.all[at].Refusal)
		if r.of[old] = slices.DeleteFunc(r.of[old], func(i int) bool { return i == at }); len(r.of[old]) == 0 {
			delete(r.of, old)
		}
	}
	r.all[at] = Coded{code, refusal}
	r.of[network] = append(r.of[network], at)
	return code
}

func networkOf(r Refusal) netip.Prefix { return key.ClientPrefix(r.Client.Addr(), 24, 48) }

// Of returns the last refusal by each key of each zone of clients in a network, the newest
// first.
func (r *Ring) Of(network netip.Prefix) (last []Coded) {
	r.mu.Lock()
	for i := range r.all {
		if client := r.all[i].Client; client.IsValid() && client.Overlaps(network) {
			last = append(last, r.all[i])
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
	if i := slices.IndexFunc(r.all, func(one Coded) bool { return one.Code == code }); i >= 0 {
		return r.all[i], true
	}
	return Coded{}, false
}
