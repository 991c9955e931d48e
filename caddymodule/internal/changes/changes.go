// Package changes keeps what operators change while Caddy runs: bans, limits and shadow
// switches. They hold on every Caddy of a store within two seconds, and after a restart.
// Begin with [Copy.Change].
//
// Each node has a [Copy] of all changes in memory and in a file. The store, a
// [store.Registry], has the same ones. There is one record for each kind, zone and key,
// and its number decides which one that is: the highest stands. The node that makes a change
// gives it a number above its own clock and all numbers that it has seen, a hybrid logical
// clock. So whoever has seen a change can replace it, and a write that a frozen store executes
// late replaces nothing that came after it. The end of a change is a record, too. It is kept for
// as long as anything that it has ended or replaced, so nothing that was lifted comes back.
//
// Once a second, each node asks the store for the mark of its last write, which is random. If
// that is the one it has seen, nothing has changed. Any other mark means that another node has
// written, or that the store has forgotten something: it was flushed, or a failover or a backup
// took it back.
// In both cases the node reads all, takes over what stands above its own, and writes what the
// store lacks under the numbers that it had. What was changed while the store was down is told
// in the same way. So nothing that holds is forgotten while a node is up.
//
// Nothing is signed: whoever may write to the store may ban. What is broken is skipped.
package changes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const (
	pollEvery = time.Second
	patience  = time.Second // with a call of the store, and with the disk
	mostPut   = 500         // records in one call
	unread    = -1          // the mark of the last write, as long as the store was not read

	mostJournal = 200
)

// A Copy is this node's copy of the changes. It is safe for concurrent use.
type Copy struct {
	Table override.Table // what holds; requests read it

	host  string
	again chan struct{} // to poll at once

	// talking is held over calls of the store, and over a change that asks it. It is a channel,
	// since those who wait for a mutex stop the virtual time of tests.
	talking chan struct{}
	mu      sync.Mutex // guards all below, and is held over no call

	records records
	journal []override.Change // the last ones, oldest first
	disk    disk
	logger  *zap.Logger // nil before the first Use

	registry store.Registry // nil if there is none
	seen     int64          // the mark of the store's last write when it was read
	err      error          // of the last call
	skipped  int            // texts of the store, which the log has
	onRead   func()         // called once the store was read, and nil from then on
}

// New returns a copy without changes.
func New() *Copy {
	host, _ := os.Hostname()
	return &Copy{host: host, again: make(chan struct{}, 1), talking: make(chan struct{}, 1), records: make(records)}
}

// Use lets a copy follow a store, or none if it is nil. The first path that it is given is that of the
// file in which the copy is kept until Close. When the store was read for the first time, it calls
// read, if that is not nil.
func (c *Copy) Use(registry store.Registry, path string, logger *zap.Logger, read func()) {
	defer c.talk()()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.logger = logger; path != "" && c.disk.path == "" {
		c.disk.path = path
		c.opened(open(path, logger))
	}
	if registry != c.registry {
		c.registry, c.seen, c.err, c.skipped = registry, unread, nil, 0
		c.onRead = read
	}
	c.pollAgain()
}

// Close gives up the file, but waits no longer than patience for a disk that hangs.
func (c *Copy) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept()
	if c.disk.path = ""; c.disk.writing == nil { // else the write closes it
		c.disk.file.Close()
	}
}

// opened has the file, and takes over what it says: if another process had it before, its changes, too.
// mu is held.
func (c *Copy) opened(file *snapshot.File, all []*record, journal []override.Change, err error) {
	all = slices.DeleteFunc(all, func(k *record) bool {
		own := c.records[k.Name]
		return own != nil && own.Number >= k.Number
	})
	for _, k := range all {
		c.records[k.Name] = k
	}
	c.apply(all, time.Now())
	own := c.journal
	c.journal = journal
	c.note(own...)
	c.disk.file = file
	c.disk.note(err, c.logger)
}

// save has the file written after a change. mu is held.
func (c *Copy) save() {
	c.disk.changed++
	c.write()
}

// write has the file written in the background if it lacks a change, or opened if it could not be had: a
// disk may hang, and nobody who holds mu may wait for it. mu is held.
func (c *Copy) write() {
	d := &c.disk
	if d.path == "" || d.writing != nil || d.file != nil && d.has == d.changed {
		return
	}
	path, file, written, changed, logger := d.path, d.file, make(chan struct{}), d.changed, c.logger
	all, journal := slices.Collect(maps.Values(c.records)), slices.Clone(c.journal)
	d.writing = written
	go func() {
		opens, err := file == nil, error(nil)
		if opens {
			file, all, journal, err = open(path, logger)
		} else {
			err = writeFile(file, all, journal)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if opens {
			c.opened(file, all, journal, err)
		} else if d.note(err, c.logger); err == nil {
			d.has = changed
		}
		close(written)
		if d.writing = nil; d.path == "" {
			file.Close()
		} else if err == nil {
			c.write() // what has changed meanwhile
		}
	}()
}

// kept waits until the file has all that was changed before, and reports whether it has. It waits no
// longer than patience, and for no second try. mu is held, but not while it waits.
func (c *Copy) kept() bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	changed := c.disk.changed
	for c.disk.has < changed && c.disk.writing != nil && ctx.Err() == nil {
		written := c.disk.writing
		c.mu.Unlock()
		select {
		case <-written:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
	return c.disk.has >= changed
}

// A Conflict is the error of a change that would replace another without leave.
type Conflict struct{ override.Entry }

func (c *Conflict) Error() string {
	text := "it would replace the one that holds until " + c.Until.Local().Format(time.DateTime)
	if c.By != "" {
		text += ", by " + c.By
	}
	if c.Note != "" {
		text += ", with the note " + strconv.Quote(c.Note)
	}
	return text + ": repeat it with replace (--replace) if that is meant"
}

// ErrNothing is the error of an end of nothing.
var ErrNothing = errors.New("there is no such change")

// A Sync says where a change holds besides this Caddy.
type Sync struct {
	Shared bool   `json:"shared"`          // the other Caddys of the store follow within two seconds
	Kept   bool   `json:"kept"`            // it also holds after a restart of this Caddy
	Error  string `json:"error,omitempty"` // why the others follow later
}

// Change makes a change, and returns what the journal has of it. When Change returns, it is in the
// file, or not kept. If replace is not set, one that holds already is a [Conflict]. The end of nothing
// is [ErrNothing]. While the store is down, a change holds here, and the other nodes follow later.
func (c *Copy) Change(e override.Entry, via string, replace bool) (synced Sync, made override.Change, err error) {
	if err = e.Check(); err == nil {
		synced, made, err = c.change(e, via, replace)
	}
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		synced.Kept = c.kept() || synced.Kept
	}
	return synced, made, err
}

// change is Change, but does not wait for the file: kept then says what the store has.
func (c *Copy) change(e override.Entry, via string, replace bool) (synced Sync, made override.Change, err error) {
	c.mu.Lock()
	down := c.err != nil // many changes need not wait for it one by one: Run tells them
	c.mu.Unlock()
	answered := false
	if !down {
		defer c.talk()()
		answered = c.poll()
	}
	k, err := c.make(e, via, replace)
	if err != nil {
		return synced, made, err
	}
	if answered && c.put([]*record{k}) {
		c.poll() // others may have written meanwhile
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.records[k.Name]
	if now != k {
		return synced, made, &Conflict{now.Entry}
	}
	synced = Sync{Shared: c.registry != nil, Kept: now.synced}
	if c.registry != nil && c.err != nil {
		synced.Error = c.err.Error()
	}
	return synced, k.journaled(via), nil
}

// make makes a change on this node.
func (c *Copy) make(e override.Entry, via string, replace bool) (*record, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, last := time.Now(), c.records[e.Name]
	holds := last != nil && last.Holds(now)
	switch {
	case e.Ended && !holds:
		return nil, ErrNothing
	case holds && !e.Ended && !replace:
		return nil, &Conflict{last.Entry}
	case last == nil && len(c.records) >= store.MostTexts:
		return nil, fmt.Errorf("%d changes are kept already: let some end", store.MostTexts)
	}
	// A little at random lets two nodes that have seen the same seldom give the same number.
	k := &record{Entry: e, Host: c.host, Number: c.records.number(now) + rand.Int64N(1000)}
	if k.replaces(last); len(k.Path())+len(k.encode().Text) > store.LongestText {
		return nil, errors.New("the key is too long")
	}
	c.records[k.Name] = k
	c.apply([]*record{k}, now)
	c.note(k.journaled(via))
	c.save()
	return k, nil
}

// apply lets records hold, or end what held. mu is held.
func (c *Copy) apply(some []*record, now time.Time) {
	entries := make([]override.Entry, len(some))
	for i, k := range some {
		entries[i] = k.Entry
	}
	c.Table.Apply(now, entries...)
}

// Note adds to the journal, and waits for the file as Change does.
func (c *Copy) Note(changes ...override.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(changes...)
	c.save()
	c.kept()
}

// note adds to the journal, out of which the oldest falls. mu is held.
func (c *Copy) note(changes ...override.Change) {
	c.journal = append(c.journal, changes...)
	c.journal = slices.Delete(c.journal, 0, max(0, len(c.journal)-mostJournal))
}

// Journal returns what was changed here, and what this node has taken over from others, the
// last one first.
func (c *Copy) Journal() []override.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := append([]override.Change{}, c.journal...) // which JSON shows as a list even if it is empty
	slices.Reverse(last)
	return last
}

// A State is how a copy and its store agree.
type State struct {
	Pending int    `json:"pending,omitempty"` // changes that the store does not have yet
	Error   string `json:"error,omitempty"`   // of the last call
}

// State returns the state, or nil if there is no store.
func (c *Copy) State() *State {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.registry == nil {
		return nil
	}
	s := &State{Pending: len(c.records.pending())}
	if c.err != nil {
		s.Error = c.err.Error()
	}
	return s
}

// Run follows the store until stop is closed.
func (c *Copy) Run(stop <-chan struct{}) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		case <-c.again:
		}
		done := c.talk()
		c.poll()
		done()
	}
}

// talk waits until nobody else talks to the store. The caller must call done.
func (c *Copy) talk() (done func()) {
	c.talking <- struct{}{}
	return func() { <-c.talking }
}

// pollAgain lets Run poll at once.
func (c *Copy) pollAgain() {
	select {
	case c.again <- struct{}{}:
	default:
	}
}

// poll reads what is new in the store, writes what it lacks, and reports whether it has
// answered. talking is held.
func (c *Copy) poll() (answered bool) {
	c.mu.Lock()
	now := time.Now()
	maps.DeleteFunc(c.records, func(_ override.Name, k *record) bool { return k.forgettable(now) }) // nobody needs to know it any more
	registry, seen := c.registry, c.seen
	c.write() // the disk may have room by now
	c.mu.Unlock()
	if registry == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := registry.Texts(ctx, seen)
	c.mu.Lock()
	if err != nil {
		c.failed(err)
		c.mu.Unlock()
		return false
	}
	if all.Last != seen {
		c.takeOver(all, now)
	}
	if c.onRead != nil {
		c.onRead()
		c.onRead = nil
	}
	pending := c.records.pending()
	c.mu.Unlock()
	for some := range slices.Chunk(pending, mostPut) {
		if !c.put(some) {
			return false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed(nil)
	return true
}

// takeOver takes over all texts of the store. mu is held.
func (c *Copy) takeOver(all store.Texts, now time.Time) {
	read, skips := decodeTexts(all, now)
	taken, skips := c.records.merge(read, skips)
	c.apply(taken, now)
	for _, k := range taken {
		c.note(k.journaled(k.Host))
	}
	if c.seen = all.Last; len(taken) > 0 {
		c.save()
	}
	if len(skips) != c.skipped {
		logSkipped(skips, c.logger)
	}
	c.skipped = len(skips)
}

// errNotTaken is the error of a write that changes nothing, although nobody else has written: by the
// store's clock, all has ended.
var errNotTaken = errors.New("the store takes none of the changes: is its clock over an hour ahead of this host's?")

// put writes records to the store, and reports whether it has taken them. talking is held.
func (c *Copy) put(some []*record) (taken bool) {
	texts := make([]store.Text, len(some))
	c.mu.Lock()
	registry := c.registry
	for i, k := range some {
		texts[i] = k.encode()
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	before, last, err := registry.PutTexts(ctx, texts)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed(err)
		c.seen = unread // it is not known what was written
		return false
	}
	if before != c.seen { // others have written since this node has read
		c.pollAgain()
		return true
	}
	now := time.Now()
	switch c.seen = last; {
	case last == before && slices.ContainsFunc(some, func(k *record) bool { return k.Until.After(now) }):
		c.failed(errNotTaken)
		return false
	case len(some) > 1:
		c.seen = unread // it may have taken a part of them
	}
	for _, k := range some {
		k.synced = true
	}
	return true
}

// failed notes how a call ended, and logs it if that is new. mu is held.
func (c *Copy) failed(err error) {
	switch {
	case err != nil && c.err == nil:
		c.logger.Warn("other Caddys are not told of changes at run time, nor this one of theirs; it is tried again every second", zap.Error(err))
	case err == nil && c.err != nil:
		c.logger.Info("changes at run time are shared again")
	}
	c.err = err
}
