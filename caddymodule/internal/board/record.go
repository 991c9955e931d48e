package board

import (
	"bytes"
	"encoding/json"
	"net/url"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

// keptLonger is how long a record is kept after the end of its change.
const keptLonger = 24 * time.Hour

// A record is a change, or the end of one, with its place on the board.
type record struct {
	override.Entry
	Node    string    `json:"node,omitempty"` // where it was made
	Last    time.Time `json:"last"`           // the end of it and of all that it has replaced, which others may still have
	Version int64     `json:"version,omitempty"`
	Was     int64     `json:"was,omitempty"`    // the version that it replaces
	Untold  bool      `json:"untold,omitempty"` // the board does not have it
}

// postName returns the name of a change on the board.
func postName(n override.Name) string {
	return string(n.Kind) + "/" + url.PathEscape(n.Zone) + "/" + url.PathEscape(n.Key)
}

// replaces lets a record take the place of another.
func (r *record) replaces(other *record) {
	if r.Was = other.Version; other.Untold {
		r.Was = other.Was
	}
	if other.Last.After(r.Last) {
		r.Last = other.Last
	}
}

// forgettable reports whether nobody needs to know the record any more.
func (r *record) forgettable(now time.Time) bool { return now.After(r.Last.Add(keptLonger)) }

func (r *record) same(other *record) bool {
	a, errA := json.Marshal(r.Entry)
	b, errB := json.Marshal(other.Entry)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// beats reports whether a change goes before another, where neither knew of the other: of
// two bans the one that ends later, of anything else the later one.
func (r *record) beats(other *record) bool {
	if r.Kind == override.OfBan && !r.Ended && !other.Ended && !r.Until.Equal(other.Until) {
		return r.Until.After(other.Until)
	}
	return r.Since.After(other.Since)
}

// journaled returns what the journal has of a change.
func (r *record) journaled(via string) override.Change {
	c := override.Change{At: r.Since, Action: string(r.Kind), Of: r.Of(), Limit: r.Limit, Until: &r.Until, Note: r.Note}
	if c.By, c.Via = r.By, via; r.Ended {
		c.Action, c.Until = "un"+c.Action, nil
	}
	return c
}

// lostTo returns what the journal has of a change that gave way to another.
func (r *record) lostTo(winner *record, now time.Time) override.Change {
	c := r.journaled(r.Node)
	c.At, c.Note = now, "gave way to the one of "+winner.Since.Local().Format(time.DateTime)
	if winner.By != "" {
		c.Note += " by " + winner.By
	}
	c.Note += ", made without knowing of it"
	return c
}
