package board

import (
	"context"
	"errors"
	"maps"
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

	waited    = 2500 * time.Millisecond // for other nodes
	waitEvery = 150 * time.Millisecond
)

// exchanged is how far a replica has come with its board.
type exchanged struct {
	board *Signed // nil while there is none
	err   error   // of the last exchange

	after   int64            // the highest version that was read
	read    time.Time        // when the whole board was; zero if it is unread
	foreign map[string]int64 // versions of posts that nobody with our keys has written, which are ignored
}

// Run follows the board until stop is closed.
func (r *Replica) Run(stop <-chan struct{}) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		case <-r.again:
		}
		r.talking.Lock()
		r.poll()
		r.talking.Unlock()
	}
}

// pollAgain lets Run poll at once.
func (r *Replica) pollAgain() {
	select {
	case r.again <- struct{}{}:
	default:
	}
}

// until polls again and again until done, which is called with mu held. It gives up when
// other nodes had time enough.
func (r *Replica) until(ctx context.Context, done func() bool) {
	late := time.After(waited)
	for {
		r.talking.Lock()
		answered := r.poll()
		r.talking.Unlock()
		r.mu.Lock()
		is := done()
		r.mu.Unlock()
		if is || !answered {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-late:
			return
		case <-time.After(waitEvery):
		}
	}
}

// poll tells and reads, and reports whether the board has answered. talking is held.
func (r *Replica) poll() (answered bool) {
	_, answered = r.exchange(nil)
	return answered
}

var errNoKey = errors.New("there is no signing key yet: see signing_key")

// exchange tells the board all that it does not know, and one more record, if there is one,
// and takes over what is new on it. It reports whether that record was written, and whether
// the board has answered. talking is held. Whoever waits for it may leave, which is no failure
// of the board.
func (r *Replica) exchange(own *record) (wrote, answered bool) {
	now := time.Now()
	r.mu.Lock()
	on := r.board
	call, err := r.call(own, now)
	r.mu.Unlock()
	if on == nil {
		return false, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var answer leakybucket.BoardAnswer
	if err == nil {
		answer, err = on.Exchange(ctx, call)
	}
	read, foreign := on.posts(ctx, answer.Posts, now)
	nodes, strangers := on.nodes(ctx, answer.Beats, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed(err); err != nil {
		return false, false
	}
	if r.hear(nodes, strangers) {
		r.pollAgain()
	}
	return r.take(read, foreign, answer.Latest, own, call.After == 0, now), true
}

// call returns what is to be told, with versions above all that were read. Records that
// nobody needs to know are taken off the board, and out of the replica. mu is held.
func (r *Replica) call(own *record, now time.Time) (call leakybucket.BoardCall, err error) {
	call = leakybucket.BoardCall{After: r.after, Node: r.self.ID}
	if now.Sub(r.read) >= readEvery {
		call.After = 0 // the whole board
	}
	version := max(now.UnixMicro(), r.after+1)
	add := func(p leakybucket.Post) {
		p.Version = version
		call.Posts = append(call.Posts, p)
		version++
	}
	tell := func(k *record) {
		if r.board == nil {
			return
		}
		k.Version = version
		if p, ok := r.board.post(k); ok {
			add(p)
		}
	}
	if own != nil {
		tell(own)
	}
	for name, k := range r.records {
		switch {
		case len(call.Posts) >= mostPost:
		case k.forgettable(now):
			delete(r.records, name)
			if !k.Untold {
				add(leakybucket.Post{Name: name, Was: k.Version})
			}
		case k.Untold && (own == nil || own.Name != k.Name):
			tell(k)
		}
	}
	if r.board == nil {
		return call, nil
	}
	var signed bool
	if call.Beat, signed = r.board.sign(ofBeat, r.self.ID, r.says(r.board.Zones, r.after)); !signed {
		return call, errNoKey
	}
	return call, nil
}

// take takes over what is new on the board, and reports whether a record of this node is
// there. mu is held.
func (r *Replica) take(read []*record, foreign map[string]int64, latest int64, own *record, whole bool, now time.Time) (wrote bool) {
	if whole {
		clear(r.foreign)
		r.read = now
	}
	maps.Copy(r.foreign, foreign)
	there := make(map[string]bool, len(read))
	changed, highest, taken := false, latest, []*record(nil)
	for _, k := range read {
		name := postName(k.Name)
		there[name] = true
		delete(r.foreign, name)
		highest = max(highest, k.Version)
		if own != nil && k.same(own) {
			own.Version, wrote = k.Version, true
			continue
		}
		changed = r.merge(k, now) || changed
		if r.records[name] == k {
			taken = append(taken, k)
		}
	}
	r.apply(taken...)
	untold := false
	for name, k := range r.records {
		version, isForeign := r.foreign[name]
		lost := whole && !there[name] && !isForeign || isForeign && version == k.Version // or the keys were changed since
		if lost || isForeign && k.Untold {
			k.Was = version
		}
		changed = changed || lost && !k.Untold
		k.Untold = k.Untold || lost
		untold = untold || k.Untold
	}
	if latest < r.after || !whole && untold { // whoever was in the way is found
		r.read = time.Time{}
	}
	if r.after = highest; changed {
		r.pollAgain() // the others wait to hear how far this node has read
		r.save()
	}
	return wrote
}

// merge takes over a record that the board has, unless the own one goes before. It reports
// whether anything of the own has changed. mu is held.
//
//   - The own one is not told yet, and replaces this very version: it goes before.
//   - Neither knew of the other: one beats the other, and the loser is in the journal.
//   - The board has an older version than this replica, after a failover: that is told.
func (r *Replica) merge(theirs *record, now time.Time) (changed bool) {
	name := postName(theirs.Name)
	own := r.records[name]
	switch {
	case own == nil && len(r.records) >= 2*most:
		return false
	case own == nil && theirs.forgettable(now):
		r.records[name] = theirs // until it is taken off
		return false
	case own == nil:
	case own.same(theirs): // it was told, maybe by another node
		changed = own.Untold || own.Version != theirs.Version
		own.Version, own.Untold = theirs.Version, false
		return changed
	case own.Untold && own.Was == theirs.Version:
		return false
	case own.Untold && own.beats(theirs), !own.Untold && theirs.Version < own.Version:
		if own.Untold {
			r.note(theirs.lostTo(own, now))
		}
		own.replaces(theirs)
		own.Untold = true
		return true
	case own.Untold:
		r.note(own.lostTo(theirs, now))
	}
	r.records[name] = theirs
	r.note(theirs.journaled(theirs.Node))
	return true
}

// failed notes how an exchange ended, and logs it if that is new.
func (r *Replica) failed(err error) {
	switch {
	case err != nil && r.err == nil:
		r.logger.Warn("other Caddys are not told of changes at run time, nor this one of theirs; it is tried again every second", zap.Error(err))
	case err == nil && r.err != nil:
		r.logger.Info("changes at run time are shared again")
	}
	r.err = err
}
