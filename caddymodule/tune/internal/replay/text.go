package replay

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/text"
)

const (
	instant    = "2006-01-02 15:04:05"
	shownKey   = 60
	shownRoute = 60
	barWidth   = 30
)

// Text returns the zone for people. Texts from clients are escaped.
func (z *Decided) Text() string {
	b := new(strings.Builder)
	fmt.Fprintf(b, "Zone %s", z.Name)
	if z.Shadow {
		b.WriteString(" (shadow: as if all zones of its throttle were enforced)")
	}
	if z.Unknown != "" {
		fmt.Fprintf(b, " (unknown: %s)", z.Unknown)
	}
	fmt.Fprintln(b)
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(what string, n int64) {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t\n", what, humanize.Comma(n), percent(n, z.Requests))
	}
	_, _ = fmt.Fprintf(w, "requests\t%s\t\t\n", humanize.Comma(z.Requests))
	for _, decision := range slices.Sorted(maps.Keys(z.Decisions)) {
		row(strings.ReplaceAll(decision, "_", " "), z.Decisions[decision])
	}
	_, _ = fmt.Fprintf(w, "keys\t%s\t\t\n", humanize.Comma(int64(z.Keys)))
	_, _ = fmt.Fprintf(w, "keys ever refused\t%s\t%s\t\n", humanize.Comma(int64(z.RefusedKeys)), percent(int64(z.RefusedKeys), int64(z.Keys)))
	_, _ = fmt.Fprintf(w, "people among them\t%s\t\t\n", humanize.Comma(int64(z.RefusedPeople)))
	_ = w.Flush()
	if z.Unlogged > 0 {
		fmt.Fprintf(b, "  refused and not in the log, as refusal log says: %s\n", humanize.Comma(z.Unlogged))
	}
	if z.LongestDelay > 0 {
		fmt.Fprintf(b, "  longest delay: %s\n", time.Duration(z.LongestDelay*float64(time.Second)).Round(time.Millisecond))
	}
	if z.Fullest != [len(steps)]int{} {
		fmt.Fprint(b, "  how full the buckets of keys that were never refused became, at most:\n")
		for i, keys := range z.Fullest {
			fmt.Fprintf(b, "  %11s %8s  %s\n", steps[i], humanize.Comma(int64(keys)), bar(keys, slices.Max(z.Fullest[:])))
		}
	}
	if z.RefusedKeys > 0 {
		z.writeRefusals(b)
	}
	return b.String()
}

func (z *Decided) writeRefusals(b *strings.Builder) {
	fmt.Fprint(b, "  refused for:")
	for _, reason := range slices.Sorted(maps.Keys(z.Reasons)) {
		fmt.Fprintf(b, " %s %s", reason, humanize.Comma(z.Reasons[reason]))
	}
	fmt.Fprint(b, "\n\n  Most refused\n")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "  key\trefused\tof\tfirst\tlast\tassets\tlooks like")
	for _, k := range z.Worst {
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%s, %s\n", name(k.Key), humanize.Comma(int64(k.Refused)), humanize.Comma(int64(k.Asked)),
			k.FirstOver.Format(instant), k.LastOver.Format(instant), humanize.Comma(int64(k.Assets)), k.Is(), k.About())
	}
	_ = w.Flush()
	fmt.Fprint(b, "\n  Refused by route\n")
	for _, route := range z.Routes {
		fmt.Fprintf(b, "  %8s  %s\n", humanize.Comma(route.Refused), text.Printable(route.Path, shownRoute))
	}
	if more := z.RefusedRoutes - len(z.Routes); more > 0 {
		fmt.Fprintf(b, "            and %s more\n", humanize.Comma(int64(more)))
	}
}

// bar draws a number beside the largest.
func bar(n, most int) string {
	return strings.Repeat("█", (n*barWidth+most-1)/most)
}

// name returns a key for people.
func name(key string) string {
	if key == "" {
		return "(shared)"
	}
	return text.Printable(key, shownKey)
}

func percent(n, of int64) string {
	if of == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f %%", 100*float64(n)/float64(of))
}
