package tune_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard" // what sites have beside throttle
	"github.com/spf13/cobra"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// run runs a command, and returns what it prints.
func run(ctx context.Context, args ...string) (out, complaint string, err error) {
	var stdout, stderr strings.Builder
	all := &cobra.Command{Use: "throttle"}
	caddycmd.Commands()["throttle"].CobraFunc(all)
	all.SetOut(&stdout)
	all.SetErr(&stderr)
	all.SetArgs(args)
	err = all.ExecuteContext(ctx)
	return stdout.String(), stderr.String(), err
}

// ran runs a command that must succeed.
func ran(t testing.TB, args ...string) string {
	t.Helper()
	out, complaint, err := run(t.Context(), args...)
	check.Assume(t, err == nil && complaint == "", "%q: got %v and %s", args, err, complaint)
	return out
}

// ranJSON returns what it prints with --json.
func ranJSON[T any](t testing.TB, args ...string) *T {
	t.Helper()
	found := new(T)
	check.OK(t, json.Unmarshal([]byte(ran(t, append(args, "--json")...)), found))
	return found
}

// wrongUse runs a command that must exit with 2, and returns its complaint.
func wrongUse(t *testing.T, args ...string) string {
	t.Helper()
	out, complaint, err := run(t.Context(), args...)
	check.That(t, err != nil && err.Error() == "exiting with status 2" && out == "", "%q: got %v and %q, want exit code 2", args, err, out)
	return complaint
}

// writeFile writes a file, and returns its name.
func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	check.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// adapted returns the JSON of a Caddyfile.
func adapted(caddyfile string) ([]byte, error) {
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	return adapted, err
}

// adapt does so for one that is right.
func adapt(t testing.TB, caddyfile string) []byte {
	t.Helper()
	adapted, err := adapted(caddyfile)
	check.Assume(t, err == nil, "%v\n%s", err, caddyfile)
	return adapted
}

// The flags make up a Caddyfile. Its lines are nothing to the caller.
// zoneOf returns the name of a config with one zone, for a replay of a log.
func zoneOf(t testing.TB, options string) string {
	t.Helper()
	return writeFile(t, "Caddyfile", ":80 {\nthrottle {\nzone limit {\n"+options+"\n}\n}\n}\n")
}

// A replay of a config with groups decides about each request of a log as a replay of the
// enforced config does, and of zones that are in shadow each by itself as of each alone.
func TestAReplayOfShadowDecidesAsEnforcementWould(t *testing.T) {
	var log strings.Builder
	rng := rand.New(rand.NewPCG(3, 4))
	at := 1772364600.0
	for range 3000 {
		at += rng.ExpFloat64() * 0.12
		fmt.Fprintf(&log, `{"ts":%f,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"203.0.113.%[2]d","client_ip":"203.0.113.%[2]d",`+
			`"proto":"HTTP/1.1","method":"GET","host":"example.com","uri":"/%[3]d","headers":{"User-Agent":["browser %[4]d"]}},"duration":%[5]f,"size":9,"status":200}`+"\n",
			at, 1+rng.IntN(6), rng.IntN(9), rng.IntN(3), rng.Float64())
	}
	file := writeFile(t, "access.log", log.String())
	zones := []string{
		"zone pages {\nlimit 8 2/s\nblock 5s 30s\n", "zone agents {\nkey header User-Agent\nlimit 20 4/s\ncost 1.5\n",
		"zone site {\nkey host\nlimit 30 6/s\ndelay 10\n",
	}
	decided := func(block string) map[string]string {
		each := filepath.Join(t.TempDir(), "requests.json")
		ran(t, "replay", "--requests", each, "--config", writeFile(t, "Caddyfile", "http:// {\nthrottle {\n"+block+"\n}\nrespond ok\n}"), "--adapter", "caddyfile", file)
		raw := check.Must(os.ReadFile(each))(t)
		seen := make(map[string]string)
		for line := range bytes.Lines(raw) {
			var d struct {
				Line                   int
				Zone, Decision, Reason string
				Delay                  float64 `json:"delay"`
			}
			check.OK(t, json.Unmarshal(line, &d))
			seen[fmt.Sprint(d.Zone, " ", d.Line)] += fmt.Sprintf("%v %v %v", strings.TrimPrefix(d.Decision, "shadow_"), d.Reason, d.Delay)
		}
		check.Assume(t, len(seen) >= 3000, "got %d decisions, want one for each request at least", len(seen))
		return seen
	}
	whole := strings.Join(zones, "}\n") + "}\n"
	check.That(t, maps.Equal(decided("shadow\n"+whole), decided(whole)), "got other decisions in shadow than enforced by\n%s", whole)
}

// A log has the status of a response, and neither its cookies nor its headers.
func TestReplayRefund(t *testing.T) {
	var log strings.Builder
	for i, status := range []int{200, 200, 200, 302, 302, 302, 302, 302, 302, 200, 200} {
		fmt.Fprintf(&log, `{"ts":%d,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"203.0.113.1","client_ip":"203.0.113.1",`+
			`"proto":"HTTP/1.1","method":"POST","host":"example.com","uri":"/login","headers":{}},"duration":0.01,"size":9,"status":%d}`+"\n", 1772364600+i, status)
	}
	file := writeFile(t, "access.log", log.String())
	for refund, want := range map[string]struct {
		refused int
		note    bool
	}{
		"refund status 302":              {1, false},
		"refund cookie sid_*":            {6, true},
		"refund header Location */home*": {6, true},
	} {
		each := filepath.Join(t.TempDir(), "requests.json")
		out := ran(t, "replay", "--requests", each, "--config", writeFile(t, "Caddyfile", "http:// {\nthrottle {\nzone login {\nlimit 5 1/d\n"+refund+"\n}\n}\nrespond ok\n}"), "--adapter", "caddyfile", file)
		raw := check.Must(os.ReadFile(each))(t)
		refused := bytes.Count(raw, []byte(`"decision":"refused"`))
		note := strings.Contains(out, "such refunds are left out")
		check.That(t, refused == want.refused && note == want.note, "%s: got %d refused and a note: %v, want %d and %v\n%s", refund, refused, note, want.refused, want.note, out)
	}
}

// logged returns a log of requests of one client, each a time and a duration in seconds.
func logged(t *testing.T, requests ...[2]float64) (file string) {
	t.Helper()
	var log strings.Builder
	for _, r := range requests {
		fmt.Fprintf(&log, `{"ts":%f,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"203.0.113.7","proto":"HTTP/1.1","method":"GET","host":"example.com","uri":"/","headers":{}},"duration":%f,"size":9,"status":200}`+"\n",
			1772364600+r[0]+r[1], r[1])
	}
	return writeFile(t, "access.log", log.String())
}

// decidedIn returns what a replay counts, by zone.
func decidedIn(t *testing.T, directives, log string) (decisions map[string]map[string]int, notes string) {
	t.Helper()
	r := ranJSON[tune.Report](t, "replay", "--config", writeFile(t, "Caddyfile", "http:// {\nroute {\n"+directives+"\nrespond ok\n}\n}"), "--adapter", "caddyfile", log)
	decisions = make(map[string]map[string]int)
	for _, z := range r.Zones {
		decisions[z.Name] = z.Decisions
	}
	return decisions, strings.Join(r.Notes, "\n")
}

// Nobody waits in a replay: how many would have is seen by the level.
func TestAReplayCountsThoseWhoWouldHaveWaited(t *testing.T) {
	same := [2]float64{0, 0.1}
	got, notes := decidedIn(t, "throttle {\nzone queue {\nlimit 6 1/s\ndelay queue 2\n}\n}", logged(t, same, same, same, same, same, same, same))
	want := map[string]int{"admitted": 1, "delayed": 5, "refused": 1}
	check.That(t, maps.Equal(got["queue"], want), "got %v, want %v", got["queue"], want)
	check.Contains(t, notes, "zone queue delays requests, and nobody waits in a replay", "the notes, want that nobody waits")
}

// The first takes ten seconds, which are charged when it ends: after the second has come.
func TestAReplaySettlesAtTheEndOfTheResponse(t *testing.T) {
	got, notes := decidedIn(t, "throttle {\nzone work {\nlimit 5 1/d\nsettle seconds after\n}\n}", logged(t, [2]float64{0, 10}, [2]float64{5, 0.1}, [2]float64{11, 0.1}))
	want := map[string]int{"admitted": 2, "refused": 1}
	check.That(t, maps.Equal(got["work"], want), "got %v, want %v", got["work"], want)
	check.Contains(t, notes, "zone work settles the time until the response's headers come", "the notes, want that a log has another time")
}

// Who leaves pays what was reserved, and who gets an error of Caddy's own, as in the running Caddy.
func TestAReplayRefundsNobodyWhoLeft(t *testing.T) {
	log := string(check.Must(os.ReadFile(logged(t, [2]float64{0, 0.1}, [2]float64{1, 0.1}, [2]float64{2, 0.1})))(t))
	for ended, settles := range map[string][]string{
		`"size":9,"status":499`:                   {"settle seconds", "settle bytes 1KiB", "settle status 404 1", "refund status 4xx"},
		`"size":0,"status":502`:                   {"settle seconds", "settle bytes 1KiB", "settle status 502 2"},
		`"size":9223372036854775807,"status":502`: {"settle status 502 2"}, // which takes no time
	} {
		file := writeFile(t, "left.log", strings.ReplaceAll(log, `"size":9,"status":200`, ended))
		for _, settle := range settles {
			got, _ := decidedIn(t, "throttle {\nzone work {\nlimit 5 1/d\ncost 2\n"+settle+"\n}\n}", file)
			want := map[string]int{"admitted": 2, "refused": 1}
			check.That(t, maps.Equal(got["work"], want), "%s after %s: got %v, want %v", settle, ended, got["work"], want)
		}
	}
}

// Caddy logs them for the site, whose routes they never come to.
func TestAReplayLeavesOutRedirectsToHTTPS(t *testing.T) {
	log := string(check.Must(os.ReadFile(logged(t, [2]float64{0, 0.1}, [2]float64{1, 0.1})))(t))
	for closes, want := range map[string]string{`"Connection":["close"],`: "map[admitted:2]", "": "map[admitted:4]"} { // else an application's
		redirects := strings.ReplaceAll(log, `"status":200`, `"status":308,"resp_headers":{`+closes+`"Location":["https://example.com/"]}`)
		got, notes := decidedIn(t, "throttle work 5 1/d", writeFile(t, "both.log", log+redirects))
		check.Equal(t, fmt.Sprint(got["work"]), want, "%q", closes)
		check.Equal(t, strings.Contains(notes, "from HTTP to HTTPS, and asked no zone: 2."), closes != "", "%q: the note", closes)
	}
}

// A replay runs as any user, on any machine.
func TestAReplayNeedsNoSecrets(t *testing.T) {
	config := "{\nthrottle {\nsigning_key {file./nowhere}\n}\n}\nhttp:// {\nthrottle work 5 1/d\nrespond ok\n}"
	ran(t, "replay", "--config", writeFile(t, "Caddyfile", config), "--adapter", "caddyfile", logged(t, [2]float64{0, 0}))
}

// It keeps what was charged if a proxy was asked before, as the running Caddy does.
func TestAReplayGivesBackWhatIsRefusedFurtherIn(t *testing.T) {
	log := logged(t, [2]float64{0, 0}, [2]float64{1, 0}, [2]float64{2, 0}, [2]float64{3, 0}, [2]float64{4, 0})
	for between, want := range map[string]string{
		"":                                       "map[around:map[admitted:5] inner:map[admitted:1 refused:4]]",
		"\nforward_auth auth:9091 {\nuri /\n}\n": "map[around:map[admitted:3 refused:2] inner:map[admitted:1 refused:2]]",
	} {
		got, _ := decidedIn(t, "throttle around 3 1/d\n"+between+"throttle inner 1 1/d", log)
		check.Equal(t, fmt.Sprint(got), want, "%q", between)
	}
}

// TestReplayTakesOffTheQueue: what a request has waited in in_flight is no time of the upstream's,
// as for the running Caddy.
func TestReplayTakesOffTheQueue(t *testing.T) {
	const line = `{"ts":%d,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"203.0.113.1","client_ip":"203.0.113.1",` +
		`"proto":"HTTP/1.1","method":"GET","host":"example.com","uri":"/","headers":{}},"duration":9.25,"size":9,"status":200,"in_flight":{"decision":"delayed","waited":8.5}}` + "\n"
	file := writeFile(t, "access.log", fmt.Sprintf(line+line, 1772364600, 1772364630))
	each := filepath.Join(t.TempDir(), "requests.json")
	check.Contains(t, wrongUse(t, "replay", "--requests", file, "--config", zoneOf(t, "limit 10 1/d"), file), "file exists", "the complaint, want the log kept")
	ran(t, "replay", "--requests", each, "--config", zoneOf(t, "limit 10 1/d\nsettle seconds"), file)
	raw := check.Must(os.ReadFile(each))(t)
	check.That(t, strings.Contains(string(raw), `"level":1.749`), "got %s, want three quarters of a second and the next request", raw)
}
