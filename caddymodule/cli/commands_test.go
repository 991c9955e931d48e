package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/changes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// outputOf runs a command against an admin endpoint that gives this answer.
func outputOf(t *testing.T, name string, answer any, args ...string) string {
	t.Helper()
	out, _, err := resultOf(t, name, answer, args...)
	check.Assume(t, err == nil, "got error %v and\n%s", err, out)
	return out
}

// resultOf is outputOf for a command that may fail. It also returns what was sent.
func resultOf(t *testing.T, name string, answer any, args ...string) (printed, sent string, err error) {
	t.Helper()
	var out bytes.Buffer
	sent, err = runTo(t, &out, name, answer, args...)
	return out.String(), sent, err
}

// runTo is resultOf for a command that prints elsewhere.
func runTo(t *testing.T, out io.Writer, name string, answer any, args ...string) (sent string, err error) {
	t.Helper()
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = string(body)
		w.Header().Set("Content-Type", "application/json")
		check.NoError(t, json.NewEncoder(w).Encode(answer))
	}))
	defer admin.Close()
	all := &cobra.Command{Use: "throttle"}
	caddycmd.Commands()["throttle"].CobraFunc(all)
	all.SetOut(out)
	all.SetErr(out)
	all.SetArgs(append(append([]string{name}, args...), "--address", strings.TrimPrefix(admin.URL, "http://")))
	err = all.Execute()
	return sent, err
}

// TestFullDisk fails a command, or a script would keep half of what it shows.
func TestFullDisk(t *testing.T) {
	r, full := io.Pipe()
	check.NoError(t, r.Close()) // as if it were full
	_, err := runTo(t, full, "journal", []any{})
	check.That(t, errors.Is(err, io.ErrClosedPipe), "got %v, want the error of writing", err)
}

func ratesOf(admitted, delayed, refused, shadow float64) map[string]float64 {
	return map[string]float64{"admitted": admitted, "delayed": delayed, "refused": refused, "shadow_refused": shadow}
}

// TestStatusFitsOneScreen of a terminal of 80 columns and 24 lines, in a busy night.
func TestStatusFitsOneScreen(t *testing.T) {
	since, devices := time.Now().Add(-100*time.Second), uint64(12)
	out := outputOf(t, "status", map[string]any{
		"zones": []map[string]any{
			{
				"zone": "login", "mode": "enforcing", "total": ratesOf(1210, 0, 88014, 0), "buckets": 312,
				"since_loaded": telemetry.Facts{Since: since, Requests: 934525, Asked: 89224, Keys: 412, Networks: 31, Charged: 1120, Refunded: 90, Responses: map[int]uint64{302: 91, 200: 1100, 403: 19}, Devices: &devices},
				"per_second":   ratesOf(0.1, 0, 214.2, 0),
			},
			{
				"zone": "pages", "mode": "enforcing", "total": ratesOf(845011, 0, 190, 0), "buckets": 22140,
				"since_loaded": telemetry.Facts{Since: since, Requests: 934525, Asked: 845201, Exempt: 4120331, Keys: 98211, Networks: 61544},
				"per_second":   ratesOf(311.5, 0, 0, 0),
			},
			{
				"zone": "uploads", "mode": "enforcing", "total": ratesOf(311, 0, 1, 0), "buckets": 12,
				"per_second": ratesOf(0.25, 0, 0, 0),
				"waiting":    17, "max_waiting": 200,
			},
		},
		"store":    wire.StoreStatus{Name: "redis", Down: true, Since: &since, Why: "dial tcp 127.0.0.1:6379: connection refused", Buckets: 2526, MaxBuckets: 500000},
		"warnings": []telemetry.KeptWarning{{Text: "a peer that is not in trusted_proxies sends a forwarding header", Details: map[string]any{"peer": "127.0.0.1:1\x1b[2J"}}},
	})
	want := `ZONE     MODE       ADMITTED/S  REFUSED/S  SHADOW/S  BUCKETS  WAITING
login    enforcing  0.1         214        -         312      -
pages    enforcing  312         0          -         22140    -
uploads  enforcing  0.25        0          -         12       17/200

The store redis is DOWN for 1m40s: dial tcp 127.0.0.1:6379: connection refused
Memory holds 2526 of at most 500000 buckets. 0 were dropped before they were empty.
The requests and buckets above are this Caddy's alone.
Nothing was changed at run time.

Since the config was loaded, 1m40s ago:
ZONE     REQUESTS  ASKED   EXEMPT   NO KEY  KEYS   NETWORKS  CHARGED  REFUNDED
login    934525    89224   -        -       412    31        1120     90
pages    934525    845201  4120331  -       98211  61544     -        -
uploads  0         0       -        -       0      0         -        -
login: kept 1120 of 1210: 200 x 1100, 302 x 91, 403 x 19; gave 12 device cookies.

Warning (peer 127.0.0.1:1\x1b[2J): a peer that is not in trusted_proxies sends a forwarding header
`
	check.Equal(t, out, want)
	for line := range strings.Lines(out[:strings.Index(out, "\n\n")]) {
		n := utf8.RuneCountInString(line)
		check.That(t, n <= 80, "got a line of %d columns, want at most 80: %s", n, line)
	}
}

// TestStatusShowsWhatToRun whole, and as it can be pasted.
func TestStatusShowsWhatToRun(t *testing.T) {
	since, sql := time.Now(), `CREATE TABLE "b" (`+strings.Repeat("c bigint, ", 60)+`); GRANT SELECT ON "b" TO "c"`
	out := outputOf(t, "status", map[string]any{
		"store": wire.StoreStatus{Name: "postgres", Down: true, Since: &since, Why: "want its owner to run, once: " + sql}, "changes": changes.State{Error: "want: " + sql},
	})
	check.Equal(t, strings.Count(out, sql+"\n"), 2, "times that status shows all of the SQL, in\n%s", out)
}

// TestStatusShowsShadow where zones are in it.
func TestStatusShowsShadow(t *testing.T) {
	out := outputOf(t, "status", map[string]any{"zones": []map[string]any{
		{"zone": "php", "mode": "shadow", "total": ratesOf(5, 4, 0, 3), "per_second": ratesOf(1, 0.5, 0, 2), "waiting": 7, "max_waiting": 1000},
		{"zone": "quiet", "mode": "shadow", "total": ratesOf(5, 0, 0, 0)},
		{"zone": "ended", "mode": "enforcing", "total": ratesOf(5, 0, 0, 3), "limit": "10 1/s"}, // whose shadow has ended
	}, "store": wire.StoreStatus{Name: "memory", SnapshotFailing: true, SnapshotAge: 90}, "changes": changes.State{Error: "why", Pending: 1}})
	want := `ZONE   MODE               ADMITTED/S  REFUSED/S  SHADOW/S  BUCKETS  WAITING
php    shadow             1.5         0          2         0        7/1000
quiet  shadow             0           0          0         0        -
ended  enforcing, 10 1/s  0           0          -         0        -
Shadow counts as if all zones of the same throttle were enforced.

Memory holds 0 of at most 0 buckets. 0 were dropped before they were empty.
The snapshot cannot be written, so a restart takes the buckets back by 90 s: see Caddy's log.
Other Caddys are not told of changes now: why
The store has not been told of 1 change yet.
`
	check.That(t, strings.HasPrefix(out, want), "got\n%s\nwant it to begin with\n%s", out, want)
}

func TestTopMergesTheBusiestAndTheMostRefused(t *testing.T) {
	long := "@sha256:" + strings.Repeat("0123456789abcdef", 4) // which is cut
	out := outputOf(t, "top", wire.Top{Shared: true, Zones: []wire.TopZone{
		{
			Zone: "login", Mode: "enforcing", Requests: 3310, Refused: 1300, Seconds: 65,
			Busiest: []wire.TopKey{{Sender: sketch.Sender{Name: "203.0.113.7", Requests: 2000}}, {Sender: sketch.Sender{Name: "evil\r\n\u202e\x1b[2J", Requests: 1299, Refused: 1297}}},
			Denied:  []wire.TopKey{{Sender: sketch.Sender{Name: "evil\r\n\u202e\x1b[2J", Requests: 1299, Refused: 1297}}, {Sender: sketch.Sender{Name: "198.51.100.1", Requests: 4, Refused: 3}}},
		},
		{Zone: "quiet", Mode: "enforcing", Seconds: 65},
		{Zone: "dry", Mode: "shadow", Requests: 5, Refused: 3, Seconds: 65, Busiest: []wire.TopKey{{Sender: sketch.Sender{Name: long, Requests: 5, Refused: 3}}}},
		{Zone: "tenth", Mode: "enforcing 10%", Requests: 643, Refused: 64, Seconds: 65, Busiest: []wire.TopKey{
			{Sender: sketch.Sender{Name: "203.0.113.7", Requests: 640, Refused: 64, Sampled: true}}, {Sender: sketch.Sender{Name: "203.0.113.8", Requests: 3}},
		}},
	}})
	want := `login (enforcing): 3310 requests in the last 65 s, 1300 refused
REQUESTS  REFUSED  KEY
2000      0        203.0.113.7
1299      1297     evil\r\n\u202e\x1b[2J
4         3        198.51.100.1

quiet (enforcing): 0 requests in the last 65 s, 0 refused
dry (shadow): 5 requests in the last 65 s, 3 refused, or would have been
REQUESTS  REFUSED  KEY
5         3        @sha256:0123456789abcdef0123456789abcdef…

tenth (enforcing 10%): 643 requests in the last 65 s, 64 refused, or would have been
REQUESTS  REFUSED  KEY
~640      ~64      203.0.113.7
3         0        203.0.113.8

These are this Caddy's requests alone.
`
	check.Equal(t, out, want)
}

func TestAnAnswerOfAnotherServerIsCalledThat(t *testing.T) {
	_, _, err := resultOf(t, "status", "a page of the site")
	check.That(t, err != nil && strings.Contains(err.Error(), "is not Caddy's admin endpoint"), "got error %v, want it said that the address is wrong", err)
}

func TestTopSaysThatThereAreNoZones(t *testing.T) {
	check.Equal(t, outputOf(t, "top", wire.Top{}), "The config has no zones.\n")
}

// TestErrorsOfTheAdminEndpointAreSaidPlainly: they are JSON in an error of Caddy's.
func TestErrorsOfTheAdminEndpointAreSaidPlainly(t *testing.T) {
	for text, want := range map[string]string{
		`caddy responded with error: HTTP 404: {"error":"unknown zone \"logn\": did you mean login?"}` + "\n": `unknown zone "logn": did you mean login?`,
		`caddy responded with error: HTTP 400: {"error":"bad \u001b[2J \"\\r\""}`:                             `bad \x1b[2J "\r"`,
		`performing request: Get "http://127.0.0.1:1/x": dial tcp 127.0.0.1:1: connect: connection refused`:   "no Caddy answers at 127.0.0.1:1 (tcp 127.0.0.1:1: connect: connection refused): if its admin endpoint is elsewhere, use --address or --config; with admin off, it cannot be asked",
		"caddy responded with error: HTTP 404: 404 page not found\n":                                          "the Caddy at 127.0.0.1:1 runs without throttle: restart it, since a reload keeps the old program, or use --address for another",
		"something else\x1b": `something else\x1b`,
	} {
		check.Equal(t, plainly(errors.New(text), "127.0.0.1:1").Error(), want, "%s", text)
	}
}

// TestChangesLastForDaysToo, as the admin API and the Caddyfile take them, and never
// for no time, which would be for good.
func TestChangesLastForDaysToo(t *testing.T) {
	for length, want := range map[string]string{"30m": `"for":1800000000000`, "7d": `"for":604800000000000`} {
		_, sent, err := resultOf(t, "ban", wire.Override{Sync: new(changes.Sync)}, "203.0.113.7", "--for", length)
		check.That(t, err == nil && strings.Contains(sent, want), "%s: got error %v and %s sent, want %s", length, err, sent, want)
	}
	for _, wrong := range []string{"0s", "0", "-5m", "soon", "5"} {
		out, _, err := resultOf(t, "ban", nil, "203.0.113.7", "--for="+wrong)
		check.That(t, err != nil && strings.Contains(out, wrong) && strings.Contains(out, "7d"), "--for %s: got error %v and %s, want one that names it and the remedy", wrong, err, out)
	}
}

// TestWhyOfAnAddressNamesTheAccount that was refused to it, whose bucket is not the address's.
func TestWhyOfAnAddressNamesTheAccount(t *testing.T) {
	refused := supportcode.Refusal{At: time.Date(2026, 11, 22, 3, 46, 59, 0, time.Local), Zone: "account", Key: "al\x1bice", Reason: "capacity", Cost: 1, Level: 9.96, Capacity: 10, Wait: 58}
	out := outputOf(t, "why", wire.Why{Refusals: []wire.PastRefusal{{Code: "7K2M-Q8XD", Refusal: refused}}, Complete: true}, "203.0.113.7")
	want := `Refused lately to this address:
CODE       AT              ZONE     KEY        REASON    COST  LEVEL  OF  WAIT  BLOCKED FOR
7K2M-Q8XD  11-22 03:46:59  account  al\x1bice  capacity  1     9.96   10  58s   -

Now:
No zone refuses a request of cost 1 now.
That is by the address: other keys above may still be refused, so ask for these, too.
`
	check.That(t, strings.HasPrefix(out, want), "got\n%s\nwant\n%s", out, want)
}

func TestWhySaysWhatIsSo(t *testing.T) {
	bucket := func(b wire.Bucket) wire.Why {
		b.Zone, b.Capacity, b.Level, b.Fraction, b.EmptyIn, b.Rule = "customers", 120, 119.97, 1, 3600, "limited"
		return wire.Why{Buckets: []wire.Bucket{b}, Complete: true}
	}
	for name, test := range map[string]struct {
		why        wire.Why
		want, lack string
	}{
		"of no zone": {wire.Why{Complete: true}, "caddy throttle top --by ip", "LEVEL"},
		"without a key": {
			wire.Why{Refusal: &wire.PastRefusal{Refusal: supportcode.Refusal{Zone: "api", Reason: "missing_key"}}, Complete: true},
			"had no key", "No zone refuses",
		},
		"an override": {
			bucket(wire.Bucket{Key: "@sha256:" + strings.Repeat("0", 64), By: "override", From: "override 2", Verdict: wire.Verdict{Decision: "refused", Reason: "denied"}}),
			"  limited by override 2", "share",
		},
		"a device of an account": {
			bucket(wire.Bucket{Key: "@sha256:" + strings.Repeat("0", 64) + "/@device/2", By: "zone"}),
			strings.Repeat("0", 64) + "/@device/2  ", "…",
		},
		"two digests": {
			bucket(wire.Bucket{Key: "@sha256:" + strings.Repeat("0", 64) + "/@sha256:" + strings.Repeat("1", 64), By: "zone"}),
			"/@sha256:11111111111…", "share",
		},
		"a share": {
			bucket(wire.Bucket{Key: "198.51.100.123", By: "zone", Share: true, Verdict: wire.Verdict{Decision: "refused", Reason: "capacity", For: 59}}),
			"  store down: a share", "override",
		},
		"an unknown code": {wire.Why{Code: true, Complete: true}, "remembers no refusal with the support code client, and no zone", "As a key"},
		"and a key": {
			wire.Why{Code: true, Unlisted: []wire.UnlistedKey{{Zone: "api", Key: "7K2M-Q8XD", Policy: "skip"}}},
			"No refusal here has the support code client. As a key:\napi: no override lists this key", "LEVEL",
		},
	} {
		out := outputOf(t, "why", test.why, "client")
		check.That(t, strings.Contains(out, test.want) && !strings.Contains(out, test.lack), "%s: got\n%s\nwant %q in it, and no %q", name, out, test.want, test.lack)
	}
}

// TestReleaseSaysWhatIsSo, and names shadow in words instead of the mark that its buckets have in stores.
func TestReleaseSaysWhatIsSo(t *testing.T) {
	for _, test := range []struct {
		answer any
		want   string
	}{
		{wire.Released{Freed: []string{"login/203.0.113.7", "~login/203.0.113.7"}, Count: 2, Complete: true}, "emptied login/203.0.113.7\nemptied login/203.0.113.7 (shadow)\n"},
		{wire.Released{Freed: []string{"login/203.0.113.7"}, Count: 1, Problem: "the store is down"}, "emptied login/203.0.113.7\nError: client: the release is not complete: the store is down\n"},
		{wire.Released{Banned: true, Complete: true}, "No bucket of client was in use.\nA ban still holds: caddy throttle bans names its network, and unban ends it.\n"},
	} {
		out, _, err := resultOf(t, "release", test.answer, "client")
		check.That(t, out == test.want && (err != nil) == strings.Contains(test.want, "Error"), "got %v and\n%s\nwant\n%s", err, out, test.want)
	}
}

// TestChangesSayWhatTheyAreOf, as the answer has it: an address or a key may stand for its network.
// They say where they hold, too.
func TestChangesSayWhatTheyAreOf(t *testing.T) {
	for _, test := range []struct {
		network, args string
		sync          changes.Sync
		want, where   string
	}{
		{"2001:db8::/64", "ban 2001:db8::1", changes.Sync{Kept: true}, "ban of 2001:db8::/64 holds until ", ", on this Caddy"},
		{"203.0.113.7/32", "ban 203.0.113.7", changes.Sync{}, "ban of 203.0.113.7/32 holds until ", ", on this Caddy, unless it is restarted before"},
		{"203.0.113.0/24", "ban 203.0.113.0/24", changes.Sync{Shared: true, Kept: true}, "ban of 203.0.113.0/24 holds until ", ", within two seconds on every Caddy of the store"},
		{"203.0.113.0/24", "limit nets 203.0.113.7 deny", changes.Sync{Kept: true, Error: "why"}, "limit deny of nets/203.0.113.0/24 holds until ", ", on this Caddy: the others are told when the store answers (why)"},
	} {
		args := strings.Fields(test.args)
		answer := map[string]any{"kind": args[0], "zone": "nets", "key": "203.0.113.0", "network": test.network, "sync": test.sync, "until": time.Time{}}
		if args[0] == "limit" {
			answer["limit"] = "deny"
		}
		out := outputOf(t, args[0], answer, args[1:]...)
		_, where, _ := strings.Cut(out, time.Time{}.Local().Format(time.DateTime))
		check.That(t, strings.HasPrefix(out, test.want) && where == test.where+".\n", "%s: got %q, want %q and %q", test.args, out, test.want, test.where)
	}
}

// With --json, a command fails where it does without.
func TestJSONChangesNoExitCode(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer any
		args   []string
	}{
		{"unban", wire.Ended{}, []string{"192.0.2.1"}},
		{"unlimit", wire.Ended{}, []string{"pages"}},
		{"release", wire.Released{Problem: "the store is down"}, []string{"192.0.2.1"}},
		{"release", wire.Why{Refusal: new(wire.PastRefusal)}, []string{"7K2M-Q8XD"}},
	} {
		out, _, err := resultOf(t, test.name, test.answer, append(test.args, "--json")...)
		check.That(t, err != nil, "%s: got no error and %s, want the error that it gives without --json", test.name, out)
		check.That(t, strings.HasPrefix(out, "{\n"), "%s: got %s, want JSON", test.name, out)
	}
}

// TestWhatIsShownCanBePastedBack: keys hold whatever clients send.
func TestWhatIsShownCanBePastedBack(t *testing.T) {
	for _, key := range []string{"203.0.113.7", "\u202egnp.exe", `a\tb`, `quoted "twice" \ here`, "ä€😀", "\u0085", "zero\u200bwidth"} {
		check.Equal(t, asShown(sanitize(key)), key, "what is shown as %s", sanitize(key))
	}
	for _, plain := range []string{`C:\qwerty`, `trailing\`, `CORP\alice`, `CORP\tom`} { // which the terminal would show otherwise
		check.Equal(t, asShown(plain), plain, "%s, want it as it is", plain)
	}
}

// TestNothingThatIsEmptyIsTaken: a script whose variable is not set changes nothing.
func TestNothingThatIsEmptyIsTaken(t *testing.T) {
	for _, args := range [][]string{
		{"shadow", ""},
		{"unshadow", " "},
		{"limit", "login", "", "x2"},
		{"unlimit", "login", ""},
		{"ban", "203.0.113.7", "--for", ""},
		{"release", "203.0.113.7", "--zone", ""},
		{"ban", "", "203.0.113.7"},
		{"why", "203.0.113.7", "--zone="},
	} {
		out, _, err := resultOf(t, args[0], nil, args[1:]...)
		check.That(t, err != nil && strings.Contains(out, "is empty"), "%q: got error %v, %q, want it said what is empty", args, err, out)
	}
}

// TestReleaseOfAllWantsAZone, and Caddy is not asked without one.
func TestReleaseOfAllWantsAZone(t *testing.T) {
	out, sent, err := resultOf(t, "release", nil, "--all")
	check.That(t, err != nil && sent == "" && strings.Contains(out, "--all --zone ZONE"), "got %v, sent %q and\n%s", err, sent, out)
}

// TestUnlimitTakesKeysAsShown, as limit does, which has set them so.
func TestUnlimitTakesKeysAsShown(t *testing.T) {
	_, sent, _ := resultOf(t, "unlimit", map[string]any{"ended": false}, "login", `SHOP\\alice`)
	check.That(t, strings.Contains(sent, `"SHOP\\alice"`), "sent %s", sent)
}

// TestSeveralWithJSON: what failed, and why, is said with --json, too.
func TestSeveralWithJSON(t *testing.T) {
	out, _, err := resultOf(t, "unban", map[string]any{"ended": false}, "192.0.2.1", "192.0.2.2", "--json")
	check.That(t, err != nil && strings.Contains(out, "192.0.2.1") && strings.Contains(out, "no such change"), "got %v and\n%s", err, out)
}
