package cli

import (
	"cmp"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

func journalCommand() command {
	return command{
		watch: true, use: "journal", short: "Lists who changed what at run time",
		long: "Lists the last 200 changes at run time, the last one first: bans, limits, switches to\nshadow, their ends, and releases.",
		run: func(c *adminClient, _ []string) error {
			return show(c, "journal", nil, c.showJournal)
		},
	}
}

func (c *adminClient) showJournal(journal *[]wire.JournalEntry) {
	if len(*journal) == 0 {
		c.say("Nobody has changed anything yet.")
		return
	}
	t := newTable("AT", "BY", "ACTION", "OF", "UNTIL", "NOTE")
	for _, entry := range *journal {
		action, until := entry.Action, "-"
		if entry.Limit != "" {
			action += " " + sanitize(entry.Limit)
		}
		if entry.Until != nil {
			until = since(*entry.Until)
		}
		t.row(since(entry.At), cmp.Or(sanitize(entry.By), sanitize(entry.Via)), action, sanitize(entry.Of), until, sanitize(entry.Note))
	}
	t.print(c)
}
