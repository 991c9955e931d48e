package board

import (
	"context"
	"encoding/json"
	"net/url"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// What a signature is for, so that none of one kind passes as one of another.
const (
	ofPost = "board post"
	ofBeat = "board beat"
)

// sign returns a text of the board: a token over its name, what it says, and the name of
// the board, and then what it says. It returns false if there is no key yet.
func (s *Shared) sign(kind, name string, says any) (text string, ok bool) {
	raw, err := json.Marshal(says)
	if err != nil {
		return "", false // not so
	}
	token, ok := s.Keys.Sign(s.bound(kind, name, string(raw)), nil)
	return token + string(raw), ok
}

func (s *Shared) bound(kind, name, says string) *signer.Bound {
	return &signer.Bound{Purpose: kind, Host: s.BoardName(), Zone: name, Subject: says}
}

// open reads what a text of the board says, and returns false if none of our nodes has
// written it there.
func (s *Shared) open(ctx context.Context, kind, name, text string, into any, now time.Time) (genuine bool) {
	size := signer.TokenSize(0)
	if len(text) < size {
		return false
	}
	token, raw := text[:size], text[size:]
	return s.Keys.Open(ctx, token, s.bound(kind, name, raw), nil, now) && json.Unmarshal([]byte(raw), into) == nil
}

// post returns a change as the board has it.
func (s *Shared) post(k *kept) (p leakybucket.Post, ok bool) {
	says := *k
	says.Untold = false
	p = leakybucket.Post{Name: nameOf(k.Name), Version: k.Version, Was: k.Was}
	p.Text, ok = s.sign(ofPost, p.Name, says)
	return p, ok
}

// read returns the change of a post, or nil if none of our nodes has written it.
func (s *Shared) read(ctx context.Context, p *leakybucket.Post, now time.Time) *kept {
	k := new(kept)
	if !s.open(ctx, ofPost, p.Name, p.Text, k, now) || k.Version != p.Version || nameOf(k.Name) != p.Name {
		return nil
	}
	return k
}

// nameOf returns the name of a change on the board.
func nameOf(n override.Name) string {
	return string(n.Kind) + "/" + url.PathEscape(n.Zone) + "/" + url.PathEscape(n.Key)
}
