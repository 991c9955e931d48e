package cli

import (
	"strings"
	"unicode/utf8"
)

// A table is written in columns. Texts that came from clients must be sanitized.
type table struct {
	right []bool // columns of numbers
	rows  [][]string
}

// newTable begins a table. The heads of columns of numbers are given by numeric.
func newTable(head ...string) *table {
	t := new(table)
	for i := range head {
		name, numbers := strings.CutPrefix(head[i], numberHead)
		t.right = append(t.right, numbers)
		head[i] = name
	}
	t.row(head...)
	return t
}

// numberHead begins the heads of columns of numbers.
const numberHead = ">"

// numeric marks a head as that of a column of numbers.
func numeric(head string) string { return numberHead + head }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// keep drops the columns for which wanted is false.
func (t *table) keep(wanted ...bool) {
	for i, row := range t.rows {
		t.rows[i] = keepOnly(row, wanted)
	}
	t.right = keepOnly(t.right, wanted)
}

func keepOnly[T any](all []T, wanted []bool) (rest []T) {
	for i, one := range all {
		if wanted[i] {
			rest = append(rest, one)
		}
	}
	return rest
}

// print writes the table.
func (t *table) print(c *adminClient) {
	widths := make([]int, len(t.right))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		line := ""
		for i, cell := range row {
			fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				line += fill + cell
			} else {
				line += cell + fill
			}
			line += "  "
		}
		c.say(strings.TrimRight(line, " "))
	}
}
