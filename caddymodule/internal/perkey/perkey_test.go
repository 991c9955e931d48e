package perkey

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	bucketkey "github.com/caddy-throttle/caddy-throttle/leakybucket/key"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func limitOf(capacity, leak float64) leakybucket.Limit {
	return leakybucket.Limit{Capacity: capacity, Leak: leak}
}

// override reads "<part>... -> <limit>", with "=> <name>" behind it for a shared bucket.
func override(line string) Override {
	parts, limit, _ := strings.Cut(line, "->")
	limit, name, _ := strings.Cut(limit, "=>")
	return Override{Parts: strings.Fields(parts), Limit: strings.TrimSpace(limit), As: strings.TrimSpace(name)}
}

// tableOf returns what a table is made of for a key whose parts are told by
// letters: a for an address, t for a text.
func tableOf(key string, lines ...string) TableConfig {
	config := TableConfig{
		Own:      limitOf(1, 1),
		Plans:    map[string]leakybucket.Limit{"gold": limitOf(100, 10), "10": limitOf(7, 7)},
		IPv4Bits: 32,
		IPv6Bits: 64,
	}
	for _, kind := range key {
		config.Addresses = append(config.Addresses, kind == 'a')
	}
	for _, line := range lines {
		config.Overrides = append(config.Overrides, override(line))
	}
	return config
}

// keyOf returns a key as the parts of it are seen by overrides.
func keyOf(key string, words ...string) []Part {
	parts := make([]Part, len(words))
	for i, word := range words {
		if key[i] == 'a' {
			parts[i].Network = bucketkey.ClientPrefix(netip.MustParseAddr(word), 32, 64)
		} else {
			parts[i].Digest = bucketkey.DigestOf(word)
		}
	}
	return parts
}

// lookup is a key, and what holds for it: "own", a capacity, "unlimited" or
// "deny".
type lookup struct{ key, want string }

func runLookups(t *testing.T, key string, lines []string, lookups []lookup) {
	t.Helper()
	table, err := NewTable(tableOf(key, lines...))
	check.OK(t, err, "table of %q", lines)
	for _, l := range lookups {
		got := table.Lookup(keyOf(key, strings.Fields(l.key)...))
		rule, limit := got.Rule, got.Limit
		wantRule, wantLimit := Limited, limitOf(1, 1)
		switch l.want {
		case "own":
		case "unlimited":
			wantRule, wantLimit = Unlimited, leakybucket.Limit{}
		case "deny":
			wantRule, wantLimit = Denied, leakybucket.Limit{}
		default:
			wantLimit, err = leakybucket.ParseLimit(l.want)
			check.OK(t, err, "%q", l.want)
		}
		check.That(t, rule == wantRule && limit == wantLimit, "key %q: got rule %v with %v, want %s", l.key, rule, limit, l.want)
	}
}

func TestATableWithoutOverridesAnswersTheOwnLimit(t *testing.T) {
	runLookups(t, "at", nil, []lookup{{"203.0.113.7 login", "own"}})
	table, _ := NewTable(tableOf("at"))
	check.That(t, table.Empty(), "table without overrides: got not plain, want plain")
	table, _ = NewTable(tableOf("at", "203.0.113.7 -> gold"))
	check.That(t, !table.Empty(), "table with an override: got plain, want not")
}

func TestAnOverrideGivesALimitAPlanOrARule(t *testing.T) {
	runLookups(t, "t", []string{
		"a -> 5 2/s",
		"b -> 5, 120/m",
		"c -> gold",
		"d -> unlimited",
		"e -> deny",
		"f -> 10", // the name of a plan
	}, []lookup{
		{"a", "5 2/s"},
		{"b", "5 2/s"},
		{"c", "100 10/s"},
		{"d", "unlimited"},
		{"e", "deny"},
		{"f", "7 7/s"},
		{"g", "own"},
		{"A", "own"},
		{"aa", "own"},
	})
}

func TestTheMostLeadingPartsDecide(t *testing.T) {
	runLookups(t, "ttt", []string{
		"a -> 10 1/s",
		"a b -> 20 1/s",
		"a b c -> 30 1/s",
		"b c -> 40 1/s",
		"d e f -> 50 1/s",
	}, []lookup{
		{"a b c", "30 1/s"},
		{"a b x", "20 1/s"},
		{"a x c", "10 1/s"},
		{"x b c", "own"}, // the parts lead
		{"b c x", "40 1/s"},
		{"d e f", "50 1/s"},
		{"d e x", "own"},
		{"c b a", "own"},
	})
}

func TestTheNarrowestNetworkDecides(t *testing.T) {
	runLookups(t, "a", []string{
		"0.0.0.0/0 -> 10 1/s",
		"203.0.113.0/24 -> 24 1/s",
		"203.0.0.0/16 -> 16 1/s",
		"203.0.113.7 -> 32 1/s",
		"::/0 -> 60 1/s",
		"2001:db8::/32 -> 632 1/s",
		"2001:db8:1::/48 -> 648 1/s",
		"2001:db8:1:2::/64 -> 664 1/s",
		"::ffff:192.0.2.1 -> deny", // an address may be written so
	}, []lookup{
		{"203.0.113.7", "32 1/s"},
		{"::ffff:203.0.113.7", "32 1/s"},
		{"203.0.113.8", "24 1/s"},
		{"203.0.114.7", "16 1/s"},
		{"203.1.113.7", "10 1/s"},
		{"192.0.2.1", "deny"},
		{"2001:db8:1:2:3:4:5:6", "664 1/s"},
		{"2001:db8:1:3::", "648 1/s"},
		{"2001:db8:2::1", "632 1/s"},
		{"2001:db9::1", "60 1/s"},
		{"::203.0.113.7", "60 1/s"},
	})
}

// A client masked to a /64 may lie inside a wider network, never in a narrower
// one. A network as wide as what is kept is exact.
func TestAWiderPrefixStillFindsItsNetworks(t *testing.T) {
	config := tableOf("a", "203.0.113.0/24 -> deny", "203.0.0.0/16 -> unlimited", "2001:db8::/48 -> deny")
	config.IPv4Bits, config.IPv6Bits = 24, 48
	table, err := NewTable(config)
	check.OK(t, err, "new table")
	for network, want := range map[string]Rule{
		"203.0.113.0/24": Denied, "203.0.1.0/24": Unlimited, "203.0.0.0/8": Limited, "2001:db8::/48": Denied, "2001:db8:1::/48": Limited,
	} {
		check.Equal(t, table.Lookup([]Part{{Network: netip.MustParsePrefix(network)}}).Rule, want, "client %s: rule", network)
	}
}

// An address that stands where a text is expected, or the other way round,
// names nothing.
func TestATextIsNoAddress(t *testing.T) {
	table, err := NewTable(tableOf("at", "203.0.113.7 -> gold", "0.0.0.0/0 203.0.113.7 -> deny"))
	check.OK(t, err, "new table")
	text, network := Part{Digest: bucketkey.DigestOf("203.0.113.7")}, Part{Network: netip.MustParsePrefix("203.0.113.7/32")}
	for _, test := range []struct {
		key  []Part
		want Rule
	}{
		{[]Part{text, text}, Limited}, // a missing address falls to share
		{[]Part{network, network}, Limited},
		{[]Part{network, text}, Denied},
		{[]Part{network}, Limited},
		{[]Part{{}, {}}, Limited},
		{nil, Limited},
	} {
		check.Equal(t, table.Lookup(test.key).Rule, test.want, "key %v: rule", test.key)
	}
}

func TestATableTellsAllItsLimits(t *testing.T) {
	table, err := NewTable(tableOf("at", "0.0.0.0/0 -> deny", "0.0.0.0/0 a -> gold", "::/0 -> 5 1/s", "::/0 b -> unlimited"))
	check.OK(t, err, "new table")
	got := table.Limits()
	check.That(t, len(got) == 3 && got[0] == limitOf(1, 1) && got[1] != got[2], "limits: got %v, want the own one and two more", got)
	for _, l := range got[1:] {
		if l != limitOf(100, 10) && l != limitOf(5, 1) {
			t.Errorf("limits: got %v, want one of the overrides'", l)
		}
	}
}

// Whoever has the digest of a secret can give it a limit.
func TestAnOverrideMayGiveTheDigestOfAPart(t *testing.T) {
	foo := "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	runLookups(t, "t", []string{foo + " -> 5 1/s", "bar -> 6 1/s"}, []lookup{
		{"foo", "5 1/s"}, {"bar", "6 1/s"}, {"baz", "own"}, {foo, "own"},
	})
	runLookups(t, "tt", []string{"a sha256:" + strings.ToUpper(foo[7:]) + " -> 5 1/s", "a b -> 6 1/s", "c -> 7 1/s"}, []lookup{
		{"a foo", "5 1/s"}, {"a b", "6 1/s"}, {"c foo", "7 1/s"}, {"foo a", "own"},
	})
	config := tableOf("t", foo+" -> 5 1/s", "bar -> 6 1/s")
	table := check.Must(NewTable(config))(t)
	for word, want := range map[string]float64{"foo": 5, "bar": 6, "baz": 1} {
		got := table.Lookup([]Part{{Digest: bucketkey.DigestOf(word)}})
		check.That(t, got.Limit.Capacity == want, "digest of %s: got %v, want a capacity of %v", word, got, want)
	}
}

func TestKeysOfOneNameShareABucket(t *testing.T) {
	table := check.Must(NewTable(tableOf("at", "203.0.113.0/24 -> gold => acme", "198.51.100.7 x -> 100 10/s => acme", "192.0.2.1 -> 5 1/s => other", "192.0.2.2 -> 5 1/s")))(t)
	for _, test := range []struct{ client, word, want string }{
		{"203.0.113.1", "a", "@as/acme"},
		{"203.0.113.2", "b", "@as/acme"},
		{"198.51.100.7", "x", "@as/acme"},
		{"198.51.100.7", "y", ""},
		{"192.0.2.1", "x", "@as/other"},
		{"192.0.2.2", "x", ""},
	} {
		check.Equal(t, table.Lookup(keyOf("at", test.client, test.word)).Bucket, test.want, "%s %s: the bucket", test.client, test.word)
	}
	e := table.Named("@as/acme")
	check.That(t, e.Limit == limitOf(100, 10) && e.Override == 0, "got %v, want the limit of gold from the first override", e)
	e = table.Named("@as/nobody")
	check.That(t, !e.Listed(), "got a bucket that nobody shares, want none")
}

func TestKeysThatShareABucketNeedTheSameLimit(t *testing.T) {
	_, err := NewTable(tableOf("t", "x -> 1 1/s", "a -> gold => acme", "b -> 5 1/s => acme"))
	check.Error(t, err, "override b: as acme has another limit elsewhere: keys that share a bucket need the same limit", "two limits")
	wrong, is := errors.AsType[*option.Error](err)
	check.That(t, is && wrong.At == 2, "got %+v, want it about the third override", wrong)
}

func TestOverridesThatAreWrong(t *testing.T) {
	for _, test := range []struct {
		key, line, want string
	}{
		{"t", "-> gold", "override : no key given: want <part>... <limit>"},
		{"t", "a b -> gold", "override a b: 2 parts of a key given before the limit \"gold\", and the key has 1: want <part>... <plan>|<capacity> <leak>|unlimited|deny, such as 100 10/s at the end"},
		{"t", "first -> gold", "override first: given twice"},
		{"t", "a -> silver", `override a: unknown plan "silver": want one of the plans, <capacity> <leak>, unlimited or deny`},
		{"t", "a ->", `override a: unknown plan "": want one of the plans, <capacity> <leak>, unlimited or deny`},
		{"t", "a -> Unlimited", `override a: unknown plan "Unlimited": want one of the plans, <capacity> <leak>, unlimited or deny`},
		{"t", "a -> 10 ten", `override a: invalid rate "ten": want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s`},
		{"t", "a -> 0 1/s", `override a: invalid capacity "0": nothing would fit: want a number above 0, such as 10`},
		{"t", "a -> 10 1/s 5", `override a: invalid limit "10 1/s 5": want <capacity> <leak>, such as 10 1/s`},
		{"t", "a -> 1000000 1/d", "override a: " + tooSlow},
		{"a", "203.0.113 -> gold", `override 203.0.113: invalid address "203.0.113": want an IP address or a network such as 203.0.113.0/24`},
		{"a", "alice -> gold", `override alice: invalid address "alice": want an IP address or a network such as 203.0.113.0/24`},
		{"a", "203.0.113.0/33 -> gold", `override 203.0.113.0/33: invalid address "203.0.113.0/33": want an IP address or a network such as 203.0.113.0/24`},
		{"a", "203.0.113.0/ -> gold", `override 203.0.113.0/: invalid address "203.0.113.0/": want an IP address or a network such as 203.0.113.0/24`},
		{"a", "203.0.113.007 -> gold", `override 203.0.113.007: invalid address "203.0.113.007": want an IP address or a network such as 203.0.113.0/24`},
		{"a", "fe80::1%eth0 -> gold", `override fe80::1%eth0: invalid address "fe80::1%eth0": want an IP address or a network such as 203.0.113.0/24`},
		{"a", "203.0.113.7/24 -> gold", `override 203.0.113.7/24: invalid network "203.0.113.7/24": did you mean 203.0.113.0/24?`},
		{"a", "2001:db8::1/48 -> gold", `override 2001:db8::1/48: invalid network "2001:db8::1/48": did you mean 2001:db8::/48?`},
		{"a", "::ffff:203.0.113.0/120 -> gold", `override ::ffff:203.0.113.0/120: invalid network "::ffff:203.0.113.0/120": write IPv4 networks as IPv4`},
		{"a", "2001:db8::/65 -> gold", `override 2001:db8::/65: network "2001:db8::/65" is narrower than the /64 that clients are told apart by: did you mean 2001:db8::/64?`},
		{"a", "2001:db8::1 -> gold", `override 2001:db8::1: network "2001:db8::1" is narrower than the /64 that clients are told apart by: did you mean 2001:db8::/64?`},
		{"a", "192.0.2.1 -> gold", "override 192.0.2.1: given twice"},
		{"a", "192.0.2.1/32 -> gold", "override 192.0.2.1/32: given twice"},
		{"a", "64:ff9b::203.0.113.0/120 -> gold", `override 64:ff9b::203.0.113.0/120: invalid network "64:ff9b::203.0.113.0/120": write IPv4 networks as IPv4`},
		{"a", "64:ff9b::192.0.2.1 -> gold", "override 64:ff9b::192.0.2.1: given twice"},
		{"a", "::ffff:192.0.2.1 -> gold", "override ::ffff:192.0.2.1: given twice"},
		{"t", "sha256:2c26 -> gold", `override sha256:2c26: invalid digest "sha256:2c26": want sha256: and 64 hexadecimal digits, as of printf %s <value> | sha256sum`},
		{"t", "sha256:a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e -> deny", "override sha256:a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e: given twice"}, // of first
		{"a", "sha256:2c26 -> gold", `override sha256:2c26: invalid address "sha256:2c26": want an IP address or a network such as 203.0.113.0/24`},
		{"t", "a -> gold => b/c", `override a: invalid bucket name "b/c": want letters, digits, _, . and -, such as pages`},
		{"t", "a -> deny => b", `override a: as b has no meaning after deny: want a plan, or <capacity> <leak>, which the keys of that name share`},
		{"", "a -> gold", "override a: 1 parts of a key given before the limit \"gold\", and the key has 0: want <part>... <plan>|<capacity> <leak>|unlimited|deny, such as 100 10/s at the end"},
	} {
		lines := []string{test.line}
		if test.key != "" {
			lines = append([]string{map[string]string{"t": "first -> gold", "a": "192.0.2.1 -> gold"}[test.key]}, lines...)
		}
		table, err := NewTable(tableOf(test.key, lines...))
		check.That(t, table == nil, "%s: got a table with the error, want none", test.line)
		check.Error(t, err, test.want, "%s", test.line)
	}
	config := tableOf("a", "203.0.113.7 -> gold")
	config.IPv4Bits = 24
	_, err := NewTable(config)
	check.Error(t, err, `override 203.0.113.7: network "203.0.113.7" is narrower than the /24 that clients are told apart by: did you mean 203.0.113.0/24?`, "203.0.113.7 of /24")
}

const tooSlow = "invalid limit: a full bucket must drain within 20 years"

// FuzzTable makes a table of two overrides for a key of an address and a text,
// and asks it for a client and for what the first override names.
func FuzzTable(f *testing.F) {
	for _, seed := range [][5]string{
		{"203.0.113.7", "login", "10 1/s", "203.0.113.0/24", "203.0.113.7"},
		{"203.0.113.0/24", "login", "gold", "0.0.0.0/0", "::ffff:203.0.113.7"},
		{"2001:db8::/64", "", "unlimited", "::/0", "2001:db8::1%eth0"},
		{"::ffff:203.0.113.7", "a b", "deny", "203.0.113.7/32", "203.0.113.7"},
		{"203.0.113.7/24", "\xff", "10,1/s", "fe80::1%eth0", "fe80::1"},
		{"2001:db8::1", "/", "silver", "::ffff:0.0.0.0/96", "::"},
		{"0.0.0.0/33", "login", "1000000 1/d", "", "0.0.0.0"},
		{"203.0.113.7", "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae", "5 1/s", "::/0", "203.0.113.7"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, network, text, limit, wide, client string) {
		config := tableOf("at")
		config.Overrides = []Override{{Parts: []string{network, text}, Limit: limit}, {Parts: []string{wide}, Limit: "5 1/s"}}
		table, err := NewTable(config)
		check.Assume(t, (table == nil) != (err == nil), "%q: got table %v and error %v, want one of both", config.Overrides, table, err)
		if err != nil {
			return
		}
		for _, l := range table.Limits() {
			check.NoError(t, l.Validate(), "%q: the limit", config.Overrides)
		}
		// A key that the override names must find it.
		named, err := netip.ParsePrefix(network)
		if err != nil {
			addr := netip.MustParseAddr(network)
			named = netip.PrefixFrom(addr, addr.BitLen())
		}
		want, err := config.parseEntry(limit)
		check.Assume(t, err == nil, "limit %q: got it into a table, want error %v", limit, err)
		parts := []Part{{Network: bucketkey.ClientPrefix(named.Addr(), 32, 64)}, {Digest: bucketkey.DigestOf(text)}}
		if IsDigest(text) {
			parts[1].Digest, _ = bucketkey.ParseDigest("@" + text) // which was valid
		}
		if got := table.Lookup(parts); got.Rule != want.Rule || got.Limit != want.Limit {
			t.Errorf("%q: got %+v for what it names, want %+v", config.Overrides, got, want)
		}
		addr, err := netip.ParseAddr(client)
		if err != nil {
			return
		}
		got := table.Lookup([]Part{{Network: bucketkey.ClientPrefix(addr, 32, 64)}, {Digest: bucketkey.DigestOf(client)}})
		if got.Rule == Limited && got.Limit.Validate() != nil {
			t.Errorf("%q: got a limit of %v for %q, want a valid one", config.Overrides, got.Limit, client)
		}
	})
}
