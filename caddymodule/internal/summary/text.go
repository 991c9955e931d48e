package summary

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
)

// decisions are the words for decisions, in the order of a summary.
var decisions = []string{"admitted", "delayed", "refused", "shadow_delayed", "shadow_refused"}

// Write writes the summary for people. Texts from the log are made printable.
func (s *Summary) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s from %s to %s\n", counted(s.Requests, "request"), s.From.Format("2006-01-02 15:04:05"), s.To.Format("2006-01-02 15:04:05 MST"))
	if s.Decided == 0 {
		b.WriteString("No line has the field throttle: no zone was asked, or the log is not that of a site with throttle.\n" +
			"To see what a limit would do, run caddy throttle replay or recommend.\n")
		_, err := io.WriteString(w, b.String())
		return err
	}
	fmt.Fprintf(&b, "A zone was asked about %s of them (%s).\n", humanize.Comma(int64(s.Decided)), percent(s.Decided, s.Requests))
	if s.Broken > 0 {
		fmt.Fprintf(&b, "%s could not be read.\n", counted(s.Broken, "field"))
	}
	for _, z := range s.Zones() {
		z.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (z *Zone) write(b *strings.Builder) {
	fmt.Fprintf(b, "\nzone %s: %s of %s\n", accesslog.Printable(z.Zone, 100), counted(z.Requests, "request"), counted(z.Keys, "key"))
	for _, d := range decisions {
		if n := z.Decisions[d]; n > 0 {
			line := fmt.Sprintf("  %-14s %10s %7s  %s", strings.ReplaceAll(d, "_", " "), humanize.Comma(int64(n)), percent(n, z.Requests), z.reasonsOf(d))
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	if z.Unlogged > 0 {
		fmt.Fprintf(b, "  %-14s %10s          refused and not in the log, as refusal log says: all other figures leave them out\n", "unlogged", humanize.Comma(int64(z.Unlogged)))
	}
	fmt.Fprintf(b, "  %-14s %10s %7s\n", "keys refused", humanize.Comma(int64(z.RefusedKeys)), percent(z.RefusedKeys, z.Keys))
	n := z.Nearest
	if others := n.Below25 + n.Below50 + n.Below75 + n.Below90 + n.Above; others > 0 {
		which := counted(others, "key")
		if z.RefusedKeys > 0 {
			which = counted(others, "other key")
		}
		fmt.Fprintf(b, "How full the buckets of %s became, at most:\n", which)
		for _, step := range []struct {
			name string
			keys int
		}{{"below 25%", n.Below25}, {"25 to 50%", n.Below50}, {"50 to 75%", n.Below75}, {"75 to 90%", n.Below90}, {"above 90%", n.Above}} {
			fmt.Fprintf(b, "  %s  %-30s %s\n", step.name, strings.Repeat("█", (30*step.keys+others/2)/others), humanize.Comma(int64(step.keys)))
		}
	}
	if len(z.Top) > 0 {
		b.WriteString("Refused most, with the first and the last time:\n")
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		for _, k := range z.Top {
			_, _ = fmt.Fprintf(t, "  %s\t%s of %s\t%s\t%s\n", accesslog.Printable(k.Key, 60), humanize.Comma(int64(k.Refused)), humanize.Comma(int64(k.Requests)),
				k.First.Format("Jan _2 15:04:05"), k.Last.Format("Jan _2 15:04:05"))
		}
		_ = t.Flush()
	}
	if len(z.Routes) > 0 {
		b.WriteString("Refused routes, without their queries:\n")
		for _, r := range z.Routes {
			fmt.Fprintf(b, "  %8s  %s\n", humanize.Comma(int64(r.Count)), accesslog.Printable(r.Name, 80))
		}
	}
}

// reasonsOf returns the reasons of refusals.
func (z *Zone) reasonsOf(decision string) string {
	var reasons []string
	for reason, n := range z.Reasons[decision] {
		reasons = append(reasons, fmt.Sprintf("%s %s", accesslog.Printable(reason, 40), humanize.Comma(int64(n))))
	}
	slices.Sort(reasons)
	return strings.Join(reasons, ", ")
}

func percent(n, of int) string {
	if of == 0 {
		return "0%"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(n)/float64(of))
}

// counted returns a number with its noun.
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return humanize.Comma(int64(n)) + " " + noun
}
