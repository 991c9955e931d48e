package text

import "testing"

func TestEditsCountLettersAndSwaps(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"a", "", 1},
		{"leak", "leak", 0},
		{"leak", "lek", 1},
		{"leak", "leaks", 1},
		{"leak", "lean", 1},
		{"leak", "leka", 1},
		{"ca", "abc", 3},
		{"kitten", "sitting", 3},
	} {
		if got := edits(test.a, test.b); got != test.want {
			t.Errorf("edits(%q, %q): got %d, want %d", test.a, test.b, got, test.want)
		}
		if got := edits(test.b, test.a); got != test.want {
			t.Errorf("edits(%q, %q): got %d, want %d", test.b, test.a, got, test.want)
		}
	}
}
