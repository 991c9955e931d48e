package recommend

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// Text returns the result for people. Texts from the log are made printable.
func (r *Result) Text() string {
	var b strings.Builder
	if r.Zone != "" {
		fmt.Fprintf(&b, "zone %s\n\n", r.Zone)
	}
	fmt.Fprintf(&b, "%s of %s from %s to %s", Counted(r.Requests, "request"), Counted(r.Keys, r.Noun()), r.From.Format("2006-01-02 15:04"), r.To.Format("2006-01-02 15:04 MST"))
	if r.Assets > 0 {
		fmt.Fprintf(&b, ",\nbesides %s for static assets, which should be exempt", Counted(r.Assets, "request"))
	}
	b.WriteString(".\n")
	fmt.Fprintf(&b, "%s looked like people: they loaded static assets with pages, and named no robot.\n%s\n%s:\n\n", Counted(r.PeopleKeys, r.Noun()), r.doubt(), r.promise())
	r.Units.write(&b, r.Noun(), len(r.Withheld) == 0)
	if len(r.Withheld) == 0 {
		fmt.Fprintf(&b, "\n%s\n", r.Units.Reason)
		if h := r.HoldOut; h != nil {
			fmt.Fprintf(&b, "%s\n", h.Reason)
		}
	} else {
		b.WriteString("\nNo limit is recommended:\n")
		for _, why := range r.Withheld {
			fmt.Fprintf(&b, "- %s\n", why)
		}
		b.WriteString("Until there is a better log, begin with limit 120 2/s in shadow.\n")
	}
	if len(r.Notes) > 0 {
		b.WriteString("\n")
		for _, note := range r.Notes {
			fmt.Fprintf(&b, "Note: %s\n", note)
		}
	}
	r.writeNetworks(&b)
	if len(r.Withheld) == 0 {
		r.writeRefused(&b)
		fmt.Fprintf(&b, "\nTo paste into the Caddyfile:\n\n%s", r.Caddyfile)
	}
	if r.Seconds != nil && len(r.Withheld) == 0 {
		best := r.Seconds.Best()
		fmt.Fprintf(&b, "\nBy the work that requests cause (settle seconds), in worker-seconds:\n\n")
		r.Seconds.write(&b, r.Noun(), true)
		fmt.Fprintf(&b, "\n%s\nThat is: limit %s, and settle seconds.\n", r.Seconds.Reason, best.Text())
		fmt.Fprintf(&b, "At most %s served at once, and %d of one %s. in_flight %d leaves the same share untouched, and refuses %s.\n",
			were(r.InFlight.All), r.InFlight.Most, r.Noun(), r.InFlight.Slots, Counted(r.InFlight.RefusedKeys, r.Noun()))
	}
	return b.String()
}

// promise says what the limits have in common.
func (r *Result) promise() string {
	if r.checked {
		return fmt.Sprintf("These limits leave %v%% of the people untouched, but for the last, which is to check", r.Spare)
	}
	return fmt.Sprintf("These limits leave %v%% of the people untouched", r.Spare)
}

// doubt says how many may be people, too.
func (r *Result) doubt() string {
	if r.Unclear == 0 {
		return "All others named a robot."
	}
	return fmt.Sprintf("%s of all %ss may be either: they named no robot, and loaded few assets or none.", shareText(r.Unclear), r.Noun())
}

// writeNetworks writes the networks that sent most.
func (r *Result) writeNetworks(b *strings.Builder) {
	for i, n := range r.Networks {
		if i == 0 {
			fmt.Fprintf(b, "\nNetworks that sent most (key client_ip ipv4 24 ipv6 48 counts each as one):\n\n  %-39s %9s %9s %9s %9s  %s\n", "network", r.Noun()+"s", "people", "requests", "refused", "load")
		}
		fmt.Fprintf(b, "  %-39s %9s %9s %9s %9s  %s\n", text.Printable(n.Network, 39), comma(n.Keys), comma(n.People), comma(n.Requests), comma(n.Refused), shareText(n.Load))
	}
}

// writeRefused writes who would be refused.
func (r *Result) writeRefused(b *strings.Builder) {
	if len(r.Refused) == 0 {
		return
	}
	fmt.Fprintf(b, "\nWho would be refused, of %s:\n\n", Counted(r.Units.Best().RefusedKeys, r.Noun()))
	fmt.Fprintf(b, "  %-39s %9s %9s %9s  %s\n", r.Noun(), "requests", "refused", "assets", "looks like")
	for _, k := range r.Refused {
		fmt.Fprintf(b, "  %-39s %9s %9s %9s  %s\n", text.Printable(k.Key, 39), comma(k.Requests), comma(k.Refused), comma(k.Assets), k.Looks)
		fmt.Fprintf(b, "    %s to %s", k.First.Format("2006-01-02 15:04"), k.Last.Format("2006-01-02 15:04"))
		if k.Asks != "" {
			fmt.Fprintf(b, ", mostly %s", text.Printable(k.Asks, 20))
		}
		b.WriteString(k.said())
		b.WriteString("\n")
	}
}

// said says what the client calls itself.
func (k *Key) said() (said string) {
	if k.Agent != "" {
		said = ", as " + text.Printable(k.Agent, 80)
	}
	if k.Agents > 1 {
		said += fmt.Sprintf(" and %s", Counted(k.Agents-1, "other user agent"))
	}
	if len(k.Claims) > 0 {
		said += ": it says that it is " + strings.Join(k.Claims, ", ")
	}
	return said
}

// write writes the curve as a table. The star, if wanted, is the recommended limit.
func (c *Curve) write(b *strings.Builder, noun string, star bool) {
	fmt.Fprintf(b, "  %6s %9s  %8s  %8s %8s  %10s  %s\n", "leak", "capacity", "refill", noun+"s", "people", "requests", "share of the load")
	fmt.Fprintf(b, "  %6s %9s  %8s  %8s %8s  %10s  %s\n", "", "", "", "refused", "refused", "refused", "refused")
	for i, p := range c.Points {
		mark := ' '
		if star && i == c.Recommended {
			mark = '*'
		}
		line := fmt.Sprintf("%c %6s %9s  %8s  %8s %8s  %10s  %6s %s", mark, p.Leak, numberText(p.Capacity), spanText(p.RefillSeconds),
			comma(p.RefusedKeys), comma(p.RefusedPeople), comma(p.RefusedRequests), shareText(p.RefusedLoad), bar(p.RefusedLoad))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

// were says how many requests something was done to.
func were(requests int) string {
	if requests == 1 {
		return "1 request was"
	}
	return comma(requests) + " requests were"
}

// bar draws a share with twenty blocks.
func bar(of float64) string { return strings.Repeat("█", int(20*of+0.5)) }

// reason says in words what the best limit does, and verb what is done with it.
func (c *Curve) reason(verb string, keys, requests int, unit, noun string) string {
	best := c.Best()
	n, per, _ := strings.Cut(best.Leak, "/")
	each := cmp.Or(map[string]string{"s": "a second", "m": "a minute", "h": "an hour", "d": "a day"}[per], "every "+per)
	units := func(n string) string {
		if n == "1" {
			return "1 " + unit
		}
		return n + " " + unit + "s"
	}
	said := fmt.Sprintf("%s: a burst of %s, and %s %s after it.", verb, units(numberText(best.Capacity)), units(n), each)
	if best.RefusedKeys == 0 {
		return said + fmt.Sprintf(" It would have refused none of %s.", Counted(keys, noun))
	}
	said += fmt.Sprintf(" It would have refused %s of %s and %s of %s, %s of the load", comma(best.RefusedKeys), Counted(keys, noun), comma(best.RefusedRequests), Counted(requests, "request"), shareText(best.RefusedLoad))
	if best.RefusedPeople == 0 {
		said += ", and nobody who looks like a person."
	} else {
		said += fmt.Sprintf(". People among these %ss: %s.", noun, comma(best.RefusedPeople))
	}
	most := best
	for _, p := range c.Points {
		if p.RefusedLoad > most.RefusedLoad {
			most = p
		}
	}
	if most.RefusedLoad > best.RefusedLoad+0.01 {
		said += fmt.Sprintf(" Up to %s could be removed with %s, but then a %s would wait %s for its whole burst, not %s.",
			shareText(most.RefusedLoad), most.Text(), noun, spanText(most.RefillSeconds), spanText(best.RefillSeconds))
	}
	return said
}

// lines returns the lines for the Caddyfile.
func (r *Result) lines() string {
	var b strings.Builder
	best := r.Units.Best()
	limit := "limit " + best.Text() + "\n"
	overrides := func(indent string) {
		for _, o := range r.Overrides {
			fmt.Fprintf(&b, "%s# An office, a school or a mobile network? %s, at least %d user agents:\n%s# override %s %s\n", indent, Counted(o.Requests, "request"), o.Agents, indent, o.Key, o.Text())
		}
	}
	if r.Zone != "" {
		fmt.Fprintf(&b, "# in zone %s, instead of its capacity and leak\n%s", r.Zone, limit)
		overrides("")
		return b.String()
	}
	b.WriteString("throttle {\n\tzone pages {\n")
	if r.Assets > 0 {
		b.WriteString("\t\texempt static_files # if Caddy does not see the files: exempt path /assets/*\n")
	}
	if r.Key != "client_ip" {
		fmt.Fprintf(&b, "\t\tkey %s\n", r.Key)
	}
	if r.cost != "" {
		fmt.Fprintf(&b, "\t\tcost %s\n", r.cost)
	}
	b.WriteString("\t\t" + limit)
	overrides("\t\t")
	b.WriteString("\t\tshadow # log only; remove it to enforce the limit\n\t}\n}\n")
	return b.String()
}

// numberText writes a capacity as a Caddyfile takes it.
func numberText(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

func comma(n int) string { return humanize.Comma(int64(n)) }

// Counted returns a number with its noun.
func Counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return comma(n) + " " + noun
}

// shareText writes a share as a percentage. Only all of it is 100%.
func shareText(of float64) string {
	switch {
	case of > 0 && of < 0.001:
		return "<0.1%"
	case of < 1 && of > 0.999:
		return ">99.9%"
	}
	return fmt.Sprintf("%.1f%%", 100*of)
}

// spanText writes seconds with one unit.
func spanText(seconds float64) string {
	for _, unit := range []struct {
		length float64
		name   string
	}{{86400, "d"}, {3600, "h"}, {60, "min"}} {
		if seconds >= 2*unit.length || seconds == unit.length {
			return numberText(math.Round(seconds/unit.length*10)/10) + " " + unit.name
		}
	}
	return numberText(math.Round(seconds*10)/10) + " s"
}

func printable(words string) string { return text.Printable(words, 60) }

// Noun returns the word for a key.
func (r *Result) Noun() string { return noun(r.Key) }

func noun(sources string) string {
	if sources == "client_ip" {
		return "client"
	}
	return "key"
}
