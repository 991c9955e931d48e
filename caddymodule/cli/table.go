package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/command"
)

// A table is written in columns, without those that are empty. Heads of columns of numbers begin
// with >. Texts that came from clients must be sanitized.
type table struct{ rows [][]string }

func newTable(head ...string) *table { return &table{[][]string{head}} }

func (t *table) row(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = fmt.Sprint(cell)
	}
	t.rows = append(t.rows, row)
}

// print writes the table.
func (t *table) print(c *client) {
	lines := make([]string, len(t.rows))
	for column, head := range t.rows[0] {
		head, right := strings.CutPrefix(head, ">")
		width, used := utf8.RuneCountInString(head), false
		for _, row := range t.rows[1:] {
			width = max(width, utf8.RuneCountInString(row[column]))
			used = used || row[column] != ""
		}
		if !used {
			continue
		}
		t.rows[0][column] = head
		for i, row := range t.rows {
			cell, width := row[column], width
			switch {
			case !right:
				width = -width
			case cell == "":
				cell = "-"
			}
			lines[i] += fmt.Sprintf("%*s  ", width, cell)
		}
	}
	for _, line := range lines {
		c.printf("%s\n", strings.TrimRight(line, " "))
	}
}

// sanitize returns text from clients as a terminal may show it.
func sanitize(from string) string { return command.Printable(from, 100) }

// shortKey is sanitize for keys in tables, where long ones are cut. why and release accept
// them so; limit wants the whole one, from --json.
func shortKey(key string) string { return command.Printable(key, 40) }

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

// ofKey names a zone, or one key of it.
func ofKey(zone, key string) string {
	if key != "" {
		zone += "/" + key
	}
	return sanitize(zone)
}
