package recommend

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

// Text returns the result for people. Texts from the log are made printable.
func (r *Result) Text() string {
	var b strings.Builder
	if r.Zone != "" {
		fmt.Fprintf(&b, "zone %s, as if there were no other (replay --zone %[1]s)\n\n", r.Zone)
	}
	fmt.Fprintf(&b, "%s of %s from %s to %s", Counted(r.Requests, "request"), Counted(r.Keys, r.noun), r.From.Format("2006-01-02 15:04"), r.To.Format("2006-01-02 15:04 MST"))
	if r.Assets > 0 {
		fmt.Fprintf(&b, ",\nbesides %s for static assets, which should be exempt", Counted(r.Assets, "request"))
	}
	fmt.Fprintf(&b, ".\n%s looked like people: they loaded static assets with pages, and named no robot.\n", Counted(r.PeopleKeys, r.noun))
	fmt.Fprintf(&b, "%s:\n\n", r.promise())
	r.Units.write(&b, r.noun, len(r.Withheld) == 0)
	if len(r.Withheld) == 0 {
		fmt.Fprintf(&b, "\n%s\n%s", r.Units.Reason, r.office())
		if h := r.HoldOut; h != nil {
			fmt.Fprintf(&b, "%s\n", h.Reason)
		}
	} else {
		b.WriteString("\nNo limit is recommended:\n")
		for _, why := range r.Withheld {
			fmt.Fprintf(&b, "- %s\n", why)
		}
		b.WriteString(r.instead())
	}
	for i, note := range r.Notes {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "Note: %s\n", note)
	}
	if len(r.Withheld) == 0 {
		r.writeRefused(&b)
		fmt.Fprintf(&b, "\nTo paste into the Caddyfile:\n\n%s", r.Caddyfile)
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

// instead says what to do without a recommendation.
func (r *Result) instead() string {
	switch {
	case r.Zone != "":
		return "Keep the limit that the zone has.\n"
	case r.needless:
		return "For days that are worse than these, begin with limit 120 2/s in shadow.\n"
	}
	return "Until there is a better log, begin with limit 120 2/s in shadow.\n"
}

// office says what people behind one address would need, whom the log may not have.
func (r *Result) office() string {
	const staff, many = 30, 5
	if r.noun != "client" || r.mostPeople == 0 || r.mostPeople >= many {
		return ""
	}
	return fmt.Sprintf("No address of this log had more than %s. An office where %d people begin at once would need a burst of about %s: give its address an override.\n",
		Counted(r.mostPeople, "person", "people"), staff, numberText(math.Ceil(staff*max(1, r.usualNeed))))
}

// writeRefused writes who would be refused.
func (r *Result) writeRefused(b *strings.Builder) {
	for i, k := range r.Refused {
		if i == 0 {
			fmt.Fprintf(b, "\nWho would be refused, of %s:\n\n  %-39s %9s %9s %9s  %s\n", Counted(r.Units.Best().RefusedKeys, r.noun), r.noun, "requests", "refused", "assets", "looks like")
		}
		fmt.Fprintf(b, "  %-39s %9s %9s %9s  %s\n", text.Printable(k.Key, 39), comma(k.Charged), comma(k.Refused), comma(k.Assets), k.Is())
		fmt.Fprintf(b, "    %s to %s, %s\n", k.First.Format("2006-01-02 15:04"), k.Last.Format("2006-01-02 15:04"), k.About())
	}
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
func (r *Result) reason(verb string) string {
	best, unit := r.Units.Best(), "request"
	if r.cost != "" || r.settle != "" {
		unit = "unit"
	}
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
		return said + fmt.Sprintf(" It would have refused none of %s.", Counted(r.Keys, r.noun))
	}
	said += fmt.Sprintf(" It would have refused %s of %s and %s of %s, %s of the load", comma(best.RefusedKeys), Counted(r.Keys, r.noun), comma(best.RefusedRequests), Counted(r.Requests, "request"), shareText(best.RefusedLoad))
	if best.RefusedPeople == 0 {
		said += ", and nobody who looks like a person."
	} else {
		said += fmt.Sprintf(". People among these %ss: %s.", r.noun, comma(best.RefusedPeople))
	}
	most := slices.MaxFunc(r.Units.Points, func(a, b Point) int { return cmp.Compare(a.RefusedLoad, b.RefusedLoad) })
	if most.RefusedLoad > best.RefusedLoad+0.01 {
		said += fmt.Sprintf(" Up to %s could be removed with %s, but then a %s would wait %s for its whole burst, not %s.",
			shareText(most.RefusedLoad), most.Text(), r.noun, spanText(most.RefillSeconds), spanText(best.RefillSeconds))
	}
	return said
}

// lines returns the lines for the Caddyfile.
func (r *Result) lines() string {
	limit := "limit " + r.Units.Best().Text() + "\n"
	if r.Zone != "" {
		return fmt.Sprintf("# in zone %s, instead of its capacity and leak\n%s", r.Zone, limit)
	}
	var b strings.Builder
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
	if r.settle != "" {
		fmt.Fprintf(&b, "\t\tsettle %s\n", r.settle)
	}
	b.WriteString("\t\tshadow # log only; remove it to enforce the limit\n\t}\n}\n")
	return b.String()
}

// numberText writes a capacity as a Caddyfile takes it.
func numberText(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

func comma(n int) string { return humanize.Comma(int64(n)) }

// Counted returns a number with its noun, whose plural may be told.
func Counted(n int, noun string, plural ...string) string {
	switch {
	case n == 1:
	case len(plural) > 0:
		noun = plural[0]
	default:
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
