package fold

import (
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-throttle/caddy-throttle/internal/peertest"
	"github.com/caddy-throttle/caddy-throttle/internal/testseed"
)

func TestWordPressTakesTheseNamesForOne(t *testing.T) {
	for _, spelling := range []string{
		"admin", "Admin", "ADMIN", " admin ", "\tadmin\n", "admin\u00a0", "\u3000admin",
		"admin&x1;", "&amp;admin", "ad&#x41;min", "&&x;admin&a b;",
		"<b>admin</b>", "<b>admin", "admin<i", "ad<!-- x > -->min", "<script>x</script>admin", "admin<STYLE a>b</style>", "ad<a title='>'>min",
		"%41admin", "ad%4dmin", "%%4141admin", "admin%00", "<%3cb>admin", "ad&%41x;min",
		"ádmin", "àdmín", "adm\u0131n", "ADM\u0130N", "a\u0301dmin", "ad\u00admin", "ad\u200bmin", "ad\u200dmin", "ad\ufeffmin", "admin\ufe0f",
		"ａｄｍｉｎ", "ⓐdmin", "𝐚𝐝𝐦𝐢𝐧", "ªdmin", "adm\x01in", "adm\x00in", "\x7fadmin", "ad£min",
		"\xe1dmin", "adm\xedn", "\xc4dmin", "<b>ádmin</b>", "admiń<x",
	} {
		if got, sure := WordPress(spelling); got != "admin" || !sure {
			t.Errorf("%q: got %q, %v, want admin", spelling, got, sure)
		}
	}
}

func TestWordPressTellsTheseNamesApart(t *testing.T) {
	seen := make(map[string]string)
	for _, name := range []string{
		"admin", "admin2", "a dmin", "admin-", "admin.", "admin_", "admin@example.com", "administrator",
		"иван", "мария", "山田", "佐藤", "محمد", "a<b>", "1 < 2", "&", "a&b", "100%", "a%zz", ";", "x;", "🦊", "🐻",
	} {
		folded, sure := WordPress(name)
		if other, taken := seen[folded]; taken || folded == "" || !sure {
			t.Errorf("%q: got %q, %v, as for %q", name, folded, sure, other)
		}
		seen[folded] = name
	}
}

func TestNamesInOtherScriptsAreFoldedByCaseAndAccents(t *testing.T) {
	for name, want := range map[string]string{"ИВАН": "иван", "Иван": "иван", "ΝΊΚΟΣ": "νικοσ", "νίκος": "νικοσ", "Ёлка": "елка", "山田": "山田", "Ꮐ": "ꮐ"} {
		if got, sure := WordPress(name); got != want || !sure {
			t.Errorf("%q: got %q, %v, want %q", name, got, sure, want)
		}
	}
}

func TestANameOfWhichNothingIsLeftStaysAsItIs(t *testing.T) {
	for name, want := range map[string]string{
		"": "", " \t": "", "\x00": "", "<b></b>": "<b></b>", " <B>": "<b>", "<b": "<b", "%41": "%41", "&x;": "&x;", "&Y;": "&y;", "\u200b": "\u200b", "\x01": "\x01", "£": "£",
	} {
		if got, sure := WordPress(name); got != want || !sure {
			t.Errorf("%q: got %q, %v, want %q", name, got, sure, want)
		}
	}
}

func TestGermanAndDanishSitesAreFoldedAlike(t *testing.T) {
	for _, names := range [][]string{
		{"jörg", "joerg", "jorg", "JÖRG", "jo\u0308rg"},
		{"weiß", "weiss", "weis", "WEIẞ", "WEISS"},
		{"ægir", "aegir", "agir", "Ægir"},
		{"åse", "aase", "ase"},
		{"đorđe", "djordje", "dorde"},
		{"müller", "mueller", "muller"},
		{"col·lega", "collega"},
		{"aäe", "aaee"},
	} {
		for _, name := range names {
			want, _ := WordPress(names[0])
			if got, sure := WordPress(name); got != want || !sure {
				t.Errorf("%q: got %q, %v, want %q as for %q", name, got, sure, want, names[0])
			}
		}
	}
}

func TestNamesThatVersionsOfWordPressReadDifferentlyAreNotSure(t *testing.T) {
	for _, name := range []string{"admin%4á", "á&x;", "&%4①;admin", "%é", "<b>&á", "admin< £", strings.Repeat("a", 1025)} {
		if got, sure := WordPress(name); sure {
			t.Errorf("%q: got %q for sure", name, got)
		}
	}
}

// odd returns a text of pieces that mean something to WordPress.
func odd(rng *rand.Rand) string {
	pieces := []string{
		"<", ">", "</", "<b>", "<!--", "-->", "<!", "<?", "?>", "<?xml", "<!doctype", "<!DOCTYPE", "\"", "'", "\\", "(", ")", "-", "--", "!", "?",
		"<script>", "</script>", "<style a", "</STYLE>", " ", "\t", "\n", "\v", "\f", "\x00", "\x85", "\xa0", "%", "%4", "%41", "%4F", "41", "&", ";", "&x;", "&;", "x", "l", "e", "a", "E", "admin",
	}
	var text strings.Builder
	for range 1 + rng.IntN(12) {
		text.WriteString(pieces[rng.IntN(len(pieces))])
	}
	return text.String()
}

// realPHP returns what strip_tags and WordPress make of a text.
func realPHP(t *testing.T) func(string) (stripped, name string) {
	t.Helper()
	php := peertest.PHP(t, "testdata/wordpress.php")
	return func(text string) (stripped, name string) {
		t.Helper()
		answer := php.Ask(t, base64.StdEncoding.EncodeToString([]byte(text)))
		first, second, _ := strings.Cut(answer, " ")
		raw, err1 := base64.StdEncoding.DecodeString(first)
		raw2, err2 := base64.StdEncoding.DecodeString(second)
		if err1 != nil || err2 != nil {
			t.Fatalf("%q: got %q", text, answer)
		}
		return string(raw), string(raw2)
	}
}

func TestTagsAreStrippedAsPHPDoes(t *testing.T) {
	php := realPHP(t)
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 50_000 {
		text := odd(rng)
		if want, _ := php(text); stripTags(text) != want {
			t.Fatalf("seed %d: %q: got %q, want %q", seed, text, stripTags(text), want)
		}
	}
}

// Two names that WordPress looks up as one must fold to one.
func TestNamesThatWordPressTakesForOneFoldToOne(t *testing.T) {
	php := realPHP(t)
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	accents := []string{"á", "Á", "ï", "ö", "ß", "Æ", "ł", "€", "£"}
	for range 50_000 {
		text := odd(rng)
		if rng.IntN(4) == 0 {
			text += accents[rng.IntN(len(accents))] + odd(rng)
		}
		_, name := php(text)
		got, sure := WordPress(text)
		want := baseLetters(name)
		if want == "" {
			want, _ = Plain(text)
		}
		if sure && utf8.ValidString(name) && got != want {
			t.Fatalf("seed %d: %q is %q to WordPress: got %q, want %q", seed, text, name, got, want)
		}
	}
}

// The collation compares base letters. What it takes for a Latin letter or a digit must
// fold to that, and what it ignores to nothing.
func TestLettersFoldAsACollationByBaseLettersSays(t *testing.T) {
	w := newWeigher()
	letters := map[string]string{w.weigh(""): ""}
	for _, a := range "abcdefghijklmnopqrstuvwxyz0123456789_.-@" {
		letters[w.weigh(string(a))] = string(a)
		for _, b := range "abcdefghijklmnopqrstuvwxyz0123456789" {
			letters[w.weigh(string([]rune{a, b}))] = string([]rune{a, b})
		}
	}
	checked := 0
	for r := rune(utf8.RuneSelf); r <= unicode.MaxRune; r++ {
		want, known := letters[w.weigh(string(r))]
		if !known || !utf8.ValidRune(r) || unicode.Is(unicode.Co, r) {
			continue
		}
		checked++
		if got := baseLetters(string(r)); got != baseLetters(want) {
			t.Errorf("%U %c: got %q, want %q", r, r, got, baseLetters(want))
		}
	}
	if checked < 3000 {
		t.Errorf("got only %d letters that are Latin ones or ignored", checked)
	}
}

func TestNamesMayBeFoldedConcurrently(t *testing.T) {
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for _, name := range []string{"ádmin", "ａｄｍｉｎ", "<b>admiñ", "\xe1dmin"} {
				if got, sure := WordPress(name); got != "admin" || !sure {
					t.Errorf("%q: got %q, %v, want admin", name, got, sure)
				}
			}
		})
	}
	wait.Wait()
}

func FuzzWordPress(f *testing.F) {
	for _, name := range []string{"admin", " Ádmin&x1;", "<b>", "%%4141", "\xe1", "&;", "<?xml", "<!--", "ﷺ", "\u0345"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		folded, sure := WordPress(name)
		if plain, _ := Plain(name); folded == "" && plain != "" {
			t.Errorf("%q: got nothing, want its own text at least", name)
		}
		if again := baseLetters(baseLetters(name)); again != baseLetters(name) {
			t.Errorf("%q: got %q, and %q of that", name, baseLetters(name), again)
		}
		upper, stillSure := WordPress(strings.Map(func(r rune) rune {
			if 'a' <= r && r <= 'z' {
				r -= 'a' - 'A'
			}
			return r
		}, name))
		if utf8.ValidString(name) && (upper != folded || sure != stillSure) {
			t.Errorf("%q: got %q, %v, and %q, %v in upper case", name, folded, sure, upper, stillSure)
		}
	})
}

func BenchmarkWordPress(b *testing.B) {
	for name, text := range map[string]string{
		"plain": "Admin", "accents": "ádmin", "tags": "<b>admin&x1;", "long": strings.Repeat("ﷺ", longestName/3), "longtags": strings.Repeat("<script", longestName/7),
	} {
		b.Run("name="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				WordPress(text)
			}
		})
	}
}
