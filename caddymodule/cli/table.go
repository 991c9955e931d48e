package cli

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
)

// A table is written in columns. Texts that came from clients must be sanitized.
type table struct{ *tabwriter.Writer }

func (c *client) table(head ...any) table {
	t := table{tabwriter.NewWriter(c, 0, 0, 2, ' ', 0)}
	t.row(head...)
	return t
}

// row adds a row, in which - stands for an empty cell.
func (t table) row(cells ...any) {
	for i, cell := range cells {
		cells[i] = cmp.Or(fmt.Sprint(cell), "-")
	}
	_, _ = fmt.Fprintf(t, strings.Repeat("%s\t", len(cells)-1)+"%s\n", cells...) // the client keeps errors
}

// sanitize returns text from clients as a terminal may show it.
func sanitize(from string) string { return command.Printable(from, 100) }

// shortKey is sanitize for keys in tables, where a long last part is cut: what follows a digest tells
// buckets apart, and so do 11 digits of another digest. why and release accept them so; limit wants the
// whole one, from --json.
func shortKey(key string) string {
	return command.Printable(key, min(100, max(40, strings.LastIndexByte(key, '/')+20)))
}

// asShown returns what a text from a terminal stands for, if the terminal showed it escaped. Names of
// buckets have no control bytes, so the \a of CORP\alice is none.
func asShown(shown string) string {
	text, err := strconv.Unquote(`"` + strings.ReplaceAll(shown, `"`, `\"`) + `"`)
	if err != nil || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
		return shown
	}
	return text
}

// printableLine is what a terminal may show of a message that quotes what it complains
// of: without a second escape of the quotes in it.
func printableLine(message string) string {
	return strings.ReplaceAll(command.Printable(message, 2000), `\\`, `\`)
}

// digits returns a number with few digits.
func digits(n float64) string {
	if math.Abs(n) >= 100 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.3g", n)
}

// wholeSeconds returns a duration in seconds for people.
func wholeSeconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return lengthText(time.Duration(math.Ceil(s) * float64(time.Second)))
}

// lengthText returns a duration for people, who count long ones in days.
func lengthText(d time.Duration) string {
	if days := d / (24 * time.Hour); days > 1 {
		return fmt.Sprintf("%dd%dh", days, int(d.Hours())%24)
	}
	return d.String()
}

// elapsed returns how long ago something was.
func elapsed(at time.Time) time.Duration { return max(0, time.Since(at)).Round(time.Second) }

// remaining returns how long a span still lasts.
func remaining(until time.Time) string {
	return lengthText(max(0, time.Until(until)).Round(time.Second))
}

// since returns when something was, in local time.
func since(at time.Time) string { return at.Local().Format("01-02 15:04:05") }
