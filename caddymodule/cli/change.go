package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/pflag"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
)

// changeFlags adds the flags of changes, which end by themselves.
func (c *client) changeFlags(f *pflag.FlagSet) {
	f.StringVar(&c.length, "for", "", "How long it lasts, such as 30m, 2h or 7d. At most 30d, which is the default")
	f.StringVar(&c.by, "by", "", "Who you are, for those who ask later. Default: the user of the shell, also under sudo")
	f.BoolVar(&c.replace, "replace", false, "Replace the change in force for the same zone, key or network")
	f.StringVar(&c.note, "note", "", "Why, for those who ask later")
}

// make makes a change, and says until when it holds.
func (c *client) make(call string, in wire.Change) error {
	in.Note, in.Replace = c.note, c.replace
	if c.length != "" {
		length, err := caddy.ParseDuration(c.length)
		if err != nil || length <= 0 {
			return command.UsageErrorf("invalid --for %q: want a duration above 0, such as 30m, 2h or 7d", c.length)
		}
		in.For = caddy.Duration(length)
	}
	s, err := ask[wire.Override](c, call, in)
	if err != nil {
		return err
	}
	s.Key = cmp.Or(in.Key, s.Key) // the bucket's name may be a digest
	change, of := described(*s)
	c.printf("%s of %s holds until %s%s.\n", change, of, s.Until.Local().Format(time.DateTime), syncText(s.Synced))
	return nil
}

// described returns what a change is, and what it is of.
func described(o wire.Override) (change, of string) {
	o.Key = cmp.Or(o.Network, o.Key)
	return strings.TrimSpace(string(o.Kind) + " " + sanitize(o.Limit)), sanitize(o.Of())
}

// end ends a change.
func (c *client) end(call string, in wire.Change) error {
	s, err := ask[wire.Ended](c, call, in)
	if err != nil {
		return err
	}
	if !s.Ended {
		return errors.New("there is no such change: see caddy throttle bans")
	}
	c.printf("Ended%s.\n", syncText(s.Synced))
	return nil
}

// ofZone makes or ends a change of a zone, or with --all of all.
func (c *client) ofZone(call string, args []string, do func(string, wire.Change) error) error {
	if c.of.All == (len(args) == 1) {
		return command.UsageErrorf("want a zone, or --all")
	}
	return do(call, wire.Change{Zone: strings.Join(args, "")})
}

// syncText says where a change holds.
func syncText(made wire.Synced) (where string) {
	t := made.Sync
	where = ", on this Caddy"
	switch {
	case t.Error != "":
		where += ": the others are told when the store answers (" + command.Printable(t.Error, longestError) + ")"
	case t.Shared:
		where = ", within two seconds on every Caddy of the store"
	}
	if !t.Kept {
		where += ", unless it is restarted before"
	}
	return where
}

// showOverrides lists the changes that hold.
func (c *client) showOverrides(all *[]wire.Override) {
	if len(*all) == 0 {
		c.printf("Nothing was changed at run time.\n")
		return
	}
	writeTable(c, "CHANGE|OF|SINCE|LEFT|HITS HERE|BY|NOTE", *all, func(o *wire.Override) []any {
		change, of := described(*o)
		hits := ""
		if o.Kind == "ban" {
			hits = fmt.Sprint(o.Hits)
		}
		return []any{change, of, since(o.Since), remaining(o.Until), hits, sanitize(o.By), sanitize(o.Note)}
	})
}

func (c *client) showJournal(journal *wire.Journal) {
	if len(*journal) == 0 {
		c.printf("Nobody has changed anything yet.\n")
		return
	}
	writeTable(c, "AT|BY|ACTION|OF|UNTIL|NOTE", *journal, func(done *wire.JournalEntry) []any {
		until := ""
		if done.Until != nil {
			until = since(*done.Until)
		}
		return []any{since(done.At), sanitize(cmp.Or(done.By, done.Via)), strings.TrimSpace(done.Action + " " + sanitize(done.Limit)), shortKey(done.Of), until, sanitize(done.Note)}
	})
}

// release empties buckets.
func (c *client) release() error {
	s, err := ask[wire.Released](c, "release", c.of)
	if err != nil {
		return err
	}
	for _, name := range s.Freed {
		if of, shadow := strings.CutPrefix(name, "~"); shadow {
			name = of + " (shadow)"
		}
		c.printf("emptied %s\n", sanitize(name))
	}
	switch {
	case s.Count > len(s.Freed):
		c.printf("and %d more, %d in all\n", s.Count-len(s.Freed), s.Count)
	case s.Count == 0 && c.of.All:
		c.printf("No bucket of the zone was in use.\n")
	case s.Count == 0:
		c.printf("No bucket of %s was in use.\n", sanitize(c.of.Client))
	}
	if s.Banned {
		c.printf("A ban still holds: caddy throttle bans names its network, and unban ends it.\n")
	}
	if !s.Complete {
		return fmt.Errorf("the release is not complete: %s", command.Printable(cmp.Or(s.Problem, "there are too many buckets"), 1000))
	}
	return nil
}
