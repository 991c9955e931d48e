package cli

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// A table is written in columns, without those that are empty. Texts that came from clients
// must be sanitized.
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

// widest is how many letters a line has at most, if cutting these columns helps, to so many
// letters.
const widest = 100

var shortest = map[string]int{"KEY": 21, "OF": 21, "RULE": 8, "BY": 8, "NOTE": 8}

// fit takes what lines are too long from the longest of the columns that may be cut.
func (t *table) fit(widths []int) {
	line := 2 * (len(widths) - 1)
	for _, width := range widths {
		line += width
	}
	for ; line > widest; line-- {
		longest := -1
		for i, head := range t.rows[0] {
			if least, may := shortest[head]; may && widths[i] > least && (longest < 0 || widths[i] > widths[longest]) {
				longest = i
			}
		}
		if longest < 0 {
			return
		}
		widths[longest]--
	}
}

// print writes the table.
func (t *table) print(c *adminClient) {
	for i := len(t.right) - 1; i >= 0; i-- {
		if !slices.ContainsFunc(t.rows[1:], func(row []string) bool { return row[i] != "" }) {
			t.right = slices.Delete(t.right, i, i+1)
			for n, row := range t.rows {
				t.rows[n] = slices.Delete(row, i, i+1)
			}
		}
	}
	widths := make([]int, len(t.right))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	t.fit(widths)
	for _, row := range t.rows {
		line := ""
		for i, cell := range row {
			if cell == "" && t.right[i] {
				cell = "-"
			}
			letters := []rune(cell)
			switch cut := len(letters) - widths[i]; {
			case cut <= 0:
			case t.rows[0][i] == "RULE": // which ends with a file and a line
				cell = "…" + string(letters[cut+1:])
			default:
				cell = string(letters[:widths[i]-1]) + "…"
			}
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
