package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// scannedKeys is about how many keys the server looks at in one step of a SCAN at most. That
// takes it a fraction of a millisecond, in which it serves nobody else.
const scannedKeys = 1000

// pattern quotes text for the MATCH of a SCAN.
var pattern = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)

// List implements [store.Lister]. It goes through all keys of the database with SCAN.
func (s *Store) List(ctx context.Context, of store.Filter, from string) (some []store.Entry, next string, err error) {
	if at, err := strconv.ParseUint(cmp.Or(from, "1"), 10, 64); err != nil || at == 0 {
		return nil, "", fmt.Errorf("%w: no server made it", store.ErrBadCursor)
	}
	start := s.name(of.Zone, "", of.Shadow)
	count := strconv.Itoa(max(1, min(of.Scan, scannedKeys)))
	reply, err := s.ask(ctx, listScript, s.prefix, s.now(), cmp.Or(from, "0"), pattern.Replace(start+of.Prefix)+"*", count)
	var now int64
	if err == nil && len(reply) > 0 {
		next, reply = strings.TrimPrefix(reply[0], "0"), reply[1:] // no other cursor begins with 0
	}
	if err == nil {
		reply, err = parseNumbers(reply, &now)
	}
	for kept := range slices.Chunk(reply, 2) {
		if state, ok := parseState(kept[1]); ok { // what is no bucket is left out
			some = append(some, store.Entry{Key: strings.TrimPrefix(kept[0], start), State: state, Now: leakybucket.Instant(now)})
		}
	}
	return some, next, s.connection.explain("listing buckets", err)
}

// parseState reads a bucket as bucket.lua writes it.
func parseState(text string) (state leakybucket.State, ok bool) {
	words := strings.Split(text, " ")
	if len(words) != 3 && len(words) != 5 {
		return state, false
	}
	var numbers [5]float64
	for i, word := range words {
		var err error
		if numbers[i], err = strconv.ParseFloat(word, 64); err != nil || !(0 <= numbers[i] && numbers[i] < 1e300) { // as bucket.lua does
			return state, false
		}
	}
	instant := func(n float64) leakybucket.Instant { return leakybucket.Instant(min(n, 1<<instantBits)) }
	return leakybucket.State{
		Level: numbers[0], At: instant(numbers[1]), Leak: numbers[2],
		BlockedUntil: instant(numbers[3]), Step: uint8(numbers[4]),
	}, numbers[4] <= 255
}
