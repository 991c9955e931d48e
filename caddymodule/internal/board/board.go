// Package board is the one owner of what administrators change while Caddy runs: bans,
// limits and switches to shadow. It keeps them here, in a file, and where the buckets are,
// so that every Caddy of that store follows within two seconds and after a restart. Begin
// with [Board.Change]. It knows nothing of zones.
package board

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	// most bounds the changes that are kept, ends included.
	most = 10_000

	// keptLonger is how long a change is kept after its end. A node that was cut off
	// meanwhile brings nothing back that was lifted.
	keptLonger = 24 * time.Hour

	attempts  = 5   // to write a change, while others write
	journaled = 200 // changes
)

// A Shared is the board of a store, as one config uses it.
type Shared struct {
	leakybucket.Board
	Keys  *signer.Ring
	Zones []string // of the config
}

// A Board keeps changes. It is safe for concurrent use.
type Board struct {
	Table override.Table // what holds; requests read it

	id     string // of this node; a process that takes up its file keeps it
	began  time.Time
	answer func(question string) json.RawMessage // nil if this node has none
	again  chan struct{}                         // to poll at once

	talking sync.Mutex // held over exchanges, and over a change as a whole

	mu      sync.Mutex
	journal []override.Change // the last ones, oldest first
	kept    map[override.Name]*kept
	shared  *Shared // nil while there is none
	logger  *zap.Logger

	used  bool // by a config
	file  *snapshot.File
	path  string
	saved bool // the file has all changes

	after  int64     // the highest version that was read
	unread bool      // the whole board is to be read
	read   time.Time // when it was
	err    error     // of the last exchange

	foreign map[string]int64 // versions of posts that nobody with our keys has written, which are ignored
	remove  []leakybucket.Post
	others
}

// kept is a change with its place on the board.
type kept struct {
	override.Entry
	Node    string    `json:"node,omitempty"` // where it was made
	Last    time.Time `json:"last"`           // the end of it and of all that it has replaced, which others may still have
	Version int64     `json:"version,omitempty"`
	Was     int64     `json:"was,omitempty"`    // the version that it replaces
	Untold  bool      `json:"untold,omitempty"` // the board does not have it
}

// replaces lets a change take the place of another.
func (k *kept) replaces(other *kept) {
	if k.Was = other.Version; other.Untold {
		k.Was = other.Was
	}
	if other.Last.After(k.Last) {
		k.Last = other.Last
	}
}

// New returns a board without changes. answer is asked what other nodes ask.
func New(answer func(question string) json.RawMessage) *Board {
	return &Board{
		id: rand.Text()[:8], began: time.Now(), answer: answer, again: make(chan struct{}, 1),
		kept: make(map[override.Name]*kept), foreign: make(map[string]int64), logger: zap.NewNop(),
	}
}

// Use makes a shared board the one in use, or none if it is nil, and keeps the changes in a
// file, unless path is empty. A node that has no copy reads the board before Use returns,
// but waits no longer than two seconds.
func (b *Board) Use(shared *Shared, path string, logger *zap.Logger) {
	b.talking.Lock()
	defer b.talking.Unlock()
	b.mu.Lock()
	b.logger = logger
	fresh := b.open(path)
	b.shared, b.unread = shared, true
	b.mu.Unlock()
	for end := time.Now().Add(2 * time.Second); fresh && shared != nil && !b.poll(context.Background()) && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
}

// A Conflict is the error of a change that would replace another without leave.
type Conflict struct{ override.Entry }

func (c *Conflict) Error() string { return fmt.Sprintf("another change of %v holds", c.Name) }

// ErrNothing is the error of an end of nothing.
var ErrNothing = errors.New("there is no such change")

// Told says where a change holds.
type Told struct {
	Nodes   int   // that share the board, this one included
	Holding int   // those of them that have taken it over
	Kept    bool  // also if this process ends
	Err     error // why the others will be told later
}

// Change makes a change, here and on all nodes, and returns what the journal has of it. If
// replace is not set, one that holds already is a [Conflict]; the end of nothing is
// [ErrNothing]. Without the store it holds here, and the others are told later. If wait is
// set, it waits until the others have taken it over, for some seconds at most.
func (b *Board) Change(ctx context.Context, e override.Entry, via string, replace, wait bool) (told Told, made override.Change, err error) {
	k, err := b.write(ctx, e, via, replace)
	if err != nil {
		return told, made, err
	}
	b.mu.Lock()
	version, untold := k.Version, k.Untold // polls change them
	b.mu.Unlock()
	if told.Holding = 1; wait && !untold {
		told.Holding = b.wait(ctx, version)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if told.Nodes, told.Kept = 1+len(b.nodes), b.saved || !k.Untold; k.Untold && b.shared != nil {
		told.Err = b.err
	}
	return told, k.journaled(via), nil
}

func (b *Board) write(ctx context.Context, e override.Entry, via string, replace bool) (k *kept, err error) {
	b.talking.Lock()
	defer b.talking.Unlock()
	wrote := false
	for try, up := 0, b.poll(ctx); try == 0 || up && !wrote && try < attempts; try++ {
		if k, err = b.next(e, replace); err != nil {
			return nil, err
		}
		if up {
			wrote, err = b.exchange(ctx, k)
			up = err == nil
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k.Untold = !wrote
	b.keep(k)
	b.note(k.journaled(via))
	b.save()
	return k, nil
}

// next returns a change that takes the place of the one of its name.
func (b *Board) next(e override.Entry, replace bool) (*kept, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, now := b.kept[e.Name], time.Now()
	holds := last != nil && last.Holds(now)
	k := &kept{Entry: e, Node: host(), Last: e.Until}
	switch {
	case e.Ended && !holds:
		return nil, ErrNothing
	case holds && !e.Ended && !replace:
		return nil, &Conflict{last.Entry}
	case last == nil && len(b.kept) >= most:
		return nil, fmt.Errorf("%d changes are kept already: let some end", most)
	case last != nil:
		k.replaces(last)
	}
	if foreign, is := b.foreign[nameOf(e.Name)]; is {
		k.Was = foreign // whoever changes something means it
	}
	return k, nil
}

// keep takes a change over. mu is held.
func (b *Board) keep(k *kept) {
	b.kept[k.Name] = k
	b.Table.Apply(time.Now(), k.Entry)
}

// Note adds to the journal.
func (b *Board) Note(changes ...override.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(changes...)
	b.save()
}

// note adds to the journal, out of which the oldest falls. mu is held.
func (b *Board) note(changes ...override.Change) {
	b.journal = append(b.journal, changes...)
	b.journal = slices.Delete(b.journal, 0, max(0, len(b.journal)-journaled))
}

// Journal returns what was changed, here and by other nodes, the last one first.
func (b *Board) Journal() []override.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := slices.Clone(b.journal)
	slices.Reverse(last)
	return last
}
