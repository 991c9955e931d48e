package redisstore

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// name returns the name of a bucket's key.
func (s *Store) name(zone, key string, shadow bool) string {
	if shadow {
		return s.prefix + "~" + zone + "/" + key
	}
	return s.prefix + zone + "/" + key
}

// takeRequest writes charges as take.lua reads them.
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

// settleRequest writes settlements as settle.lua reads them.
func (s *Store) settleRequest(settlements []leakybucket.Settlement) *request {
	r := &request{keys: make([]string, len(settlements)), args: make([]string, 0, 2*len(settlements))}
	for i := range settlements {
		st := &settlements[i]
		c := &st.Charge
		r.keys[i] = s.name(c.Zone, c.Key, c.Shadow)
		text := make([]byte, 0, 80)
		switch {
		case st.Cancel && st.Was.Poured:
			text = append(text, "cancel"...)
		case st.Cancel || st.Diff != st.Diff:
			text = append(text, "none"...)
		default:
			text = appendFloat(text, st.Diff)
		}
		poured := 0.0
		if st.Was.Poured {
			poured = c.Cost
		}
		text = appendFloat(append(text, ' '), poured)
		text = appendFloat(append(text, ' '), st.Was.Level)
		text = strconv.AppendInt(append(text, ' '), int64(st.Was.At), 10)
		r.args = append(r.args, terms(c, i == len(settlements)-1), string(text))
	}
	return r
}

// terms writes what bucket.lua calls the terms of a charge.
func terms(c *leakybucket.Charge, last bool) string {
	text := append(make([]byte, 0, 64), '.') // never empty
	if last {
		text = append(text, 'l')
	}
	if c.Shadow {
		text = append(text, 's')
	}
	if c.Probe {
		text = append(text, 'p')
	}
	if c.Block != nil {
		text = append(text, 'b')
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

// appendFloat writes a number so that it is the same once read. Infinities,
// which not every Lua can read, become the largest number there is.
func appendFloat(text []byte, number float64) []byte {
	number = min(max(number, -math.MaxFloat64), math.MaxFloat64)
	return strconv.AppendFloat(text, number, 'g', -1, 64)
}

// parseDecisions reads a line of take.lua's reply.
func parseDecisions(r reply, decisions []leakybucket.Decision) error {
	rest := r.line
	for i := range decisions {
		var flagsText, levelText, blockedText string
		flagsText, rest, _ = strings.Cut(rest, " ")
		levelText, rest, _ = strings.Cut(rest, " ")
		blockedText, rest, _ = strings.Cut(rest, " ")
		flags, errFlags := strconv.ParseUint(flagsText, 10, 3)
		level, errLevel := strconv.ParseFloat(levelText, 64)
		blocked, errBlocked := strconv.ParseInt(blockedText, 10, 64)
		if errFlags != nil || errLevel != nil || errBlocked != nil || !(level >= 0) {
			return errGarbage
		}
		decisions[i] = leakybucket.Decision{
			Fits: flags&1 != 0, Poured: flags&2 != 0, Began: flags&4 != 0,
			Level: level, At: r.at, BlockedUntil: leakybucket.Instant(blocked),
		}
	}
	if rest != "" {
		return errGarbage
	}
	return nil
}

// fault returns what a script says is wrong with a bucket of the request.
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
	return fmt.Errorf("reading key %.80q: %.80q: %w: delete it, or use another prefix", r.keys[i-1], why, leakybucket.ErrBadBucket)
}
