package command

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestWhatClientsWriteIsEscapedForPeople(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain", "\x1b[2J": `\x1b[2J`, "a\u202eb": `a\u202eb`, "\u2066": `\u2066`, "a\u200bb": `a\u200bb`, "\xff": `\xff`, "ö": "ö",
		"\x00\r\n\t": `\x00\r\n\t`, `a\b`: `a\\b`, "0123456789abc": "0123456789…", "\u009b31m": `\u009b31m`,
	} {
		check.Equal(t, Printable(text, 10), want, "%q", text)
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x1b[31m\u202e\xff", 10)
	f.Fuzz(func(t *testing.T, text string, most int) {
		got := Printable(text, most)
		for _, r := range got {
			if r < ' ' || r == 0x7f || r == utf8.RuneError && !strings.ContainsRune(text, utf8.RuneError) || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				t.Fatalf("got %q", got)
			}
		}
	})
}
