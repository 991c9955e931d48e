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

// widest is how many letters a line has at most, if cutting these columns helps, to so many
// letters.
const widest = 100

var shortest = map[string]int{"KEY": 21, "OF": 21, "RULE": 8, "BY": 8, "NOTE": 8}

// fit takes what lines are too long from the longest of the columns that may be cut.
func (t *table) fit(widths []int) {
	line := -2
	for _, width := range widths {
		if width > 0 {
			line += width + 2
		}
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
	t.fit(widths)
	for _, row := range t.rows {
		line := ""
		for i, cell := range row {
			width := widths[i]
			letters := []rune(cell)
			switch cut := len(letters) - width; {
			case width == 0:
				continue
			case cell == "" && right[i]:
				cell = "-"
			case cut <= 0:
			case t.rows[0][i] == "RULE": // which ends with a file and a line
				cell = "…" + string(letters[cut+1:])
			default:
				cell = string(letters[:width-1]) + "…"
			}
			if !right[i] {
				width = -width
			}
			line += fmt.Sprintf("%*s  ", width, cell)
		}
		c.say(strings.TrimRight(line, " "))
	}
}
