package board

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// What a signature is for, so that none of one kind passes as one of another.
const (
	ofPost = "board post"
	ofBeat = "board beat"
)

// A Signed board is that of a store, as one config uses it.
type Signed struct {
	leakybucket.Board
	Keys  *signer.Ring
	Zones []string // of the config
}

// sign returns a text of the board: a token over its name, what it says, and the name of
// the board, and then what it says. It returns false if there is no key yet.
func (s *Signed) sign(kind, name string, says any) (text string, ok bool) {
	raw, _ := json.Marshal(says) // which fails for nothing that is said
	token, ok := s.Keys.Sign(s.bound(kind, name, string(raw)), nil)
	return token + string(raw), ok
}

func (s *Signed) bound(kind, name, says string) *signer.Bound {
	return &signer.Bound{Purpose: kind, Host: s.BoardName(), Zone: name, Subject: says}
}

// open reads what a text of the board says, and returns false if none of our nodes has
// written it there.
func (s *Signed) open(ctx context.Context, kind, name, text string, into any, now time.Time) (genuine bool) {
	size := signer.TokenSize(0)
	if len(text) < size {
		return false
	}
	token, raw := text[:size], text[size:]
	return s.Keys.Open(ctx, token, s.bound(kind, name, raw), nil, now) && json.Unmarshal([]byte(raw), into) == nil
}

// post returns a record as the board has it.
func (s *Signed) post(r *record) (p leakybucket.Post, ok bool) {
	says := *r
	says.Untold = false
	p = leakybucket.Post{Name: postName(r.Name), Version: r.Version, Was: r.Was}
	p.Text, ok = s.sign(ofPost, p.Name, says)
	return p, ok
}

// posts reads what is on the board, lowest version first, and returns the versions of those
// that none of our nodes has written by their names. It may ask the storage for keys.
func (s *Signed) posts(ctx context.Context, all []leakybucket.Post, now time.Time) (read []*record, foreign map[string]int64) {
	foreign = make(map[string]int64)
	for _, p := range all {
		k := new(record)
		if s.open(ctx, ofPost, p.Name, p.Text, k, now) && k.Version == p.Version && postName(k.Name) == p.Name {
			read = append(read, k)
		} else {
			foreign[p.Name] = p.Version
		}
	}
	slices.SortFunc(read, func(a, b *record) int { return cmp.Compare(a.Version, b.Version) })
	return read, foreign
}

// nodes reads what the other nodes say, and counts those with other keys.
func (s *Signed) nodes(ctx context.Context, all []leakybucket.Beat, now time.Time) (nodes map[string]Node, strangers int) {
	nodes = make(map[string]Node)
	for _, beat := range all {
		n := Node{ID: beat.Node, Heard: now.Add(-beat.Age)}
		switch {
		case !s.open(ctx, ofBeat, beat.Node, beat.Text, &n, now):
			strangers++
		case !n.Left:
			nodes[n.ID] = n
		}
	}
	return nodes, strangers
}
