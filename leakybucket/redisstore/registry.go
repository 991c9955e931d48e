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
	if err == nil {
		all, err = parseTexts(reply)
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
	if err == nil {
		before, last, err = parseWrite(reply)
	}
	return before, last, s.connection.explain("writing "+s.registryKey(), err)
}

func parseWrite(reply []string) (before, last int64, err error) {
	if len(reply) < 3 || len(reply)%2 != 1 {
		return 0, 0, errGarbage
	}
	before, errBefore := strconv.ParseInt(reply[0], 10, 64)
	last, errLast := strconv.ParseInt(reply[1], 10, 64)
	if errBefore != nil || errLast != nil {
		return 0, 0, errGarbage
	}
	return before, last, nil
}

func parseTexts(reply []string) (all store.Texts, err error) {
	if _, all.Last, err = parseWrite(reply); err != nil {
		return all, err
	}
	if all.Count, err = strconv.Atoi(reply[2]); err != nil {
		return all, errGarbage
	}
	for field := range slices.Chunk(reply[3:], 2) {
		all.Texts = append(all.Texts, parseText(field[0], field[1]))
	}
	return all, nil
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
