package pgstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// listedRows is how many rows are read at once at most.
const listedRows = 1000

// List implements [store.Lister]. It reads the index from the prefix on, and locks
// no row. Keys whose names are digests are not found. The cursor is the next name.
func (s *Store) List(ctx context.Context, of store.Filter, cursor string) (some []store.Entry, next string, err error) {
	start := s.name(of.Zone, "", of.Shadow)
	from, to := []byte(start+of.Prefix), after(start+of.Prefix)
	if cursor != "" {
		at, err := hex.DecodeString(cursor)
		if err != nil || !bytes.HasPrefix(at, from) {
			return nil, "", fmt.Errorf("%w: it is not of this zone and prefix", store.ErrBadCursor)
		}
		from = at
	}
	want := max(1, min(of.Scan, listedRows))
	err = s.onTable(ctx, func(p *pipeline) { p.add(s.sql["list"], from, to, s.now(), int64(want)) }, func(values [][]byte) error {
		_, state := decodeRow(values)
		some = append(some, store.Entry{Key: string(values[0]), State: state, Now: leakybucket.Instant(word(values[7]))})
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	if len(some) == want {
		next = hex.EncodeToString(append([]byte(some[want-1].Key), 0)) // the next name there can be
	}
	for i := range some {
		some[i].Key = strings.TrimPrefix(some[i].Key, start)
	}
	return some, next, nil
}

// after returns the first name behind all that begin with a prefix, which holds a
// slash.
func after(prefix string) []byte {
	end := []byte(prefix)
	for end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	end[len(end)-1]++
	return end
}
