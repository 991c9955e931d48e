package limit

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A foldFunc turns the spellings of an account's name that an application takes for one into one
// text, so that they share a bucket. The result is "" for blank names, and [oddName] for names that
// nobody types.
type foldFunc func(name string) string

// oddName is what all names that nobody types fold to. No other name folds to it.
const oddName = "\x00"

// foldBlanks are what PHP's trim and C's isspace take for blank, and NUL.
const foldBlanks = " \t\n\v\f\r\x00"

// foldPlain makes a name lower case, without the blanks around it.
func foldPlain(name string) string {
	return strings.ToLower(strings.TrimSpace(strings.Trim(name, foldBlanks)))
}

// foldEmail folds an address: one form of each letter (NFKC), lower case, without blanks
// around it. It folds nothing else: dots and +tags are part of the address for most
// hosts, and a domain in Punycode is another text than the domain in Unicode.
func foldEmail(address string) string { return foldPlain(norm.NFKC.String(address)) }

// longestName is how many bytes a name may have that somebody types. WordPress keeps
// names of up to 60 letters.
const longestName = 256

// foldWordPress folds a name so that names which WordPress takes for one are one. It knows
// an account by what sanitize_user (wp-includes/formatting.php) leaves of a name, and
// by what its database compares of that, which are base letters.
//
// What sanitize_user takes out, such as tags, octets and entities, nobody types: names
// with <, >, & or %, with control bytes or bytes that are no UTF-8, and those of more
// than 256 bytes are [oddName], and so are names without a letter or digit. Of others, the
// letters, digits and marks are kept, in lower case and without accents.
//
// A site in German or Danish writes ä as ae, others as a: therefore ae, oe, ue, aa, ss
// and dj count as their first letter.
func foldWordPress(name string) string {
	name = strings.Trim(name, foldBlanks)
	switch {
	case name == "":
		return ""
	case len(name) > longestName, strings.ContainsAny(name, "<>&%"), !utf8.ValidString(name), strings.ContainsFunc(name, unicode.IsControl):
		return oddName
	}
	if folded := singleLetters(baseLetters(name)); folded != "" {
		return folded
	}
	return oddName
}

// baseLetters keeps letters, digits and marks, in lower case and without accents.
func baseLetters(name string) string {
	var letters strings.Builder
	foreign := false // the last letter has no case, so marks of its script are no accents
	for _, r := range norm.NFKD.String(spelledOut.Replace(name)) {
		switch {
		case r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)):
			letters.WriteRune(unicode.ToLower(r))
			foreign = false
		case unicode.IsLetter(r):
			letters.WriteString(spelledOut.Replace(string(foldCase(r))))
			foreign = !unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic)
		case unicode.IsDigit(r):
			letters.WriteRune(foldDigit(r))
			foreign = false
		case unicode.In(r, unicode.Mn, unicode.Me) && (!foreign || unicode.Is(unicode.Inherited, r)):
		case unicode.IsMark(r):
			letters.WriteRune(r)
		}
	}
	return letters.String()
}

// singleLetters writes the pairs that letters with accents are spelled out by as their
// first letter.
func singleLetters(text string) string {
	var folded strings.Builder
	last := rune(0)
	for _, r := range text {
		switch string([]rune{last, r}) {
		case "ae", "oe", "ue", "aa", "ss", "dj":
			continue
		}
		folded.WriteRune(r)
		last = r
	}
	return folded.String()
}

// foldCase returns one letter for all that differ in case only, such as σ and ς.
func foldCase(r rune) rune {
	least := r
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		if unicode.IsLetter(other) { // and no mark, as one of iota's is
			least = min(least, other)
		}
	}
	return unicode.ToLower(least)
}

// foldDigit returns the digit from 0 to 9 that a digit of another script stands for.
func foldDigit(r rune) rune {
	value := '0'
	for value < '9' && unicode.IsDigit(r-1) {
		r--
		value++
	}
	return value
}

// spelledOut are letters without a decomposition that WordPress or its database takes
// for others.
var spelledOut = strings.NewReplacer(
	"€", "e", "ɑ", "a", "ŉ", "n", "ĸ", "k", "ı", "i", "Ŋ", "n", "ŋ", "n", "Ð", "d", "ð", "d", "Þ", "th", "þ", "th", "ß", "s", "ẞ", "s",
	"Đ", "d", "đ", "d", "Ħ", "h", "ħ", "h", "Ł", "l", "ł", "l", "Ŧ", "t", "ŧ", "t", "Ø", "o", "ø", "o", "Æ", "a", "æ", "a", "Œ", "o", "œ", "o",
)
