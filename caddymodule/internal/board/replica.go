// Package board lets what administrators change while Caddy runs hold on every Caddy of a
// store, within two seconds and over restarts: bans, limits and switches to shadow. Three
// things have three names:
//
//   - The board is what the store keeps, a [leakybucket.Board]: a post for each change, with
//     a version, and a heartbeat of each node.
//   - A [Signed] board has our keys. It writes posts, and tells ours from those of others.
//   - A [Replica] is this node's copy, in memory and in a file. Requests obey its Table.
//
// A change has a record, which goes through these states:
//
//	state      known to               holds  next
//	untold     this node              yes    told; replaced, if another went before it
//	told       the board, all nodes   yes    ended, replaced or over; untold, if the board loses it
//	over       the same               no     forgotten
//	ended      the same, once told    no     replaced by a new change, or forgotten
//	replaced   the journal            no
//	forgotten  the journal            no
//
// An end is a record, too. It is forgotten a day after the end of all that it has replaced,
// so a node that was cut off brings nothing back. A post that none of our nodes has signed
// is foreign: it is named, and changes nothing. The board is unread, and then read as a
// whole, at first, every 30 seconds, and while something is untold. Otherwise only posts
// above the last version that was read are.
//
// Begin with [Replica.Change]. The package knows nothing of zones.
package board

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

const (
	// most bounds the records that are kept, ends included.
	most = 10_000

	attempts  = 5   // to write a change, while others write
	journaled = 200 // changes
	mostNamed = 10  // of the posts of others
)

// A Replica is this node's copy of the board. It is safe for concurrent use.
type Replica struct {
	Table override.Table // what holds; requests read it

	again   chan struct{} // to poll at once
	talking sync.Mutex    // held over exchanges, and over a change as a whole

	mu      sync.Mutex
	records map[string]*record // by the names of their posts
	journal []override.Change  // the last ones, oldest first
	disk    disk
	logger  *zap.Logger // nil before the first Use
	members
	exchanged
}

// New returns a replica without changes. answer is asked what other nodes ask.
func New(answer func(question string) json.RawMessage) *Replica {
	host, _ := os.Hostname()
	return &Replica{
		again: make(chan struct{}, 1), records: make(map[string]*record),
		members: members{
			self:   Node{ID: rand.Text()[:8], Host: host, PID: os.Getpid(), Began: time.Now()}, // a process that takes up its file keeps its ID
			answer: answer, asks: make(map[string]int),
		},
		exchanged: exchanged{foreign: make(map[string]int64)},
	}
}

// Use makes a board the one in use, or none if it is nil, and keeps the replica in a file,
// or gives that up if path is empty. A node that has no copy reads the board before Use returns, but
// waits no longer than two seconds.
func (r *Replica) Use(on *Signed, path string, logger *zap.Logger) {
	r.talking.Lock()
	defer r.talking.Unlock()
	r.mu.Lock()
	leaves := on == nil && r.board != nil && r.err == nil
	r.self.Left = leaves
	r.mu.Unlock()
	if leaves {
		r.poll() // so that the others count it no more
	}
	r.mu.Lock()
	first := r.logger == nil
	r.logger = logger
	copied := r.open(path, first)
	r.board, r.read = on, time.Time{}
	r.mu.Unlock()
	for end := time.Now().Add(2 * time.Second); !copied && on != nil && !r.poll() && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
}

// open keeps the replica in a file from now on, and reads it if this is the first. It
// reports whether there is a copy of the board. mu is held.
func (r *Replica) open(path string, first bool) (copied bool) {
	if path == r.disk.path {
		return !first
	}
	r.disk.open(path, r.logger)
	if first {
		if s := r.disk.read(r.logger); s != nil {
			r.restore(s)
			return true
		}
	}
	r.save()
	return !first
}

func (r *Replica) restore(s *saved) {
	if s.ID != "" && s.Host == r.self.Host { // and not a copy of another's folder
		r.self.ID = s.ID
	}
	for _, k := range s.Changes {
		r.records[postName(k.Name)] = k
		r.after = max(r.after, k.Version)
	}
	r.apply(s.Changes...)
	r.note(s.Journal...)
}

// save writes the file. mu is held.
func (r *Replica) save() {
	r.disk.write(&saved{ID: r.self.ID, Host: r.self.Host, Changes: slices.Collect(maps.Values(r.records)), Journal: r.journal}, r.logger)
}

// A Conflict is the error of a change that would replace another without leave.
type Conflict struct{ override.Entry }

func (c *Conflict) Error() string { return fmt.Sprintf("another change of %v holds", c.Name) }

// ErrNothing is the error of an end of nothing.
var ErrNothing = errors.New("there is no such change")

// A Told says where a change holds.
type Told struct {
	Nodes   int    `json:"nodes"`           // that share the board, this one included
	Holding int    `json:"holding"`         // those of them where it holds; the others follow
	Kept    bool   `json:"kept"`            // also if this Caddy is restarted
	Error   string `json:"error,omitempty"` // why the others will be told later
}

// Change makes a change, here and on all nodes, and returns what the journal has of it. If
// replace is not set, one that holds already is a [Conflict]; the end of nothing is
// [ErrNothing]. Without the store it holds here, and the others are told later. If wait is
// set, it waits until the others have taken it over, for some seconds at most. Otherwise told
// is nil.
func (r *Replica) Change(ctx context.Context, e override.Entry, via string, replace, wait bool) (told *Told, made override.Change, err error) {
	k, err := r.write(e, via, replace)
	if err != nil {
		return nil, made, err
	}
	if made = k.journaled(via); !wait {
		return nil, made, nil
	}
	r.mu.Lock()
	version, untold := k.Version, k.Untold // polls change them
	r.mu.Unlock()
	told = &Told{Holding: 1}
	if !untold {
		r.until(ctx, func() (waiting bool) {
			told.Holding, waiting = r.holding(version)
			return !waiting
		})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	told.Nodes, told.Kept = 1+len(r.others), r.disk.saved || !k.Untold
	if k.Untold && r.board != nil && r.err != nil {
		told.Error = r.err.Error()
	}
	return told, made, nil
}

func (r *Replica) write(e override.Entry, via string, replace bool) (k *record, err error) {
	r.talking.Lock()
	defer r.talking.Unlock()
	wrote := false
	for try, up := 0, r.poll(); try == 0 || up && !wrote && try < attempts; try++ {
		if k, err = r.next(e, replace); err != nil {
			return nil, err
		}
		if up {
			wrote, up = r.exchange(k)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k.Untold = !wrote
	r.records[postName(k.Name)] = k
	r.apply(k)
	r.note(k.journaled(via))
	r.save()
	return k, nil
}

// next returns the record of a change that takes the place of the one of its name.
func (r *Replica) next(e override.Entry, replace bool) (*record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, now := r.records[postName(e.Name)], time.Now()
	holds := last != nil && last.Holds(now)
	k := &record{Entry: e, Node: r.self.Host, Last: e.Until}
	switch {
	case e.Ended && !holds:
		return nil, ErrNothing
	case holds && !e.Ended && !replace:
		return nil, &Conflict{last.Entry}
	case last == nil && len(r.records) >= most:
		return nil, fmt.Errorf("%d changes are kept already: let some end", most)
	case last != nil:
		k.replaces(last)
	}
	if foreign, is := r.foreign[postName(e.Name)]; is {
		k.Was = foreign // whoever changes something means it
	}
	return k, nil
}

// apply lets records hold, or end what held.
func (r *Replica) apply(records ...*record) {
	entries := make([]override.Entry, len(records))
	for i, k := range records {
		entries[i] = k.Entry
	}
	r.Table.Apply(time.Now(), entries...)
}

// Note adds to the journal.
func (r *Replica) Note(changes ...override.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(changes...)
	r.save()
}

// note adds to the journal, out of which the oldest falls. mu is held.
func (r *Replica) note(changes ...override.Change) {
	r.journal = append(r.journal, changes...)
	r.journal = slices.Delete(r.journal, 0, max(0, len(r.journal)-journaled))
}

// Journal returns what was changed, here and by other nodes, the last one first.
func (r *Replica) Journal() []override.Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := append([]override.Change{}, r.journal...) // which JSON shows as a list even if it is empty
	slices.Reverse(last)
	return last
}

// Ask asks the other nodes, and returns the answer of one that has one, or nil.
func (r *Replica) Ask(ctx context.Context, question string) (answer json.RawMessage, from Node) {
	count := func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.asks[question] += n; r.asks[question] <= 0 {
			delete(r.asks, question)
		}
	}
	count(1)
	defer count(-1)
	r.until(ctx, func() (waiting bool) {
		answer, from, waiting = r.answerTo(question)
		return !waiting
	})
	return answer, from
}

// A Fleet is the nodes that share a board.
type Fleet struct {
	Shared       bool     `json:"-"`                       // there is a board
	Nodes        []Member `json:"nodes"`                   // of the last minute, this one first
	Strangers    int      `json:"strangers,omitempty"`     // nodes that sign with other keys, and share no changes
	Foreign      int      `json:"foreign,omitempty"`       // posts that somebody else has written, which are ignored
	Untold       int      `json:"untold,omitempty"`        // changes that the board does not have yet
	Error        string   `json:"error,omitempty"`         // of the last exchange
	ForeignNames []string `json:"foreign_names,omitempty"` // of some of those posts
}

// A Member is a node of a [Fleet].
type Member struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Began   time.Time `json:"began"`
	Age     float64   `json:"age"`             // seconds since the board has heard of it
	Current bool      `json:"current"`         // it knows the changes that this one knows
	Zones   []string  `json:"zones,omitempty"` // if they differ from this one's
}

// State returns how the replica fares.
func (r *Replica) State() Fleet {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := Fleet{Nodes: []Member{{ID: r.self.ID, Host: r.self.Host, PID: r.self.PID, Began: r.self.Began, Current: true}}}
	if f.Shared = r.board != nil; !f.Shared {
		return f
	}
	f.Strangers, f.Foreign = r.strangers, len(r.foreign)
	f.ForeignNames = slices.Sorted(maps.Keys(r.foreign))[:min(mostNamed, f.Foreign)]
	if r.err != nil {
		f.Error = r.err.Error()
	}
	for _, k := range r.records {
		if k.Untold {
			f.Untold++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.others)) {
		n := r.others[id]
		m := Member{ID: id, Host: n.Host, PID: n.PID, Began: n.Began, Age: max(0, time.Since(n.Heard).Seconds()), Current: n.Seen >= r.after && f.Untold == 0}
		if !slices.Equal(n.Zones, r.board.Zones) {
			m.Zones = n.Zones
		}
		f.Nodes = append(f.Nodes, m)
	}
	return f
}
