// Package supportcode gives refusals short random codes, and remembers what was refused
// under the last of them. So the owner of a site can find out what a visitor has met who
// reads the code aloud.
package supportcode

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// kept is how many refusals a Ring remembers.
	kept = 10_000

	// longestKey is how many bytes of a key are kept, since clients choose some keys.
	longestKey = 200

	symbols = 8
	bits    = 5 * symbols
)

// alphabet is Crockford's base32, without the letters that are easily confused.
const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

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
	for i := range symbols {
		if i == symbols/2 {
			text = append(text, '-')
		}
		text = append(text, alphabet[c>>(bits-5*(i+1))&31])
	}
	return text
}

// Parse reads a code as people write it: in any case, with hyphens and blanks or without,
// and with the letters O, I and L for digits.
func Parse(text string) (c Code, ok bool) {
	n := 0
	for _, r := range strings.ToUpper(text) {
		switch r {
		case '-', ' ':
			continue
		case 'O':
			r = '0'
		case 'I', 'L':
			r = '1'
		}
		value := strings.IndexRune(alphabet, r)
		if value < 0 || n == symbols {
			return 0, false
		}
		c, n = c<<5|Code(value), n+1
	}
	return c, n == symbols && c != 0
}

// A Refusal is what is remembered of one. It does not change.
type Refusal struct {
	At        time.Time
	Zone, Key string // Key is cut after 200 bytes
	Reason    string
	Cost      float64 // in units, like the next two
	Level     float64 // of the bucket
	Capacity  float64
	Wait      time.Duration // that the visitor was told; 0 if waiting does not help
	Block     time.Duration // that was left then
}

// A Ring remembers the last 10,000 refusals. It is safe for concurrent use. The zero
// value is ready for use, and needs no memory before the first refusal.
type Ring struct {
	slots atomic.Pointer[[kept]slot]
	made  sync.Once
	next  atomic.Uint64
}

// A slot has a lock of its own, so that refusals do not wait for each other.
type slot struct {
	mu      sync.Mutex
	code    Code
	refusal Refusal
}

// Add remembers a refusal, instead of the oldest one, and returns its code.
func (r *Ring) Add(refusal Refusal) Code {
	slots := r.slots.Load()
	if slots == nil {
		r.made.Do(func() { r.slots.Store(new([kept]slot)) })
		slots = r.slots.Load()
	}
	if len(refusal.Key) > longestKey {
		refusal.Key = strings.Clone(strings.ToValidUTF8(refusal.Key[:longestKey], ""))
	}
	code := Code(0)
	for code == 0 {
		code = Code(rand.Uint64() >> (64 - bits))
	}
	s := &slots[r.next.Add(1)%kept]
	s.mu.Lock()
	s.code, s.refusal = code, refusal
	s.mu.Unlock()
	return code
}

// Find returns the refusal of a code, and false if it is not remembered.
func (r *Ring) Find(code Code) (Refusal, bool) {
	slots := r.slots.Load()
	if slots == nil || code == 0 {
		return Refusal{}, false
	}
	for i := range slots {
		if refusal, found := slots[i].get(code); found {
			return refusal, true
		}
	}
	return Refusal{}, false
}

func (s *slot) get(code Code) (refusal Refusal, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.code == code {
		return s.refusal, true
	}
	return refusal, false
}
