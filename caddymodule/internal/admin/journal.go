package admin

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

// answerJournal lists what was changed last, and who did it.
func answerJournal(_ context.Context, e *engine.Engine, _ *Input) (any, error) {
	return converted(e.Control.Changes.Journal(), func(c override.Change) wire.JournalEntry {
		if zone, key, _ := strings.Cut(c.Of, "/"); e.Zones[zone] != nil {
			if network := shownNetwork(e.Zones[zone], key); network != "" {
				c.Of = zone + "/" + network
			}
		}
		return wire.JournalEntry{At: c.At, Via: c.Via, By: c.By, Action: c.Action, Of: c.Of, Limit: c.Limit, Until: c.Until, Note: c.Note}
	}), nil
}

// note adds what no board tells of to the journal.
func (in *Input) note(e *engine.Engine, action, of string) {
	c := override.Change{At: time.Now(), Origin: in.from, Action: action, Of: cmp.Or(of, "everything")}
	in.changed = append(in.changed, c)
	e.Control.Changes.Note(c)
}

// freedText says what a release has freed. The client may be named by a secret, and the names
// of its buckets hold none.
func freedText(r *wire.Released) string {
	of := r.Freed[0]
	if more := r.Count - 1; more > 0 {
		of += fmt.Sprintf(" and %d more", more)
	}
	return of
}
