// Package text is what people read: words that they may have misspelled, counts of things,
// and texts of strangers that a terminal can show. Begin with [Printable].
package text

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Printable returns text that a terminal or a page can show: control bytes, marks of
// text direction, invisible characters and what is no UTF-8 are escaped. What is longer
// than most characters is cut.
func Printable(text string, most int) string {
	n, rest := 0, ""
	for i := range text {
		if n++; n > most {
			text, rest = text[:i], "…"
			break
		}
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`) + rest
}

// Plural returns a number of things, such as "1 zone" or "2 zones".
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Unknown reports an unknown word, with the nearest known one.
func Unknown(kind, word, where string, known []string) error {
	if meant := Nearest(word, known); meant != "" {
		return fmt.Errorf("unknown %s %q%s: did you mean %s?", kind, word, where, meant)
	}
	if len(known) == 1 {
		return fmt.Errorf("unknown %s %q%s: want %s", kind, word, where, known[0])
	}
	return fmt.Errorf("unknown %s %q%s: want one of %s", kind, word, where, strings.Join(known, ", "))
}

// Nearest returns the known word of which a word is a misspelling or the beginning, or
// "". A misspelling has at most one edit in three letters.
func Nearest(word string, known []string) string {
	best, least := "", max(1, len(word)/3)+1
	if i := slices.IndexFunc(known, func(k string) bool { return len(word) > 4 && strings.HasPrefix(k, word+"_") }); i >= 0 {
		return known[i]
	}
	for _, candidate := range known {
		if n := edits(strings.ToLower(word), candidate); n < least {
			best, least = candidate, n
		}
	}
	return best
}

// edits returns the optimal string alignment distance of two words: how many letters
// must be inserted, deleted, replaced or swapped with a neighbour.
func edits(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			replaced := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			rows[i][j] = min(replaced, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
