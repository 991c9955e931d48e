package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
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

// change sends a change, and says until when it holds. Of a ban, the answer names the
// network, as an address may stand for a larger one.
func (c *adminClient) change(call string, in wire.Change, h *holding, what string) error {
	if err := h.fill(&in, time.Now()); err != nil {
		return err
	}
	c.by = cmp.Or(h.by, c.by)
	s, err := ask[wire.Ban](c, call, in) // or another change, which has no network
	if err != nil {
		return err
	}
	if s.Network.IsSingleIP() {
		what = s.Network.Addr().String() + what
	} else if s.Network.IsValid() {
		what = s.Network.String() + what
	}
	c.printf("%s until %s%s.\n", what, s.Until.Local().Format(time.DateTime), toldText(s.Told))
	return nil
}

// toldText says where a change holds.
func toldText(t *wire.Told) (where string) {
	switch {
	case t == nil: // more follow
		return ""
	case t.Error != "":
		where = ", on this Caddy: the others are told when the store answers (" + text.Printable(t.Error, 200) + ")"
	case t.Nodes > t.Holding:
		where = fmt.Sprintf(", on %d of %d Caddys: the others follow when they reach the store", t.Holding, t.Nodes)
	case t.Nodes > 1:
		where = fmt.Sprintf(", on all %d Caddys", t.Nodes)
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
		return errors.New("there is no such change: see caddy throttle status")
	}
	c.printf("Ended%s.\n", toldText(s.Told))
	return nil
}

// showOverrides lists the changes that hold.
func (c *adminClient) showOverrides(o *wire.Overrides) {
	if len(o.Shadows)+len(o.Bans)+len(o.Limits) == 0 {
		c.say("Nothing was changed at run time.")
		return
	}
	t := newTable("CHANGE", "OF", "SINCE", "LEFT", numeric("HITS"), "BY", "NOTE")
	for _, s := range o.Shadows {
		t.row("shadow", cmp.Or(sanitize(s.Zone), "all zones and bans"), since(s.Since), remaining(s.Until), "-", sanitize(s.By), sanitize(s.Note))
	}
	for _, b := range o.Bans {
		t.row("ban", b.Network.String(), since(b.Since), remaining(b.Until), fmt.Sprint(b.Hits), sanitize(b.By), sanitize(b.Note))
	}
	for _, l := range o.Limits {
		t.row("limit "+sanitize(l.Text), ofKey(l.Zone, l.Key), since(l.Since), remaining(l.Until), "-", sanitize(l.By), sanitize(l.Note))
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
