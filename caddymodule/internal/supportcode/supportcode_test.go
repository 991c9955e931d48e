package supportcode

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestACodeIsReadHoweverPeopleWriteIt(t *testing.T) {
	for _, test := range []struct {
		text string
		want string // "" if it is no code
	}{
		{"7K2M-Q8XD", "7K2M-Q8XD"},
		{"7k2m-q8xd", "7K2M-Q8XD"},
		{"7K2MQ8XD", "7K2M-Q8XD"},
		{" 7k2m q8xd ", "7K2M-Q8XD"},
		{"OIL0-0ooi", "0110-0001"},
		{"0000-0001", "0000-0001"},
		{"ZZZZ-ZZZZ", "ZZZZ-ZZZZ"},
		{"0000-0000", ""},
		{"7K2M-Q8X", ""},
		{"7K2M-Q8XDD", ""},
		{"7U2M-Q8XD", ""}, // U is no symbol
		{"203.0.113.7", ""},
		{"", ""},
		{"\x1b7K2MQ8XD", ""},
		{"７K2MQ8XD", ""},
	} {
		code, ok := Parse(test.text)
		if got := code.String(); ok != (test.want != "") || ok && got != test.want {
			t.Errorf("%q: got %q, %v, want %q", test.text, got, ok, test.want)
		}
	}
}

func TestARingRemembersTheLastTenThousandRefusals(t *testing.T) {
	r := new(Ring)
	_, found := r.Find(1)
	check.That(t, !found, "got a refusal from an empty ring, want none")
	looks := regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{4}-[0-9A-HJKMNP-TV-Z]{4}$`)
	codes := make([]Code, kept+100)
	for i := range codes { // a tenth of them in each share
		for network := uint16(0); ; network++ {
			client := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(network >> 8), byte(network), 7}), 32)
			if shareOf(client) == i%shares {
				codes[i] = r.Add(Refusal{Key: fmt.Sprint(i), Client: client})
				break
			}
		}
		check.Assume(t, looks.MatchString(codes[i].String()), "got the code %q, want two groups of four", codes[i])
	}
	for _, i := range []int{0, 99, 100, 5000, len(codes) - 1} {
		refusal, found := r.Find(codes[i])
		if want := i >= 100; found != want || found && refusal.Key != fmt.Sprint(i) {
			t.Errorf("refusal %d: got %+v, %v, want it remembered: %v", i, refusal, found, want)
		}
	}
}

func TestAFloodFromOneNetworkLeavesMostCodesOfOthers(t *testing.T) {
	r, visitors, known := new(Ring), make([]Code, 100), 0
	for i := range visitors {
		visitors[i] = r.Add(Refusal{Client: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i), 7}), 32)})
	}
	flood := netip.MustParsePrefix("2001:db8::/64")
	for range 20_000 {
		r.Add(Refusal{Client: flood})
	}
	for _, code := range visitors {
		if _, found := r.Find(code); found {
			known++
		}
	}
	check.That(t, known > 50, "got %d codes of a hundred visitors known, want about ninety", known)
	check.Equal(t, len(r.shares[shareOf(flood)]), kept/shares, "codes of the flood")
}

func TestARingKnowsTheLastOfAClient(t *testing.T) {
	r, at := new(Ring), time.Unix(0, 0)
	codes := make(map[Code]string)
	for i, line := range []string{
		"203.0.113.7/32 login a", "203.0.113.7/32 login a", "203.0.113.7/32 login b", "203.0.113.7/32 pages a",
		"203.0.113.8/32 login c", "2001:db8::/64 login d", "2001:db8:0:1::/64 login e", "- login f",
	} {
		f := strings.Fields(line)
		client, _ := netip.ParsePrefix(f[0])
		code := r.Add(Refusal{At: at.Add(time.Duration(i) * time.Second), Client: client, Zone: f[1], Key: f[2]})
		codes[code] = fmt.Sprint(i)
	}
	for network, want := range map[string]string{
		"203.0.113.7/32": "3 2 1", "203.0.113.0/24": "4 3 2 1", "203.0.113.9/32": "",
		"2001:db8::5:6/128": "5", "2001:db8::/32": "6 5", "::ffff:203.0.113.7/128": "",
	} {
		var got []string
		for _, one := range r.Of(netip.MustParsePrefix(network)) {
			got = append(got, codes[one.Code])
		}
		check.Equal(t, strings.Join(got, " "), want, "%s", network)
	}
}

func TestARingKeepsALongKeyInPart(t *testing.T) {
	r := new(Ring)
	for _, key := range []string{strings.Repeat("k", 1<<20), strings.Repeat("ж", 1<<10), strings.Repeat("x", 199) + "é"} {
		refusal, _ := r.Find(r.Add(Refusal{Key: key}))
		start, cut := strings.CutSuffix(refusal.Key, "…")
		n := len(start)
		check.That(t, cut && n <= longestKey && n >= longestKey-3 && utf8.ValidString(start), "got a key of %d bytes, want about %d of valid UTF-8", n, longestKey)
	}
}
