package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// scannedKeys is about how many keys the server looks at in one step of a SCAN at most. That
// takes it a fraction of a millisecond, in which it serves nobody else.
const scannedKeys = 1000

// pattern quotes text for the MATCH of a SCAN.
var pattern = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)

// List implements [store.Lister]. It goes through all keys of the database with
// SCAN. Of a cluster it asks one server after another.
func (s *Store) List(ctx context.Context, of store.Filter, from string) ([]store.Entry, string, error) {
	kept, next, err := s.list(ctx, of, from)
	if !errors.Is(err, store.ErrBadCursor) {
		err = s.connection.explain("listing buckets", err)
	}
	return kept, next, err
}

func (s *Store) list(ctx context.Context, of store.Filter, from string) ([]store.Entry, string, error) {
	nodes, addresses, err := s.nodes(ctx)
	if err != nil {
		return nil, "", err
	}
	if len(addresses) == 0 {
		return nil, "", nil
	}
	at, address := uint64(0), addresses[0]
	if from != "" {
		text, node, two := strings.Cut(from, "@")
		at, err = strconv.ParseUint(text, 10, 64)
		if err != nil || !two || !slices.Contains(addresses, node) || at == 0 && node == address {
			return nil, "", fmt.Errorf("%w: no server made it", store.ErrBadCursor)
		}
		address = node
	}
	start := s.name(of.Zone, "", of.Shadow)
	keys, at, err := s.scan(ctx, nodes[address], at, pattern.Replace(start+of.Prefix)+"*", max(1, min(of.Scan, scannedKeys)))
	if err != nil {
		return nil, "", err
	}
	kept, err := s.read(ctx, keys)
	if err != nil {
		return nil, "", err
	}
	for i := range kept {
		kept[i].Key = strings.TrimPrefix(kept[i].Key, start)
	}
	if at == 0 {
		i := slices.Index(addresses, address) + 1
		if i == len(addresses) {
			return kept, "", nil
		}
		address = addresses[i]
	}
	return kept, fmt.Sprintf("%d@%s", at, address), nil
}

// nodes returns a client for each server that has keys of its own, and their addresses
// in order. The only server has no address.
func (s *Store) nodes(ctx context.Context) (map[string]rueidis.Client, []string, error) {
	client, err := s.connection.ready(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes := map[string]rueidis.Client{"": client}
	if s.connection.target.mode == cluster {
		nodes = client.Nodes()
	}
	return nodes, slices.Sorted(maps.Keys(nodes)), nil
}

// scan makes one step.
func (s *Store) scan(ctx context.Context, node rueidis.Client, cursor uint64, match string, count int) ([]string, uint64, error) {
	entry, err := ask(ctx, s.connection, func(rueidis.Client) (rueidis.ScanEntry, error) {
		return node.Do(context.Background(), node.B().Scan().Cursor(cursor).Match(match).Count(int64(count)).Build()).AsScanEntry()
	})
	return entry.Elements, entry.Cursor, err
}

// read returns the buckets of keys. A key that has expired, or is no bucket, is left out. In a
// cluster it asks the servers that the keys may have moved to.
func (s *Store) read(ctx context.Context, keys []string) (found []store.Entry, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	var time []int64 // seconds and microseconds
	answers, err := ask(ctx, s.connection, func(client rueidis.Client) (values []rueidis.RedisResult, err error) {
		if time, err = client.Do(context.Background(), client.B().Time().Build()).AsIntSlice(); err != nil {
			return nil, err
		}
		var gets []rueidis.Completed
		for _, key := range keys {
			gets = append(gets, client.B().Get().Key(key).Build())
		}
		return client.DoMulti(context.Background(), gets...), nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(time) != 2:
		return nil, errGarbage
	}
	now := leakybucket.Instant(cmp.Or(s.held.Load(), time[0]*1e6+time[1]))
	for i, key := range keys {
		text, err := answers[i].ToString()
		if _, answered := rueidis.IsRedisErr(err); err != nil && !answered {
			return nil, err
		}
		if state, ok := parseState(text); ok {
			found = append(found, store.Entry{Key: key, State: state, Now: now})
		}
	}
	return found, nil
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
		if numbers[i], err = strconv.ParseFloat(word, 64); err != nil || !(numbers[i] >= 0) {
			return state, false
		}
	}
	return leakybucket.State{
		Level: numbers[0], At: leakybucket.Instant(numbers[1]), Leak: numbers[2],
		BlockedUntil: leakybucket.Instant(numbers[3]), Step: uint8(min(numbers[4], 255)),
	}, true
}
