package redisstore

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const (
	// longestKey is the most bytes of a key that are sent, with prefix and zone.
	longestKey = 32 << 10

	// mostKeys is how many buckets one call may name. They cannot be divided among calls,
	// and the server serves nobody else meanwhile.
	mostKeys = 1000
)

// A request asks one script on behalf of one caller.
type request struct {
	keys  []string
	args  []string // two for each key
	reply reply
}

// A reply is what a script answers to one request.
type reply struct {
	at   leakybucket.Instant
	line string
	err  error
}

// escaped escapes the name of a zone, so that no two buckets share a key.
var escaped = strings.NewReplacer("%", "%25", "~", "%7E", "/", "%2F")

// name returns the Redis key of a bucket.
func (s *Store) name(zone, key string, shadow bool) string {
	sign := ""
	if shadow {
		sign = "~"
	}
	return s.prefix + sign + escaped.Replace(zone) + "/" + key
}

// check says why the request cannot be sent.
func (r *request) check() error {
	if len(r.keys) > mostKeys {
		return fmt.Errorf("%w but %d in one call: want at most %d", store.ErrBadBucket, len(r.keys), mostKeys)
	}
	for _, key := range r.keys {
		if len(key) > longestKey {
			return fmt.Errorf("got a key of %d bytes, %.80q..., want at most %d: %w", len(key), key, longestKey, store.ErrBadBucket)
		}
	}
	return nil
}

// takeRequest encodes charges for take.lua.
func (s *Store) takeRequest(charges []leakybucket.Charge) *request {
	r := &request{keys: make([]string, len(charges)), args: make([]string, 0, 2*len(charges))}
	for i := range charges {
		c := &charges[i]
		r.keys[i] = s.name(c.Zone, c.Key, c.Shadow)
		cost := ""
		if c.Cost == c.Cost {
			cost = string(appendFloat(nil, c.Cost))
		}
		r.args = append(r.args, terms(c, i == len(charges)-1), cost)
	}
	return r
}

// settleRequest encodes settlements for settle.lua.
func (s *Store) settleRequest(settlements []leakybucket.Settlement) *request {
	r := &request{keys: make([]string, len(settlements)), args: make([]string, 0, 2*len(settlements))}
	for i := range settlements {
		st := &settlements[i]
		c := &st.Charge
		r.keys[i] = s.name(c.Zone, c.Key, c.Shadow)
		poured := 0.0
		if st.Was.Poured {
			poured = c.Cost
		}
		text := make([]byte, 0, 80)
		switch diff := max(st.Diff, -poured); {
		case st.Cancel && st.Was.Poured:
			text = append(text, "cancel"...)
		case st.Cancel || diff != diff:
			text = append(text, '0')
		default:
			text = appendFloat(text, diff)
		}
		text = appendFloat(append(text, ' '), st.Was.Level)
		text = appendFloat(append(text, ' '), st.Was.Level+poured)
		text = strconv.AppendInt(append(text, ' '), int64(st.Was.At), 10)
		r.args = append(r.args, terms(c, i == len(settlements)-1), string(text))
	}
	return r
}

// terms encodes the part of a charge that bucket.lua calls its terms.
func terms(c *leakybucket.Charge, last bool) string {
	text := append(make([]byte, 0, 64), '.') // never empty
	if last {
		text = append(text, 'l')
	}
	if c.Probe {
		text = append(text, 'p')
	}
	if c.Block != nil {
		text = append(text, 'b')
	}
	if c.Shadow {
		text = append(text, 's')
	}
	for _, number := range [...]float64{c.Limit.Capacity, c.Limit.Leak, c.Debt, c.Ceiling} {
		text = appendFloat(append(text, ' '), number)
	}
	if c.Block != nil {
		for _, step := range c.Block.Steps {
			text = strconv.AppendInt(append(text, ' '), step.Microseconds(), 10)
		}
	}
	return string(text)
}

// appendFloat encodes a number exactly. Infinities become the largest finite
// number, because not every Lua reads them.
func appendFloat(text []byte, number float64) []byte {
	number = min(max(number, -math.MaxFloat64), math.MaxFloat64)
	return strconv.AppendFloat(text, number, 'g', -1, 64)
}

// parseDecisions decodes a line of take.lua's reply.
func parseDecisions(r reply, decisions []leakybucket.Decision) error {
	rest := r.line
	for i := range decisions {
		var flagsText, levelText, blockedText string
		flagsText, rest, _ = strings.Cut(rest, " ")
		levelText, rest, _ = strings.Cut(rest, " ")
		blockedText, rest, _ = strings.Cut(rest, " ")
		flags, errFlags := strconv.ParseUint(flagsText, 10, 11) // 3 flags and a step of 8 bits
		level, errLevel := strconv.ParseFloat(levelText, 64)
		blocked, errBlocked := strconv.ParseUint(blockedText, 10, instantBits)
		if errFlags != nil || errLevel != nil || errBlocked != nil || !(level >= 0 && level < 1e300) { // as bucket.lua does
			return errGarbage
		}
		decisions[i] = leakybucket.Decision{
			Fits: flags&1 != 0, Poured: flags&2 != 0, Began: flags&4 != 0,
			Level: level, At: r.at, BlockedUntil: leakybucket.Instant(blocked), Step: uint8(flags >> 3),
		}
	}
	if rest != "" {
		return errGarbage
	}
	return nil
}

// fault returns the error that a script reports of a bucket of the request.
func (r *request) fault() error {
	text, faulty := strings.CutPrefix(r.reply.line, "!")
	if !faulty {
		return nil
	}
	number, why, _ := strings.Cut(text, " ")
	i, err := strconv.Atoi(number)
	if err != nil || i < 1 || i > len(r.keys) {
		return errGarbage
	}
	return fmt.Errorf("reading key %.80q: %.80q: %w: delete it, or use another prefix", r.keys[i-1], why, store.ErrBadBucket)
}
