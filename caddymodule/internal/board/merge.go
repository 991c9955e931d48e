package board

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

// merge takes over a change that the board has, unless the own one goes before. It reports
// whether anything of the own has changed. mu is held.
//
//   - The own one is not told yet, and replaces this very version: it goes before.
//   - Neither knew of the other: of two bans the later end counts, of others the later one.
//     The loser is in the journal.
//   - The board has an older version than this copy, after a failover: the copy is told.
func (b *Board) merge(theirs *kept, now time.Time) bool {
	if theirs.gone(now) {
		b.takeOff(theirs)
		return false
	}
	own := b.kept[theirs.Name]
	switch {
	case own == nil && len(b.kept) >= 2*most:
		return false
	case own == nil:
	case own.same(theirs): // it was told, maybe by another node
		changed := own.Untold || own.Version != theirs.Version
		own.Version, own.Untold = theirs.Version, false
		return changed
	case own.Untold && own.Was == theirs.Version:
		return false
	case own.Untold && own.beats(theirs):
		b.lost(theirs, own, now)
		own.replaces(theirs)
		return true
	case own.Untold:
		b.lost(own, theirs, now)
	case theirs.Version < own.Version:
		own.replaces(theirs)
		own.Untold = true
		return true
	}
	b.keep(theirs)
	b.note(theirs.journaled(theirs.Node))
	return true
}

func (k *kept) gone(now time.Time) bool { return now.After(k.Last.Add(keptLonger)) }

func (k *kept) same(other *kept) bool {
	a, errA := json.Marshal(k.Entry)
	b, errB := json.Marshal(other.Entry)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// beats reports whether a change goes before another, where neither knew of the other.
func (k *kept) beats(other *kept) bool {
	if k.Kind == override.OfBan && !k.Ended && !other.Ended && !k.Until.Equal(other.Until) {
		return k.Until.After(other.Until)
	}
	return k.Since.After(other.Since)
}

// lost notes that one change went before another.
func (b *Board) lost(loser, winner *kept, now time.Time) {
	c := loser.journaled(loser.Node)
	c.At, c.Note = now, "gave way to the one "+from(winner)+", made without knowing of it"
	b.note(c)
}

func from(k *kept) string {
	text := "of " + k.Since.Local().Format(time.DateTime)
	if k.By != "" {
		text += " by " + k.By
	}
	return text
}

// journaled returns what the journal has of a change.
func (k *kept) journaled(via string) override.Change {
	c := override.Change{At: k.Since, Action: string(k.Kind), Of: k.Of(), Limit: k.Limit, Until: &k.Until, Note: k.Note}
	if c.By, c.Via = k.By, via; k.Ended {
		c.Action, c.Until = "un"+c.Action, nil
	}
	return c
}
