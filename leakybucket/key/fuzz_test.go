package key

import (
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// FuzzAppendPart has two values at a time, so that it can find two that share
// a part.
func FuzzAppendPart(f *testing.F) {
	for _, pair := range [][2]string{
		{"203.0.113.7", "203.0.113.8"},
		{"a/b", "a%2Fb"},
		{"@client_ip", "%40client_ip"},
		{"@", "%40"},
		{"", "\x00"},
		{"\xff", "%FF"},
		{"\xc3\x28", "Ã("},
		{"é", "e\u0301"},
		{"\xed\xa0\x80", "\ufffd"},
		{"a\r\nb", "a\nb"},
		{"100%", "100%25"},
		{"..", "."},
		{strings.Repeat("x", 256), strings.Repeat("x", 257)},
		{strings.Repeat("/", 86), strings.Repeat("/", 87)},
		{strings.Repeat("\xff", 300), digestOf(strings.Repeat("\xff", 300))},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		partA, partB := string(AppendPart(nil, a)), string(AppendPart(nil, b))
		wantSoundPart(t, a, partA)
		wantSoundPart(t, b, partB)
		check.That(t, (a == b) == (partA == partB), "%q and %q: got parts %q and %q, want them alike only if the values are", a, b, partA, partB)
		got := string(AppendPart([]byte("zone/"), a))
		check.That(t, got == "zone/"+partA, "%q: got %q behind a zone, want %q", a, got, "zone/"+partA)
	})
}
