package limit

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-throttle/caddy-throttle/internal/peertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

func TestWordPressTakesTheseNamesForOne(t *testing.T) {
	for _, names := range [][]string{
		{
			"admin", "Admin", "ADMIN", " admin ", "\tadmin\n", "admin\u00a0", "\u3000admin", "ádmin", "àdmín", "adm\u0131n", "ADM\u0130N", "a\u0301dmin",
			"ad\u00admin", "ad\u200bmin", "ad\u200dmin", "ad\ufeffmin", "admin\ufe0f", "ａｄｍｉｎ",
			"admin\u0903", "ad\u0982\u0982min", "a\u0302\u0c01dmin",
		},
		{"jörg", "joerg", "jorg", "JÖRG", "jo\u0308rg"},
		{"weiß", "weiss", "weis", "WEIẞ", "WEISS"},
		{"ægir", "aegir", "agir", "Ægir"},
		{"åse", "aase", "ase"},
		{"đorđe", "djordje", "dorde"},
		{"buðlungr", "budhlungr", "bµðlungr"},
		{"frodo", "ƒrodo", "Ƒrodo"},
		{"müller", "mueller", "muller"},
		{"col·lega", "collega"},
		{"ИВАН", "иван", "Иван"},
		{"ΝΊΚΟΣ", "νίκος"},
		{"Ёлка", "елка"},
		{"山田", "山\u0301田", "山\u0902田\u0903"},
		{"राम", "राम\u0903", "रा\u093cम\u0902"},
		{"ひっかけ", "ヒッカケ", "ﾋｯｶｹ", "ぴつがげ", "ヒッヵヶ"},
		{"סוף", "סופ"},
		{"admin1", "admin١", "admin１", "admin१"},
		{"fishbowy6", "fіѕһbоwу6", "քɩѕհᏏօᏔүб", "fιshb०ɯყ6"}, // by phpBB
	} {
		for _, name := range names {
			if got, want := foldWordPress(name), foldWordPress(names[0]); got != want || got == oddName {
				t.Errorf("%q: got %q, want %q as for %q", name, got, want, names[0])
			}
		}
	}
}

func TestNamesThatNobodyTypesAreOdd(t *testing.T) {
	for _, name := range []string{
		"<b>admin</b>", "admin<", "a>b", "admin&x1;", "&", "%41admin", "100%", "adm*n", "ad\x00min", "adm\x01in", "ad\tmin", "ad\x7fmin", "ad\u0085min", "\xe1dmin",
		"\u0363dmin", "adm\u1de0in", "ꝺmin", "🅗", "admin❶", "admin〡", "ad\ufe73min", "ad\u0640min", "\u2df6дмин", "ʣ",
		"ⓐdmin", "𝐚𝐝𝐦𝐢𝐧", "ªdmin", "ad£min", "admin²", "adm€in", "admin№", "adm¡n", "admin৭", "admin⑩", "admin𝛼", "adminℵ", "admin\u02c7", "admin\uc2a0",
		"...", "🦊", "\u200b", "£", "\u0301", strings.Repeat("a", 257), strings.Repeat("é", 129),
	} {
		check.Equal(t, foldWordPress(name), oddName, "%q, want it to be odd", name)
	}
	for _, name := range []string{"", " \t", "\x00"} {
		check.Equal(t, foldWordPress(name), "", "%q", name)
	}
}

func TestWordPressTellsTheseNamesApart(t *testing.T) {
	seen := make(map[string]string)
	for _, name := range []string{"admin", "admin2", "administrator", "иван", "мария", "山田", "佐藤", "محمد", "राम", "रम", "กิน", "กน"} {
		folded := foldWordPress(name)
		other, taken := seen[folded]
		check.That(t, !taken && folded != oddName, "%q: got %q, as for %q", name, folded, other)
		seen[folded] = name
	}
}

// TestNamesInOtherScriptsStayApart makes names as people have them: of syllables, with
// the vowel signs and marks of the script.
func TestNamesInOtherScriptsStayApart(t *testing.T) {
	for script, syllables := range map[string]string{
		"Cyrillic": "ан мар ия ив сер гей ол га ни ко лай та тья бо рис",
		"Chinese":  "王 李 张 刘 陈 杨 赵 黄 周 吴 伟 芳 娜 敏 静 丽",
		"Arabic":   "مح مد أح علي حس ين فا طم ة خا لد يو سف نو ر",
		"Hindi":    "रा म सी ता कृ ष्ण ल क्ष्मी ह रि गी दी प मो नि शा",
		"Thai":     "สม ชาย หญิง ศรี นก กิต ติ พร ทิ พย์ วัน ดี รัตน์ สุ ดา",
	} {
		parts := strings.Fields(syllables)
		rng := rand.New(rand.NewPCG(1, uint64(len(script))))
		names, folded := make(map[string]bool), make(map[string]string)
		for len(names) < 200 {
			name := ""
			for range 2 + rng.IntN(3) {
				name += parts[rng.IntN(len(parts))]
			}
			if names[name] {
				continue
			}
			names[name] = true
			got := foldWordPress(name)
			other, taken := folded[got]
			check.That(t, !taken && got != oddName, "%s: %q: got %q, as for %q", script, name, got, other)
			folded[got] = name
		}
	}
}

// namesOf returns the names that WordPress looks up for texts, on a site of a locale.
func namesOf(t *testing.T, php *peertest.Peer, locale string, texts []string) []string {
	t.Helper()
	question := locale
	for _, text := range texts {
		question += " " + base64.StdEncoding.EncodeToString([]byte(text))
	}
	names := strings.Split(php.Ask(t, question), " ")
	check.Assume(t, len(names) == len(texts), "got %d names for %d", len(names), len(texts))
	for i := range names {
		name := check.Must(base64.StdEncoding.DecodeString(names[i]))(t)
		names[i] = string(name)
	}
	return names
}

// TestNamesThatWordPressTakesForOneFoldToOne asks WordPress's own code, which writes
// letters as its language says. What it looks up must fold as what was typed, or one of
// both be odd: then two names that it looks up as one are one here.
func TestNamesThatWordPressTakesForOneFoldToOne(t *testing.T) {
	php := peertest.PHP(t, "testdata/wordpress.php")
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	pairs := 20_000
	if os.Getenv("TEST_LONG") != "" {
		pairs = 1_000_000
	}
	var letters []rune // that may be Latin ones to somebody, and some of each other script
	for r := rune(' '); r < 0x2500; r++ {
		if unicode.IsPrint(r) {
			letters = append(letters, r)
		}
	}
	letters = append(letters, []rune("０Ａａ𝐚𝟎ﬁﬅẞſ山田ｶกิमि\u0301\u0308\u00ad\u200b\u200d\ufe0f ")...)
	plain := []rune("aAeEoOuUsSdDjJtThHlL1._-@ äÄöÖüÜßåÅæÆøØđĐéŀ·")
	locales := []string{"en_US", "de_DE", "de_DE_formal", "de_CH", "da_DK", "ca", "sr_RS", "bs_BA"}
	for at := 0; at < pairs; {
		var texts []string
		for range 500 {
			var text strings.Builder
			for range 1 + rng.IntN(8) {
				if rng.IntN(3) == 0 {
					text.WriteRune(letters[rng.IntN(len(letters))])
				} else {
					text.WriteRune(plain[rng.IntN(len(plain))])
				}
			}
			texts = append(texts, text.String())
		}
		locale := locales[rng.IntN(len(locales))]
		for i, name := range namesOf(t, php, locale, texts) {
			if got, want := foldWordPress(texts[i]), foldWordPress(name); got != want && got != oddName {
				t.Fatalf("seed %d: %q is %q to WordPress in %s: got %q, want %q", seed, texts[i], name, locale, got, want)
			}
			at++
		}
	}
}

// Each letter alone, in each language.
func TestLettersFoldAsWordPressWritesThem(t *testing.T) {
	php := peertest.PHP(t, "testdata/wordpress.php")
	var texts []string
	for r := rune(0xa0); r < 0x20000; r++ {
		if text := fmt.Sprintf("x%cx", r); utf8.ValidRune(r) && foldWordPress(text) != oddName {
			texts = append(texts, text)
		}
	}
	for _, locale := range []string{"en_US", "de_DE", "da_DK", "ca", "sr_RS"} {
		if locale != "en_US" {
			texts = slices.DeleteFunc(texts, func(text string) bool { return text > "x\u20a0" }) // languages differ in the others alone
		}
		for some := range slices.Chunk(texts, 1000) {
			for i, name := range namesOf(t, php, locale, some) {
				if got, want := foldWordPress(some[i]), foldWordPress(name); got != want {
					t.Errorf("%q is %q to WordPress in %s: got %q, want %q", some[i], name, locale, got, want)
				}
			}
		}
	}
}

// Django, Java, JavaScript and PostgreSQL's upper take these for one name.
func TestNamesFoldToOneForm(t *testing.T) {
	for name, want := range map[string]string{
		" A.B+C@Example.COM ": "a.b+c@example.com", "ａ@example.com": "a@example.com", "e\u0301@example.com": "é@example.com", "": "",
		"\x1c\x1d\u00a0\x00admin\x1f\u3000\x01": "admin", "\ufeffadmin\ufeff": "admin", "\u00a8admin": "\u0308admin", "ａ𝒹ⓜin": "admin", "admınıſtrator": "administrator",
	} {
		check.Equal(t, foldPlain(name), want, "%q", name)
		check.Equal(t, foldPlain(want), want, "%q", want)
	}
}

func FuzzWordPress(f *testing.F) {
	for _, name := range []string{"admin", " Ádmin", "<b>", "\xe1", "ﷺ", "\u0345", "ŀ", "Þ"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		folded := foldWordPress(name)
		if folded == "" && foldPlain(name) != "" {
			t.Errorf("%q: got nothing, want it to be odd at least", name)
		}
		if again := foldWordPress(folded); folded != oddName && len(folded) <= longestName && again != folded {
			t.Errorf("%q: got %q, and %q of that", name, folded, again)
		}
	})
}
