package redisstore

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// registryKey is the key of the hash that holds the texts.
func (s *Store) registryKey() string { return s.prefix + "@changes" }

// Texts implements [store.Registry].
func (s *Store) Texts(ctx context.Context, seen int64) (all store.Texts, err error) {
	reply, err := s.ask(ctx, registryScript, s.registryKey(), s.now(), strconv.FormatInt(seen, 10), "")
	var before, count int64
	if err == nil {
		reply, err = parseNumbers(reply, &before, &all.Last, &count)
	}
	all.Count = int(count)
	for field := range slices.Chunk(reply, 2) {
		all.Texts = append(all.Texts, parseText(field[0], field[1]))
	}
	return all, s.connection.explain("reading "+s.registryKey(), err)
}

// PutTexts implements [store.Registry].
func (s *Store) PutTexts(ctx context.Context, texts []store.Text) (before, last int64, err error) {
	mark := 1 + rand.Int64N(store.MostNumber-1)
	args := []string{s.now(), "", strconv.FormatInt(mark, 10)}
	for _, t := range texts {
		args = append(args, t.Name, strconv.FormatInt(t.Number, 10), strconv.FormatInt(int64(t.End), 10), t.Text)
	}
	reply, err := s.ask(ctx, registryScript, s.registryKey(), args...)
	var count int64
	if err == nil {
		_, err = parseNumbers(reply, &before, &last, &count)
	}
	return before, last, s.connection.explain("writing "+s.registryKey(), err)
}

// parseNumbers reads the numbers with which a reply begins, and returns the pairs behind them.
func parseNumbers(reply []string, numbers ...*int64) (pairs []string, err error) {
	if pairs := len(reply) - len(numbers); pairs < 0 || pairs%2 != 0 {
		return nil, errGarbage
	}
	for i, n := range numbers {
		if *n, err = strconv.ParseInt(reply[i], 10, 64); err != nil {
			return nil, errGarbage
		}
	}
	return reply[len(numbers):], nil
}

// parseText reads what the field of a name holds, which somebody else may have written.
func parseText(name, value string) store.Text {
	number, rest, _ := strings.Cut(value, " ")
	end, text, whole := strings.Cut(rest, " ")
	n, errNumber := strconv.ParseInt(number, 10, 64)
	ends, errEnd := strconv.ParseInt(end, 10, 64)
	if !whole || errNumber != nil || errEnd != nil || n < 1 || n >= store.MostNumber {
		return store.Text{Name: name}
	}
	return store.Text{Name: name, Number: n, End: leakybucket.Instant(ends), Text: text}
}

var _ store.Registry = (*Store)(nil)
