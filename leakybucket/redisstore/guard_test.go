package redisstore

import (
	"strings"
	"testing"
)

func TestFramesAreCountedHoweverTheyArrive(t *testing.T) {
	for text, want := range map[string]uint64{
		"":                                    0,
		"+OK\r\n":                             1,
		"+OK":                                 0,
		"-ERR\r\n:5\r\n,1.5\r\n(12\r\n":       4,
		"_\r\n#t\r\n":                         2,
		"$-1\r\n*-1\r\n":                      2,
		"$0\r\n\r\n$3\r\na\r\n\r\n":           2,
		"*0\r\n%0\r\n~0\r\n":                  3,
		"*2\r\n$1\r\na\r\n*1\r\n:1\r\n+x\r\n": 2,
		"%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n":      1,
		"=5\r\ntxt:a\r\n!3\r\nERR\r\n":        2,
		">2\r\n+a\r\n+b\r\n+OK\r\n":           1,
	} {
		for size := 1; size <= max(1, len(text)); size++ {
			var f frames
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				if err := f.feed([]byte(rest[:n])); err != nil {
					t.Fatalf("%q in parts of %d: %v", text, size, err)
				}
				rest = rest[n:]
			}
			if got := f.complete.Load(); got != want {
				t.Fatalf("%q in parts of %d: got %d messages, want %d", text, size, got, want)
			}
		}
	}
}

func TestFramesThatAreWrongAreErrors(t *testing.T) {
	for _, text := range []string{
		"\r\n", "x\r\n", "+OK\n", "$5\n", "$-5\r\n", "$-2\r\n", "$+5\r\n", "$\r\n", "$-\r\n", "*-2\r\n", "%-1\r\n", "~-1\r\n", "$5x\r\n", "$1\r2\r\n",
		"$99999999999\r\n", "*99999999\r\n", "*?\r\n", "$?\r\n", ";4\r\n", "|1\r\n", "*1\r\n>1\r\n", "_x\r\n", "#\r\n", "#tt\r\n",
		strings.Repeat("*1\r\n", deepest+1), "+" + strings.Repeat("x", longestLine+1),
	} {
		var f frames
		if err := f.feed([]byte(text)); err == nil {
			t.Errorf("%.40q: got no error", text)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("*2\r\n$1\r\na\r\n:1\r\n"), 3)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		var whole, parts frames
		errWhole := whole.feed(text)
		cut = max(0, min(cut, len(text)))
		errParts := parts.feed(text[:cut])
		if errParts == nil {
			errParts = parts.feed(text[cut:])
		}
		if (errWhole == nil) != (errParts == nil) || whole.complete.Load() != parts.complete.Load() {
			t.Errorf("%q cut at %d: got %d, %v, want as in one part: %d, %v", text, cut, parts.complete.Load(), errParts, whole.complete.Load(), errWhole)
		}
	})
}
