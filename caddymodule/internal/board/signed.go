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
	raw, err := json.Marshal(says)
	if err != nil {
		return "", false // not so
	}
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

// A posted is a post with what it says, which is nil if none of our nodes has written it.
type posted struct {
	leakybucket.Post
	says *record
}

// posts reads what is on the board, lowest version first. It may ask the storage for keys.
func (s *Signed) posts(ctx context.Context, all []leakybucket.Post, now time.Time) (read []posted) {
	for _, p := range all {
		says := new(record)
		if !s.open(ctx, ofPost, p.Name, p.Text, says, now) || says.Version != p.Version || postName(says.Name) != p.Name {
			says = nil
		}
		read = append(read, posted{p, says})
	}
	slices.SortFunc(read, func(a, b posted) int { return cmp.Compare(a.Version, b.Version) })
	return read
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
