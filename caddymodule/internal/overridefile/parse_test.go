package overridefile

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/perkey"
)

func line(number int, limit, as string, parts ...string) Line {
	return Line{perkey.Override{Parts: parts, Limit: limit, As: as}, number}
}

func TestAFileHasTheWordsOfAnOverrideOnEachLine(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []Line
	}{
		{"a comment alone", "# nobody\n", nil},
		{"limits", "a 10 1/s\nb gold\nc unlimited\nd deny\n", []Line{line(1, "10 1/s", "", "a"), line(2, "gold", "", "b"), line(3, "unlimited", "", "c"), line(4, "deny", "", "d")}},
		{"several parts", "203.0.113.0/24 key 10 1/s", []Line{line(1, "10 1/s", "", "203.0.113.0/24", "key")}},
		{"shared buckets", "a 10 1/s as acme\nb gold as acme\n", []Line{line(1, "10 1/s", "acme", "a"), line(2, "gold", "acme", "b")}},
		{"the word as", "as gold\nx as gold\n", []Line{line(1, "gold", "", "as"), line(2, "gold", "", "x", "as")}},
		{"quotes and comments", "# first\n\n\"a key\" gold # why\n`b\"c` gold\n#d gold\ne#f gold", []Line{line(3, "gold", "", "a key"), line(4, "gold", "", `b"c`), line(6, "gold", "", "e#f")}},
		{"CRLF", "a gold\r\n# x\r\nb deny\r\n", []Line{line(1, "gold", "", "a"), line(3, "deny", "", "b")}},
		{"a byte order mark", "\ufeffa gold\n", []Line{line(1, "gold", "", "a")}},
		{"blanks and tabs", "  a\t\tgold  \n\t\n", []Line{line(1, "gold", "", "a")}},
		{"a quote in quotes", "\"a\\\"b\" gold\n", []Line{line(1, "gold", "", `a"b`)}},
		{"letters of all kinds", "schlüssel gold\n", []Line{line(1, "gold", "", "schlüssel")}},
	} {
		got, err := Parse("customers", []byte(test.text))
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %v, %v, want %v", test.name, got, err, test.want)
		}
	}
}

func TestAFileThatIsWrongSaysItsLine(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"no limit", "a gold\n\nb\n", "too few words: want " + Syntax + ", at customers:3"},
		{"no key", "10 1/s\n", "too few words: want " + Syntax + ", at customers:1"},
		{"no name", "a 10 1/s as\n", "as has no name: want " + Syntax + ", at customers:1"},
		{"nothing at all", "", "the file is empty, as if a write had failed: want at least a comment, such as # no overrides, at customers"},
		{"blanks alone", " \r\n\n", "the file is empty, as if a write had failed: want at least a comment, such as # no overrides, at customers"},
		{"an open quote", "a gold\n\"b gold\nc gold\n", "a quote is not closed: want another one on the same line, at customers:2"},
		{"a quote that a backslash takes away", "\"a\\\" gold", "a quote is not closed: want another one on the same line, at customers:1"},
		{"an empty word", "a \"\"\n", "nothing between quotes: want a word, at customers:1"},
		{"Latin-1", "a gold\nschl\xfcssel gold\n", "bytes that are no UTF-8: want UTF-8, or the part as sha256: and its digest, at customers:2"},
		{"UTF-16", "\xff\xfea\x00 \x00", "bytes that are no UTF-8: want UTF-8, or the part as sha256: and its digest, at customers:1"},
		{"too many", strings.Repeat("a gold\n", MostLines+1), fmt.Sprintf("more than %d overrides: want fewer, such as networks in place of addresses, at customers:%d", MostLines, MostLines+1)},
	} {
		if got, err := Parse("customers", []byte(test.text)); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, %v, want error %s", test.name, got, err, test.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"# a comment\na 10 1/s as acme\n\"b c\" gold\n", "a <<END\nb\nEND\n", "\ufeffa deny\r\n", "a \\\nb", "`", "sha256:00 deny", "{\n}\n", "a\x00b gold", "\xff", "as as as as",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		lines, err := Parse("customers", text)
		if err != nil {
			if lines != nil || !strings.Contains(err.Error(), "customers") {
				t.Fatalf("%q: got %v with error %v, want an error alone, which names the file", text, lines, err)
			}
			return
		}
		last, count := 0, 1+strings.Count(string(text), "\n")
		for _, l := range lines {
			if l.Number <= last || l.Number > count || len(l.Parts) == 0 || l.Limit == "" {
				t.Fatalf("%q: got %+v after line %d, want an override of a later line", text, l, last)
			}
			last = l.Number
			if _, err := perkey.NewTable(perkey.TableConfig{Overrides: []perkey.Override{l.Override}, Addresses: []bool{false}}); err != nil && err.Error() == "" {
				t.Fatalf("%q: got an error without a text", text)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000} {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "demo-key-%d 600 10/s\n", i)
		}
		b.Run(fmt.Sprintf("lines=%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Parse("customers", []byte(text.String())); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
