package caddymodule

import (
	"io"
	"strings"
	"unicode/utf8"
)

// A table is written in columns. Texts that came from clients must be given as shown.
type table struct {
	out   io.Writer
	right []bool // columns of numbers
	rows  [][]string
}

// table begins a table. The heads of columns of numbers are given by number.
func (r *remote) table(head ...string) *table {
	t := &table{out: &r.out}
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
	drop := func(i int) bool { return !wanted[i] }
	for i, row := range t.rows {
		t.rows[i] = without(row, drop)
	}
	t.right = without(t.right, drop)
}

func without[T any](all []T, drop func(int) bool) (rest []T) {
	for i, one := range all {
		if !drop(i) {
			rest = append(rest, one)
		}
	}
	return rest
}

// Flush writes the table.
func (t *table) Flush() error {
	widths := make([]int, len(t.right))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
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
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(t.out, b.String())
	return err
}
