package limit

import (
	"cmp"
	"regexp"
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

// trimBlanks trims what nobody sees, as Laravel does, since some application takes it for blank; but of
// a name that has nothing else, only blanks. U+2800 and U+1D159 are symbols to Unicode.
func trimBlanks(name string) string {
	blank := func(r rune) bool { return r <= ' ' || unicode.IsSpace(r) }
	return cmp.Or(strings.TrimFunc(name, func(r rune) bool {
		return blank(r) || !unicode.IsGraphic(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || r == '\u2800' || r == '\U0001d159'
	}), strings.TrimFunc(name, blank))
}

// foldPlain makes a name lower case, without the blanks around it, and writes each letter in one form
// (NFKC), as Django does. Upper case comes first, since databases compare it: that of ı is I, and that of ſ S.
// Names with control bytes are [oddName]: PHP's drivers of PostgreSQL end them at a NUL. So are long ones of other
// letters than ASCII: NFKC would take milliseconds. Tokens are ASCII.
func foldPlain(name string) string {
	name = trimBlanks(name)
	if len(name) > longestName && strings.TrimFunc(name, isASCII) != "" || strings.ContainsFunc(name, unicode.IsControl) {
		return oddName
	}
	lower := strings.ToLower(strings.ToUpper(trimBlanks(norm.NFKC.String(name))))
	return norm.NFKC.String(lower) // again: γῆ has a letter with an accent where ΓΗ͂ has a mark
}

// foldEmail also leaves out what validator.js does of addresses at some hosts: dots, and what follows a +
// or, at Yahoo, a -. The hosts of Google are one for it, and so are those of Yandex.
func foldEmail(name string) string {
	name = foldPlain(name)
	local, host, is := strings.Cut(name, "@")
	if !is {
		return name
	}
	local, _, _ = strings.Cut(local, "+")
	switch first, _, _ := strings.Cut(host, "."); first {
	case "yahoo", "ymail", "rocketmail":
		local, _, _ = strings.Cut(local, "-")
	case "googlemail":
		host = "gmail.com"
	case "yandex", "ya":
		host = "yandex.ru"
	}
	return strings.ReplaceAll(local, ".", "") + "@" + host
}

// longestName is how many bytes a name may have that somebody types. WordPress keeps
// names of up to 60 letters.
const longestName = 256

// foldWordPress folds a name so that names which WordPress takes for one are one. It knows
// an account by what sanitize_user (wp-includes/formatting.php) leaves of a name, and
// by what its database compares of that, which are base letters.
//
// What sanitize_user takes out, such as tags, octets and entities, nobody types: names
// with <, >, & or %, with control bytes or bytes that are no UTF-8, and those of more
// than 256 bytes are [oddName], and so are names without a letter or digit, or with one of
// [unusual] or *, which Redmine hands on to LDAP as a wildcard. Of others, [baseLetters] are kept.
//
// A site in German or Danish writes ä as ae, others as a: therefore ae, oe, ue, aa, ss,
// dh and dj count as their first letter. phpBB takes letters of other scripts for the Latin ones
// that look alike. Here only names count as Latin that have a Latin letter or digit, or could be Latin.
func foldWordPress(name string) string {
	name = trimBlanks(name)
	switch {
	case name == "":
		return ""
	case len(name) > longestName, strings.ContainsAny(name, "<>&%*"), !utf8.ValidString(name), strings.ContainsFunc(name, odd):
		return oddName
	}
	letters := baseLetters(name)
	if latin := lookAlikes.Replace(letters); strings.ContainsFunc(letters, isASCII) || strings.TrimFunc(latin, isASCII) == "" {
		letters = latin
	}
	return cmp.Or(doubles.ReplaceAllString(letters, "$1$2$3$4"), oddName)
}

func isASCII(r rune) bool { return r < utf8.RuneSelf }

// vowelSigns are marks that a database compares. It skips nearly all others, also after letters of
// other scripts, so that an account would have any number of names with them.
var vowelSigns = &unicode.RangeTable{
	R16: []unicode.Range16{{0x93e, 0x94d, 1}, {0x9be, 0x9cd, 1}, {0xa3e, 0xa4d, 1}, {0xabe, 0xacd, 1}, {0xb3e, 0xb4d, 1}, {0xbbe, 0xbcd, 1}, {0xc3e, 0xc4d, 1}, {0xcbe, 0xccd, 1}, {0xd3e, 0xd4d, 1}, {0xdca, 0xddf, 1}, {0xe31, 0xe3a, 1}, {0xeb1, 0xebc, 1}, {0x102b, 0x1035, 1}, {0x17b6, 0x17c5, 1}},
}

// odd reports whether nobody types a character in a name. DokuWiki leaves out symbols and numbers such
// as € and ².
func odd(r rune) bool {
	return unicode.Is(unusual, r) || unicode.IsControl(r) || r >= utf8.RuneSelf && unicode.IsSymbol(r) || unicode.IsNumber(r) && !unicode.IsDigit(r)
}

// unusual are what a database or DokuWiki takes for usual letters, or skips: letters as marks,
// medieval ones, those of phonetics and mathematics, and emblems. phpBB takes ¡ for i, and some digits
// for others.
var unusual = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0xa1, 0xa1, 1}, {0xaa, 0xba, 0x10}, {0x18d, 0x18d, 1}, {0x1be, 0x1be, 1}, {0x238, 0x239, 1}, {0x2a3, 0x2ab, 1}, {0x2c7, 0x2c7, 1}, {0x345, 0x345, 1}, {0x363, 0x36f, 1}, {0x640, 0x640, 1}, {0x7fa, 0x7fa, 1}, {0x824, 0x828, 4}, {0x9ea, 0x9ed, 3}, {0xa67, 0xa6a, 3}, {0xb03, 0xb03, 1}, {0xb68, 0xb68, 1}, {0x166e, 0x166e, 1}, {0x1ab0, 0x1aff, 1}, {0x1cf2, 0x1cf3, 1}, {0x1d00, 0x1dff, 1}, {0x1efa, 0x1efb, 1}, {0x2100, 0x214f, 1}, {0x2de0, 0x2dff, 1}, {0xa640, 0xa69f, 1}, {0xa720, 0xa7ff, 1}, {0xc2a0, 0xc2a0, 1}, {0xfe73, 0xfe73, 1},
	},
	R32: []unicode.Range32{{0x10780, 0x107bf, 1}, {0x1d400, 0x1d7ff, 1}, {0x1f100, 0x1f1ff, 1}},
}

// baseLetters keeps letters, digits and vowel signs, in lower case and without accents. It returns
// "" for names with one of [unusual].
func baseLetters(name string) string {
	var letters strings.Builder
	for _, r := range norm.NFKD.String(spelledOut.Replace(name)) {
		switch {
		case odd(r):
			return ""
		case unicode.IsLetter(r):
			letters.WriteString(spelledOut.Replace(string(foldCase(r))))
		case unicode.IsDigit(r):
			letters.WriteRune(foldDigit(r))
		case unicode.Is(vowelSigns, r):
			letters.WriteRune(r)
		}
	}
	return letters.String()
}

// doubles are the pairs that letters with accents are spelled out by. The first letter stays.
var doubles = regexp.MustCompile(`(a)[ae]+|([ou])e+|(s)s+|(d)[hj]+`)

// foldCase returns one letter for all that differ in case only, such as σ and ς, and Katakana for
// Hiragana.
func foldCase(r rune) rune {
	if 'ぁ' <= r && r <= 'ゖ' {
		return r + 'ァ' - 'ぁ'
	}
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
	"ɑ", "a", "ƒ", "f", "µ", "u", "ŉ", "n", "ĸ", "k", "ı", "i", "Ŋ", "n", "ŋ", "n", "Ð", "d", "ð", "d", "Þ", "th", "þ", "th", "ß", "s", "ẞ", "s",
	"Đ", "d", "đ", "d", "Ħ", "h", "ħ", "h", "Ł", "l", "ł", "l", "Ŧ", "t", "ŧ", "t", "Ø", "o", "ø", "o", "Æ", "a", "æ", "a", "Œ", "o", "œ", "o",
	"ァ", "ア", "ィ", "イ", "ゥ", "ウ", "ェ", "エ", "ォ", "オ", "ッ", "ツ", "ャ", "ヤ", "ュ", "ユ", "ョ", "ヨ", "ヮ", "ワ", "ヵ", "カ", "ヶ", "ケ", "ך", "כ", "ם", "מ", "ן", "נ", "ף", "פ", "ץ", "צ",
)

// lookAlikes are letters that phpBB takes for Latin ones (includes/utf/data/confusables.php), and 0,
// since it takes that of other scripts for o.
var lookAlikes = strings.NewReplacer(strings.Fields("α a а a ꮟ b ᖯ b с c ԁ d ᑯ d е e ք f ɡ g ց g һ h հ h ꮒ h ɪ i ɩ i ι i і i ӏ i ꭵ i ϳ j ј j յ j ᗰ m ո n ռ n 0 o ο o о o օ o ဝ o ρ p р p գ q զ q г r ѕ s ƽ s υ u ս u ʊ u ʋ u ν v ѵ v ɯ w ꮤ w ꮃ w ᗯ w х x ᕁ x ᕽ x у y ү y ყ y ꭹ y ꮍ y ᒿ 2 ꮞ 4 б 6 ȣ 8 ӕ a")...)
