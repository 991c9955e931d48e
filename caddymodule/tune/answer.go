package tune

import (
	"fmt"
	"strings"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/recommend"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/replay"
)

// An Answer is what a command found in logs: its JSON is printed with --json, its text for
// people.
type Answer[Zone interface{ Text() string }] struct {
	Log     accesslog.Stats  `json:"log"`
	Zones   []Zone           `json:"zones"`
	Clients *clients.Senders `json:"clients"` // that sent most
	Notes   []string         `json:"notes"`   // what the figures leave out, and why
	Partial bool             `json:"partial"` // the reading was interrupted

	head string // of the text
}

type (
	// A Recommendation is the answer of `caddy throttle recommend`.
	Recommendation = Answer[*recommend.Result]

	// A Report is the answer of `caddy throttle replay` and `caddy throttle summary`.
	Report = Answer[*replay.Decided]
)

// reportOf returns what zones have decided about the requests of logs.
func reportOf(in *logReader, zones []*replay.Decided, known *clients.Log, notes []string) *Report {
	const instant = "2006-01-02 15:04:05"
	r := &Report{Log: *in.Stats(), Zones: zones, Clients: known.Senders(), Notes: notes, Partial: in.interrupted()}
	r.head = fmt.Sprintf("%s from %s to %s UTC (%s)\n", recommend.Counted(int(r.Log.Requests), "request"), r.Log.From.Format(instant), r.Log.To.Format(instant), r.Log.To.Sub(r.Log.From).Round(time.Second))
	if r.Log.Other > 0 {
		r.head += recommend.Counted(int(r.Log.Other), "line is", "lines are") + " about something else.\n"
	}
	return r
}

// Text returns the answer for people.
func (a *Answer[Zone]) Text() string {
	var b strings.Builder
	if a.Partial {
		b.WriteString("Interrupted: the figures are those of the requests so far.\n")
	}
	b.WriteString(a.head + a.Log.Complaints())
	for _, zone := range a.Zones {
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		b.WriteString(zone.Text())
	}
	b.WriteString(a.Clients.Text())
	for i, note := range a.Notes {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "Note: %s\n", note)
	}
	return b.String()
}
