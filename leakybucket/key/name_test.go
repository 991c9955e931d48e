package key

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

func digestOf(value string) string {
	sum := sha256.Sum256([]byte(value))
	return "@sha256:" + hex.EncodeToString(sum[:])
}

func TestPartsStayReadableWhereTheyCan(t *testing.T) {
	long := strings.Repeat("x", 256)
	for value, want := range map[string]string{
		"":                         "",
		"203.0.113.7":              "203.0.113.7",
		"alice@example.com":        "alice@example.com",
		"Grüße, 日本 \u2028!":        "Grüße, 日本 \u2028!",
		"a b":                      "a b",
		"/wp-login.php":            "%2Fwp-login.php",
		"2001:db8::/64":            "2001:db8::%2F64",
		"100%":                     "100%25",
		"%2F":                      "%252F",
		"@":                        "%40",
		"@client_ip":               "%40client_ip",
		"@@":                       "%40@",
		"@sha256:00":               "%40sha256:00",
		"..":                       "..",
		"\x00":                     "%00",
		"a\r\nb\tc":                "a%0D%0Ab%09c",
		"\x1b[2J":                  "%1B[2J",
		"\x7f":                     "%7F",
		"\xff":                     "%FF",
		"a\xc3":                    "a%C3",         // cut off
		"\xc3\x28":                 "%C3(",         // not continued
		"\xed\xa0\x80":             "%ED%A0%80",    // a surrogate
		"\xc0\xaf":                 "%C0%AF",       // an overlong slash
		"\xf4\x90\x80\x80":         "%F4%90%80%80", // beyond Unicode
		"\ufffd":                   "\ufffd",       // a real one
		long:                       long,
		long + "x":                 digestOf(long + "x"),
		long[:255] + "é":           digestOf(long[:255] + "é"),
		long[:254] + "é":           long[:254] + "é",
		long[:253] + "/":           long[:253] + "%2F",
		long[:254] + "/":           digestOf(long[:254] + "/"),
		"@" + long[:253]:           "%40" + long[:253],
		"@" + long[:254]:           digestOf("@" + long[:254]),
		strings.Repeat("/", 85):    strings.Repeat("%2F", 85),
		strings.Repeat("/", 86):    digestOf(strings.Repeat("/", 86)),
		strings.Repeat("x", 1<<20): digestOf(strings.Repeat("x", 1<<20)),
	} {
		check.Equal(t, string(AppendPart([]byte("zone/"), value)), "zone/"+want, "%.40q", value)
	}
}

func TestADigestIsOfTheWholeValue(t *testing.T) {
	for _, value := range []string{"", "secret", "@", strings.Repeat("x", 10_000)} {
		check.Equal(t, string(DigestOf(value).Append([]byte("zone/"))), "zone/"+digestOf(value), "%.40q", value)
	}
}

// wantSoundPart checks what every part must be, whoever wrote the value.
func wantSoundPart(t *testing.T, value, part string) {
	t.Helper()
	check.That(t, len(part) <= longestPart, "%.40q: got a part of %d bytes, want at most %d", value, len(part), longestPart)
	if strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r == '/' || r == 0x7f }) || !utf8.ValidString(part) {
		t.Errorf("%.40q: got %q, want no slash, no control byte and valid UTF-8", value, part)
	}
	if strings.HasPrefix(part, "@") && part != digestOf(value) {
		t.Errorf("%.40q: got %q, want no leading @ but of its digest", value, part)
	}
	if !strings.HasPrefix(part, "@") && unescaped(part) != value {
		t.Errorf("%.40q: got %q, which reads as %q, want it to read as the value", value, part, unescaped(part))
	}
}

// unescaped undoes the percent-encoding. It can be undone, so no two
// values share a part.
func unescaped(part string) string {
	var value []byte
	for i := 0; i < len(part); i++ {
		if part[i] != '%' {
			value = append(value, part[i])
			continue
		}
		decoded, err := hex.DecodeString(part[i+1 : i+3])
		if err != nil {
			return "not percent-encoded: " + part
		}
		value = append(value, decoded...)
		i += 2
	}
	return string(value)
}

// Values are made of what has a meaning somewhere, so that many are alike.
func TestDistinctValuesHaveDistinctParts(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{
		"", "a", "@", "/", "%", "%2F", "%40", "2", "F", "\x00", "\x7f", "\xff", "\xc3", "\xa9", "é", "sha256:",
		strings.Repeat("x", 64), strings.Repeat("/", 64),
	}
	values := make(map[string]string)
	for range 200_000 {
		var value string
		for range rng.IntN(7) {
			value += pieces[rng.IntN(len(pieces))]
		}
		part := string(AppendPart(nil, value))
		wantSoundPart(t, value, part)
		if other, taken := values[part]; taken && other != value {
			t.Fatalf("got %q for %q and for %q, want two parts", part, value, other)
		}
		values[part] = value
	}
	check.That(t, len(values) >= 50_000, "distinct parts: got %d, want 50000 or more", len(values))
}

func TestPartsAreAppendedWithoutTouchingWhatStandsBefore(t *testing.T) {
	for _, value := range []string{"a", "\xff", strings.Repeat("x", 300)} {
		name := append(make([]byte, 0, 1024), "zone/@client_ip/"...)
		got := AppendPart(name, value)
		check.That(t, bytes.HasPrefix(got, []byte("zone/@client_ip/")) && &got[0] == &name[0], "%.40q: got %q, want it appended in place", value, got)
	}
}

func TestClientsAreToldApartByPrefix(t *testing.T) {
	for _, test := range []struct {
		addr       string
		ipv4, ipv6 int
		want       string
	}{
		{"203.0.113.7", 32, 64, "203.0.113.7/32"},
		{"203.0.113.7", 24, 64, "203.0.113.0/24"},
		{"203.0.113.7", 0, 64, "0.0.0.0/0"},
		{"::ffff:203.0.113.7", 32, 64, "203.0.113.7/32"},
		{"::ffff:cb00:7107", 24, 64, "203.0.113.0/24"},
		{"::ffff:203.0.113.7%eth0", 32, 64, "203.0.113.7/32"},
		{"2001:db8:1:2:3:4:5:6", 32, 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:2:3:4:5:6", 32, 48, "2001:db8:1::/48"},
		{"2001:db8:1:2:3:4:5:6", 32, 128, "2001:db8:1:2:3:4:5:6/128"},
		{"2001:db8:1:2:3:4:5:6", 32, 0, "::/0"},
		{"fe80::1%eth0", 32, 64, "fe80::/64"},
		{"fe80::1%eth0", 32, 128, "fe80::1/128"},
		{"::1", 32, 64, "::/64"},
		{"::203.0.113.7", 32, 128, "::cb00:7107/128"},      // compatible is not mapped
		{"64:ff9b::203.0.113.7", 32, 64, "203.0.113.7/32"}, // NAT64
		{"64:ff9b::cb00:7107%eth0", 24, 64, "203.0.113.0/24"},
		{"::ffff:0:203.0.113.7", 32, 64, "203.0.113.7/32"}, // SIIT
		{"64:ff9b::1:203.0.113.7", 32, 128, "64:ff9b::1:cb00:7107/128"},
		{"64:ff9b:1::203.0.113.7", 32, 128, "64:ff9b:1::cb00:7107/128"}, // of an operator's own layout
	} {
		addr := netip.MustParseAddr(test.addr)
		check.Equal(t, ClientPrefix(addr, test.ipv4, test.ipv6).String(), test.want, "%s of /%d and /%d", test.addr, test.ipv4, test.ipv6)
	}
	got := ClientPrefix(netip.Addr{}, 32, 64)
	check.That(t, !got.IsValid(), "no address: got %v, want no prefix", got)
}

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
