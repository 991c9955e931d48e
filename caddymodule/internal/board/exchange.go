package board

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	pollEvery = time.Second

	// readEvery is how often the whole board is read, which finds what a failover or
	// somebody's hand has taken off it.
	readEvery = 30 * time.Second

	patience = time.Second // for an exchange
	mostPost = 1000        // in one
)

// Run follows the board until stop is closed.
func (b *Board) Run(stop <-chan struct{}) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		case <-b.again:
		}
		b.talking.Lock()
		b.poll(context.Background())
		b.talking.Unlock()
	}
}

// pollAgain lets Run poll at once.
func (b *Board) pollAgain() {
	select {
	case b.again <- struct{}{}:
	default:
	}
}

// poll tells and reads, and reports whether the board has answered. talking is held.
func (b *Board) poll(ctx context.Context) (answered bool) {
	_, err := b.exchange(ctx, nil)
	return err == nil
}

var errUnshared = fmt.Errorf("the store has no board")

// exchange tells the board all that it does not know, and one more change, if there is one,
// and takes over what is new on it. It reports whether that change was written. talking is
// held.
func (b *Board) exchange(ctx context.Context, own *kept) (wrote bool, err error) {
	now := time.Now()
	b.mu.Lock()
	s := b.shared
	if s == nil {
		b.mu.Unlock()
		return false, errUnshared
	}
	whole := b.unread || now.Sub(b.read) >= readEvery
	call, err := b.call(s, own, now)
	if whole {
		call.After = 0
	}
	b.mu.Unlock()
	var answer leakybucket.BoardAnswer
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		answer, err = s.Exchange(ctx, call)
	}
	read, heard := s.readAll(ctx, &answer, now)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shared != s {
		return false, errUnshared
	}
	if b.failed(err); err != nil {
		return false, err
	}
	b.hear(heard, now)
	return b.take(&answer, read, own, whole, now), nil
}

// call returns what is to be told, with versions above all that were read.
func (b *Board) call(s *Shared, own *kept, now time.Time) (call leakybucket.BoardCall, err error) {
	call = leakybucket.BoardCall{After: b.after, Node: b.id}
	var signed bool
	if call.Beat, signed = s.sign(ofBeat, b.id, b.says(s, now)); !signed {
		return call, fmt.Errorf("there is no signing key yet: see signing_key")
	}
	version := max(now.UnixMicro(), b.after+1)
	add := func(k *kept) {
		k.Version = version
		if p, ok := s.post(k); ok {
			call.Posts = append(call.Posts, p)
			version++
		}
	}
	if own != nil {
		add(own)
	}
	for _, k := range b.kept {
		if k.Untold && len(call.Posts) < mostPost && (own == nil || own.Name != k.Name) {
			add(k)
		}
	}
	for _, p := range b.remove {
		p.Version = version
		call.Posts = append(call.Posts, p)
		version++
	}
	b.remove = nil
	return call, nil
}

// A posted is a post with what it says, which is nil if none of our nodes has written it.
type posted struct {
	leakybucket.Post
	says *kept
}

// readAll reads what is on the board, lowest version first. It may ask the storage for keys.
func (s *Shared) readAll(ctx context.Context, answer *leakybucket.BoardAnswer, now time.Time) (posts []posted, beats []heard) {
	for _, p := range answer.Posts {
		posts = append(posts, posted{p, s.read(ctx, &p, now)})
	}
	slices.SortFunc(posts, func(a, b posted) int { return cmp.Compare(a.Version, b.Version) })
	for _, beat := range answer.Beats {
		h := heard{Beat: beat}
		h.genuine = s.open(ctx, ofBeat, beat.Node, beat.Text, &h.says, now)
		beats = append(beats, h)
	}
	return posts, beats
}

// take takes over what is new, and reports whether a change of this node is there.
func (b *Board) take(answer *leakybucket.BoardAnswer, posts []posted, own *kept, whole bool, now time.Time) (wrote bool) {
	changed := false
	there := make(map[string]*posted, len(posts))
	if whole {
		clear(b.foreign)
	}
	highest := answer.Latest
	for i := range posts {
		p := &posts[i]
		if there[p.Name] = p; p.says == nil {
			b.foreign[p.Name] = p.Version
			continue
		}
		highest = max(highest, p.Version)
		switch {
		case own != nil && p.says.Name == own.Name && p.says.same(own):
			own.Version, wrote = p.Version, true
		default:
			changed = b.merge(p.says, now) || changed
		}
		delete(b.foreign, p.Name)
	}
	for name, k := range b.kept {
		p := there[nameOf(name)]
		foreign := p != nil && p.says == nil
		switch {
		case k.gone(now):
			b.takeOff(k)
			delete(b.kept, name)
			changed = true
		case k.Untold:
			b.unread = true // whoever was in the way is found
			if foreign {
				k.Was = p.Version
			} else if p == nil && whole {
				k.Was = 0
			}
		case p == nil && whole: // it was lost
			k.Was, k.Untold, changed = 0, true, true
		case foreign && p.Version == k.Version: // the keys were changed since
			k.Was, k.Untold, changed = k.Version, true, true
			delete(b.foreign, p.Name)
		}
	}
	if whole {
		b.read = now
	}
	b.unread = answer.Latest < b.after || !whole && b.unread
	if b.after = highest; changed {
		b.pollAgain() // the others wait to hear how far this node has read
		b.save()
	}
	return wrote
}

// takeOff takes a change off the board that nobody needs to know any more.
func (b *Board) takeOff(k *kept) {
	if !k.Untold && len(b.remove) < mostPost {
		b.remove = append(b.remove, leakybucket.Post{Name: nameOf(k.Name), Was: k.Version})
	}
}

// failed notes how an exchange ended, and logs it if that is new.
func (b *Board) failed(err error) {
	switch {
	case err != nil && b.err == nil:
		b.logger.Warn("other Caddys are not told of changes at run time, nor this one of theirs; it is tried again every second", zap.Error(err))
	case err == nil && b.err != nil:
		b.logger.Info("changes at run time are shared again")
	}
	b.err = err
}
