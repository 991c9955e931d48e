package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/changes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
)

// holding are the flags of changes that end by themselves.
type holding struct {
	length, until, note, by string
	replace                 bool
}

func (h *holding) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&h.length, "for", "", "How long it holds, such as 30m, 2h or 7d. At most 30d, which is the default")
	cmd.Flags().StringVar(&h.until, "until", "", "Until when it holds instead, such as 09:00, in local time")
	cmd.Flags().StringVar(&h.by, "by", "", "Who you are, for those who ask later. Default: the user of the shell, also under sudo")
	cmd.Flags().BoolVar(&h.replace, "replace", false, "Replace the change that holds already for the same")
	cmd.Flags().StringVar(&h.note, "note", "", "Why, for those who ask later")
}

// fill checks the flags and completes the input.
func (h *holding) fill(in *wire.Change, now time.Time) error {
	in.Note, in.Replace = h.note, h.replace
	switch {
	case h.length != "" && h.until != "":
		return usage.Errorf("want at most one of --for, such as 30m, and --until, such as 09:00")
	case h.until != "":
		at, err := time.ParseInLocation("15:04", h.until, now.Location())
		if err != nil {
			return usage.Errorf("invalid --until %q: want a time such as 09:00", h.until)
		}
		end := time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), 0, 0, now.Location())
		if !end.After(now) {
			end = end.AddDate(0, 0, 1)
		}
		in.For = caddy.Duration(end.Sub(now))
	case h.length != "":
		length, err := caddy.ParseDuration(h.length)
		if err != nil || length <= 0 {
			return usage.Errorf("invalid --for %q: want a duration above 0, such as 30m, 2h or 7d", h.length)
		}
		in.For = caddy.Duration(length)
	}
	return nil
}

// change sends a change, and says until when it holds.
func (c *adminClient) change(call string, in wire.Change, h *holding) error {
	if err := h.fill(&in, time.Now()); err != nil {
		return err
	}
	c.by = cmp.Or(h.by, c.by)
	s, err := ask[wire.Override](c, call, in)
	if err != nil {
		return err
	}
	// The answer names the network that an address or a key stands for, and the caller the
	// key, as the bucket's name may be a digest.
	what := ""
	switch s.Kind {
	case "ban":
		what = networkText(s.Network) + " is banned"
	case "limit":
		what = ofKey(s.Zone, cmp.Or(s.Network, in.Key)) + ": " + sanitize(s.Limit) + " holds"
	default:
		what = cmp.Or(sanitize(s.Zone), "Everything") + " is in shadow"
	}
	c.printf("%s until %s%s.\n", what, s.Until.Local().Format(time.DateTime), syncText(s.Sync))
	return nil
}

// networkText returns a network, or the address that it is.
func networkText(network string) string {
	if p, err := netip.ParsePrefix(network); err == nil && p.IsSingleIP() {
		return p.Addr().String()
	}
	return network
}

// syncText says where a change holds.
func syncText(t *changes.Sync) (where string) {
	switch {
	case t == nil: // nothing was made
		return ""
	case t.Error != "":
		where = ", on this Caddy: the others are told when the store answers (" + text.Printable(t.Error, 200) + ")"
	case t.Shared:
		where = ", within two seconds on every Caddy of the store"
	}
	if !t.Kept {
		where += ", unless this Caddy is restarted before"
	}
	return where
}

// end ends a change.
func (c *adminClient) end(call string, in wire.Change) error {
	s, err := ask[wire.Ended](c, call, in)
	if err != nil {
		return err
	}
	if !s.Ended {
		return errors.New("there is no such change: see caddy throttle bans")
	}
	c.printf("Ended%s.\n", syncText(s.Sync))
	return nil
}

// showOverrides lists the changes that hold.
func (c *adminClient) showOverrides(all *[]wire.Override) {
	if len(*all) == 0 {
		c.say("Nothing was changed at run time.")
		return
	}
	t := newTable("CHANGE", "OF", "SINCE", "LEFT", numeric("HITS HERE"), "BY", "NOTE")
	for _, o := range *all {
		change, of, hits := string(o.Kind), ofKey(o.Zone, cmp.Or(o.Network, o.Key)), "-"
		switch o.Kind {
		case "ban":
			of, hits = networkText(o.Network), fmt.Sprint(o.Hits)
		case "limit":
			change += " " + sanitize(o.Limit)
		}
		t.row(change, cmp.Or(of, "all zones and bans"), since(o.Since), remaining(o.Until), hits, sanitize(o.By), sanitize(o.Note))
	}
	t.print(c)
}

// zoneOrAll returns the zone that is given, or "" for --all.
func zoneOrAll(args []string, all bool) (string, error) {
	if all == (len(args) == 1) {
		return "", usage.Errorf("want a zone, or --all")
	}
	return strings.Join(args, ""), nil
}

func journalCommand() command {
	return command{
		use: "journal", short: "Lists who changed what at run time",
		long: "Lists the last 200 changes at run time, the last one first: bans, limits, switches to\nshadow, their ends, and releases.",
		run: func(c *adminClient, _ []string) error {
			return show(c, "journal", nil, c.showJournal)
		},
	}
}

func (c *adminClient) showJournal(journal *[]override.Change) {
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
		t.row(since(entry.At), cmp.Or(sanitize(entry.By), sanitize(entry.Via)), action, shortKey(entry.Of), until, sanitize(entry.Note))
	}
	t.print(c)
}

func revokeDevicesCommand() command {
	return command{
		use: "revoke-devices", short: "Trusts no device any more",
		long: `Replaces the keys that the cookies of trust_devices and the passes of share are signed
with. No device is trusted any more until somebody logs in with it again, and all
passes are void: on this Caddy at once, on others that share its storage within ten
minutes.`,
		run: func(c *adminClient, _ []string) error {
			return show(c, "revoke", struct{}{}, func(*wire.Revoked) {
				c.say("No device is trusted any more, and no pass is valid.")
			})
		},
	}
}
