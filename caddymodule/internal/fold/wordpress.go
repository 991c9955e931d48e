package fold

import (
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/collate"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/language"
	"golang.org/x/text/unicode/norm"
)

// longestName is how many bytes a name may have to be folded. WordPress keeps names of
// up to 60 letters.
const longestName = 1024

// WordPress folds a name as its log-in does: sanitize_user (wp-includes/formatting.php),
// once in wp_authenticate and once in WP_User::get_data_by, and then the comparison by
// the database, whose collation utf8mb4_unicode_520_ci looks at base letters only.
//
// sanitize_user takes out HTML tags, accents, percent octets and entities, in this
// order, and blanks around and between. Accents that become hexadecimal digits of an
// octet, such as %4á, depend on WordPress's version and language. So a name with both
// accents and %, & or a < that opens no tag is not sure. Nor is one of more than 1 KiB.
// A site in German or Danish writes ä as ae, others as a: therefore ae, oe, ue, aa, ss
// and dj count as their first letter.
//
// A name that is not blank and of which nothing is left is returned as [Plain] returns
// it. WordPress has no such accounts.
func WordPress(name string) (string, bool) {
	plain, _ := Plain(name)
	if len(name) > longestName {
		return plain, false
	}
	text := name
	for pass := 0; pass < 2 && !simple(text); pass++ {
		text = stripAllTags(text)
		if !ascii(text) && strings.ContainsAny(text, "%&<") {
			return plain, false
		}
		text = octet.ReplaceAllString(text, "")
		text = entity.ReplaceAllString(text, "")
		text = spaces.ReplaceAllString(trim(text), " ")
	}
	if folded := baseLetters(text); folded != "" {
		return folded, true
	}
	return plain, true
}

var (
	octet  = regexp.MustCompile(`%[a-fA-F0-9]{2}`)
	entity = regexp.MustCompile(`&.+?;`)
	spaces = regexp.MustCompile(`[ \t\n\v\f\r]+`)

	// Without (?i), with which Go takes other letters for an s.
	programs = regexp.MustCompile(`(?s)<[sS][cC][rR][iI][pP][tT][^>]*?>.*?</[sS][cC][rR][iI][pP][tT]>|<[sS][tT][yY][lL][eE][^>]*?>.*?</[sS][tT][yY][lL][eE]>`)
)

// stripAllTags is WordPress's wp_strip_all_tags.
func stripAllTags(text string) string {
	if strings.IndexByte(text, '<') >= 0 {
		text = programs.ReplaceAllString(text, "")
	}
	return trim(stripTags(text))
}

// trim is PHP's trim, which leaves form feeds.
func trim(text string) string { return strings.Trim(text, " \t\n\r\x00\v") }

// simple reports whether sanitize_user takes nothing out of a name, except for blanks.
func simple(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', strings.IndexByte(" _.-@", c) >= 0:
		default:
			return false
		}
	}
	return true
}

func ascii(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// baseLetters returns what the letters of a text are to the collation: lower case,
// without accents, and without what it ignores.
func baseLetters(text string) string {
	if !ascii(text) {
		text = decompose(text)
	}
	var folded strings.Builder
	last := byte(0)
	for i := range len(text) {
		c := text[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c < ' ' || c == 0x7f:
			continue // ignored
		}
		switch string([]byte{last, c}) {
		case "ae", "oe", "ue", "aa", "ss", "dj", "  ":
			continue
		}
		folded.WriteByte(c)
		last = c
	}
	return strings.Trim(folded.String(), " ")
}

// decompose turns letters into base letters as far as they have any.
func decompose(text string) string {
	if !utf8.ValidString(text) {
		text = fromLatin1(text)
	}
	w := weighers.Get().(*weigher)
	defer weighers.Put(w)
	var letters strings.Builder
	for _, r := range norm.NFKD.String(unaccented.Replace(text)) {
		switch latin, known := w.latin(r); {
		case r == '·': // of l·l, which sites in Catalan write as ll
		case known:
			letters.WriteString(latin)
		case unicode.IsSpace(r):
			letters.WriteByte(' ')
		case !unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Cc):
			letters.WriteRune(foldCase(r))
		}
	}
	return letters.String()
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

// A weigher finds out which weight letters have in a collation by base letters: equal
// ones have the same.
type weigher struct {
	collator *collate.Collator
	buffer   collate.Buffer
}

var weighers = sync.Pool{New: func() any { return newWeigher() }}

func newWeigher() *weigher { return &weigher{collator: collate.New(language.Und, collate.Loose)} }

func (w *weigher) weigh(text string) string {
	w.buffer.Reset()
	return string(w.collator.KeyFromString(&w.buffer, text))
}

// latin returns the Latin letters or digits that a letter equals, or "" if the
// collation ignores it.
func (w *weigher) latin(r rune) (letters string, known bool) {
	if r < utf8.RuneSelf {
		return string(r), true
	}
	letters, known = latinByWeight()[w.weigh(string(r))]
	return letters, known
}

// latinByWeight are Latin letters and digits and pairs of them by their weights.
var latinByWeight = sync.OnceValue(func() map[string]string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	w, all := newWeigher(), make(map[string]string)
	for _, a := range alphabet {
		for _, b := range alphabet {
			all[w.weigh(string([]rune{a, b}))] = string([]rune{a, b})
		}
		all[w.weigh(string(a))] = string(a)
	}
	all[w.weigh("")] = ""
	return all
})

// fromLatin1 reads a text that is no UTF-8, as WordPress does.
func fromLatin1(text string) string {
	text = latin1.Replace(text)
	if decoded, err := charmap.Windows1252.NewDecoder().String(text); err == nil {
		return decoded
	}
	return text
}

// latin1 are the bytes that WordPress reads otherwise than their letters.
var latin1 = strings.NewReplacer("\x83", "f", "\xa2", "c", "\xa5", "y", "\xd0", "dh", "\xf0", "dh")

// unaccented are letters without a decomposition that WordPress or the collation takes
// for others.
var unaccented = strings.NewReplacer(
	"£", "", "€", "e", "ŉ", "n", "ĸ", "k", "ı", "i", "Ŋ", "n", "ŋ", "n", "Ð", "d", "ð", "d", "Þ", "th", "þ", "th",
	"Đ", "d", "đ", "d", "Ħ", "h", "ħ", "h", "Ł", "l", "ł", "l", "Ŧ", "t", "ŧ", "t", "Ø", "o", "ø", "o", "Æ", "a", "æ", "a", "Œ", "o", "œ", "o",
)
