package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
)

// answerJournal lists what was changed last, and who did it.
func answerJournal(_ context.Context, e *engine.Engine, _ *Input) (any, error) {
	return converted(e.Control.Journal.List(), func(c override.Change) wire.JournalEntry {
		return wire.JournalEntry{At: c.At, Via: c.Via, By: c.By, Action: c.Action, Of: c.Of, Limit: c.Limit, Until: c.Until, Note: c.Note}
	}), nil
}

// journaled returns what the journal keeps of a call that has changed something. A call
// that found nothing to change gives none.
func (in *Input) journaled(from override.Origin, path string, answer any) []override.Change {
	var of wire.Change
	if json.Unmarshal(in.body, &of) != nil {
		return nil // not so, because the call has read it
	}
	c := override.Change{At: time.Now(), Origin: from, Action: strings.TrimPrefix(path, "/throttle/"), Of: of.Zone}
	if network, err := networkOf(of.Network); err == nil {
		c.Of = network.String()
	}
	switch answer := answer.(type) {
	case wire.Ended:
		if !answer.Ended {
			return nil
		}
		if answer.Key != "" {
			c.Of = bucketName(of.Zone, answer.Key, false)
		}
	case wire.Released:
		// The client may be named by a secret. The names of its buckets hold none.
		if len(answer.Freed) == 0 {
			return nil
		}
		c.Of = answer.Freed[0]
		if more := answer.Count - 1; more > 0 {
			c.Of += fmt.Sprintf(" and %d more", more)
		}
	case wire.Ban:
		c.Until, c.Note = &answer.Until, answer.Note
	case wire.Shadow:
		c.Until, c.Note = &answer.Until, answer.Note
	case wire.Limit:
		c.Limit, c.Until, c.Note = answer.Text, &answer.Until, answer.Note
		if answer.Key != "" { // the caller may have given a secret instead
			c.Of = bucketName(answer.Zone, answer.Key, false)
		}
	}
	c.Of = cmp.Or(c.Of, "everything")
	return []override.Change{c}
}
