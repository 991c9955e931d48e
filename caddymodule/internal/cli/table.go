package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A table is written in columns, without those that are empty. Texts that came from clients
// must be sanitized.
type table struct{ rows [][]string }

// newTable begins a table. The heads of columns of numbers are given by numeric.
func newTable(head ...string) *table { return &table{[][]string{head}} }

// numberHead begins the heads of columns of numbers.
const numberHead = ">"

// numeric marks a head as that of a column of numbers.
func numeric(head string) string { return numberHead + head }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// print writes the table.
func (t *table) print(c *adminClient) {
	right, widths := make([]bool, len(t.rows[0])), make([]int, len(t.rows[0])) // 0 for columns that are empty
	for i := range widths {
		t.rows[0][i], right[i] = strings.CutPrefix(t.rows[0][i], numberHead)
		for _, row := range t.rows[1:] {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		if widths[i] > 0 {
			widths[i] = max(widths[i], utf8.RuneCountInString(t.rows[0][i]))
		}
	}
	for _, row := range t.rows {
		line := ""
		for i, cell := range row {
			width := widths[i]
			switch {
			case width == 0:
				continue
			case cell == "" && right[i]:
				cell = "-"
			}
			if !right[i] {
				width = -width
			}
			line += fmt.Sprintf("%*s  ", width, cell)
		}
		c.say(strings.TrimRight(line, " "))
	}
}
