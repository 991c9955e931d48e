package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/report"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tune"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/usage"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A combinedLine is a line of a combined log, at a time after the start of all logs here.
type combinedLine struct {
	at                       time.Duration
	addr, method, uri, agent string
}

var logStart = time.Date(2026, 11, 2, 8, 0, 0, 0, time.UTC)

func (l combinedLine) String() string {
	return fmt.Sprintf("%s - - [%s] \"%s %s HTTP/1.1\" 200 512 \"-\" \"%s\"\n", l.addr, logStart.Add(l.at).Format("02/Jan/2006:15:04:05 -0700"), l.method, l.uri, l.agent)
}

// writeLog writes lines into a file, and returns its name.
func writeLog(t testing.TB, lines ...combinedLine) string {
	t.Helper()
	var b bytes.Buffer
	for _, l := range lines {
		b.WriteString(l.String())
	}
	return writeText(t, "access.log", b.String())
}

func writeText(t testing.TB, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// mixedLines are people, an office and a scraper.
func mixedLines() (lines []combinedLine) {
	for second := range 1800 {
		at := time.Duration(second) * time.Second
		lines = append(lines, combinedLine{at, "203.0.113.66", "GET", fmt.Sprintf("/page/%d?x", second), "bot"})
		if second%9 == 0 {
			person := fmt.Sprintf("198.51.100.%d", second/9%40)
			lines = append(lines, combinedLine{at, person, "GET", "/", "Mozilla"}, combinedLine{at, person, "GET", "/style.css", "Mozilla"})
		}
		if second < 60 {
			agent := fmt.Sprintf("Mozilla/%d", second%12)
			lines = append(lines, combinedLine{at, "203.0.113.10", "GET", "/", agent}, combinedLine{at, "203.0.113.10", "POST", "/login", agent}, combinedLine{at, "203.0.113.10", "GET", "/style.css", agent})
		}
	}
	return lines
}

// recommended runs the command with its defaults, changed by change.
func recommended(t testing.TB, log string, change func(*tune.RecommendFlags)) *tune.Recommendation {
	t.Helper()
	f := &tune.RecommendFlags{Spare: "99.9", ReplayFlags: tune.ReplayFlags{LogFlags: tune.LogFlags{Format: "auto"}}}
	if change != nil {
		change(f)
	}
	r, broken, err := f.Find(context.Background(), []string{log})
	if err != nil || broken != nil {
		t.Fatalf("got %v, %v, want a recommendation", err, broken)
	}
	return r
}

// TestTheRecommendedLinesAdapt pastes what is recommended into a site.
func TestTheRecommendedLinesAdapt(t *testing.T) {
	r := recommended(t, writeLog(t, mixedLines()...), func(f *tune.RecommendFlags) { f.People, f.Spare = true, "97" })
	z := r.Zones[0]
	if len(z.Overrides) != 1 || !strings.Contains(z.Caddyfile, "override 203.0.113.10 ") || !strings.Contains(z.Caddyfile, "exempt static_files") {
		t.Fatalf("got\n%s\nwant lines with an override for the office", z.Caddyfile)
	}
	caddyfile := "example.com {\nroot * /srv\n" + z.Caddyfile + "php_fastcgi unix//run/php.sock\n}\n"
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatalf("%v\n%s", err, caddyfile)
	}
	for _, w := range warnings {
		if !strings.Contains(w.Message, "not formatted") {
			t.Errorf("got the warning %s", w.Message)
		}
	}
	best := z.Units.Best()
	if want := fmt.Sprintf(`"exempt_static_files":[{}],"limit":"%v %s"`, best.Capacity, best.Leak); !bytes.Contains(adapted, []byte(want)) {
		t.Errorf("got %s, want it to contain %s", adapted, want)
	}
	if !bytes.Contains(adapted, []byte(`"shadow":{}`)) {
		t.Errorf("got %s, want a zone in shadow", adapted)
	}
}

// TestTheRecommendedLinesOfAZoneOfAConfigAdapt puts them where they say.
func TestTheRecommendedLinesOfAZoneOfAConfigAdapt(t *testing.T) {
	const config = ":80 {\nthrottle {\nzone pages {\nmatch method GET\nlimit 60 2/s\n}\nzone login {\nmatch path /login\nkey client_ip\ncost 3\nlimit 9 5/m\n}\n}\n}\n"
	file := writeText(t, "Caddyfile", config)
	log := writeLog(t, mixedLines()...)
	r := recommended(t, log, func(f *tune.RecommendFlags) { f.Config, f.Spare = file, "100" })
	if len(r.Zones) != 2 || r.Zones[0].Zone != "login" || r.Zones[1].Zone != "pages" {
		t.Fatalf("got %d zones, want login and pages", len(r.Zones))
	}
	login := r.Zones[0]
	if login.Requests != 60 || login.Keys != 1 || login.Units.Load != 180 {
		t.Errorf("got %d requests of %d keys with a load of %v, want 60 of 1 with 180: the zone's match and cost count", login.Requests, login.Keys, login.Units.Load)
	}
	if pages := r.Zones[1]; pages.Requests != len(mixedLines())-60 {
		t.Errorf("got %d requests of pages, want all but the posts: the zone exempts no assets", pages.Requests)
	}
	adapt(t, strings.Replace(config, "limit 9 5/m\n", login.Caddyfile, 1))
	one := recommended(t, log, func(f *tune.RecommendFlags) { f.Config, f.Zone, f.Spare = file, "login", "100" })
	if len(one.Zones) != 1 || one.Zones[0].Zone != "login" {
		t.Errorf("got %d zones with --zone, want login alone", len(one.Zones))
	}
}

// TestTheKeyAndTheCostOfTheFlagsAreAmongTheLines, spelled as they were given.
func TestTheKeyAndTheCostOfTheFlagsAreAmongTheLines(t *testing.T) {
	r := recommended(t, writeLog(t, mixedLines()...), func(f *tune.RecommendFlags) {
		f.Keys, f.Cost = []string{"header User-Agent", "method"}, "2"
	})
	z := r.Zones[0]
	if want := "\t\tkey header User-Agent method\n\t\tcost 2\n\t\tlimit "; !strings.Contains(z.Caddyfile, want) {
		t.Errorf("got\n%s\nwant it to contain %q", z.Caddyfile, want)
	}
	adapt(t, "example.com {\nroot * /srv\n"+z.Caddyfile+"respond ok\n}\n")
	if z.Units.Load != 2*float64(z.Requests) {
		t.Errorf("got a load of %v by %d requests, want 2 for each", z.Units.Load, z.Requests)
	}
}

// TestARecommendationAgreesWithReplayingEveryCapacity runs the log through a zone with
// each capacity, as caddy throttle replay does, and compares to the unit.
func TestARecommendationAgreesWithReplayingEveryCapacity(t *testing.T) {
	log := writeLog(t, mixedLines()...)
	r := recommended(t, log, func(f *tune.RecommendFlags) { f.Spare, f.Assets = "97", true })
	z := r.Zones[0]
	for _, p := range z.Units.Points {
		if p.Leak != "1/m" && p.Leak != "20/m" && p.Leak != "2/s" {
			continue
		}
		rate, _ := leakybucket.ParseRate(p.Leak)
		least := 0.0
		for capacity := 1.0; least == 0; capacity++ {
			refusedKeys, refused := replayedWith(t, log, capacity, p.Leak)
			if float64(z.Keys-refusedKeys) >= 0.97*float64(z.Keys) {
				least = capacity
				if refusedKeys != p.RefusedKeys || refused != p.RefusedRequests {
					t.Errorf("leak %s: got %d keys and %d requests refused, want %d and %d", p.Leak, p.RefusedKeys, p.RefusedRequests, refusedKeys, refused)
				}
			}
		}
		if p.Capacity != least {
			t.Errorf("leak %s (%v a second): got capacity %v, want %v", p.Leak, rate, p.Capacity, least)
		}
	}
}

// replayedWith replays a log, and returns how many keys and requests are refused.
func replayedWith(t *testing.T, log string, capacity float64, leak string) (keys, requests int) {
	t.Helper()
	f := &tune.ReplayFlags{LogFlags: tune.LogFlags{Format: "auto"}, Keys: []string{"client_ip"}, Limit: fmt.Sprint(capacity) + " " + leak}
	config, err := f.LoadConfig()
	if err != nil {
		t.Fatal(err)
	}
	tally := &refusalTally{keys: make(map[string]bool)}
	rp, err := tune.NewPlayer(config, tally)
	if err != nil {
		t.Fatal(err)
	}
	defer rp.Close()
	in, err := f.Open(context.Background(), []string{log})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := rp.RunAll(in, ""); err != nil {
		t.Fatal(err)
	}
	rp.End()
	return len(tally.keys), tally.requests
}

// A refusalTally counts what is refused.
type refusalTally struct {
	keys     map[string]bool
	requests int
}

// Decided implements replayObserver.
func (t *refusalTally) Decided(o *decision.Outcome, _ *accesslog.Request) {
	if o.Reason() != rule.None {
		t.keys[o.Key] = true
		t.requests++
	}
}

// TestRecommendRefusesWrongUse: what is wrong is said before a log is read.
func TestRecommendRefusesWrongUse(t *testing.T) {
	log := writeLog(t, mixedLines()[:10]...)
	config := writeText(t, "Caddyfile", ":80 {\nthrottle pages client_ip 5 1/s\n}\n")
	for _, c := range []struct {
		name   string
		change func(*tune.RecommendFlags)
		want   string
	}{
		{"a share that is none", func(f *tune.RecommendFlags) { f.Spare = "most" }, `invalid --spare "most"`},
		{"a share above all", func(f *tune.RecommendFlags) { f.Spare = "100.1" }, "want a percentage from 0 to 100"},
		{"a zone that does not exist", func(f *tune.RecommendFlags) { f.Config, f.Zone = config, "page" }, "did you mean pages?"},
		{"a key that logs do not hold", func(f *tune.RecommendFlags) { f.Keys = []string{"form log"} }, "logs hold no bodies"},
		{"a cookie in a combined log", func(f *tune.RecommendFlags) { f.Keys = []string{"cookie sid"} }, "combined logs hold no cookies"},
		{"an unknown key", func(f *tune.RecommendFlags) { f.Keys = []string{"clientip"} }, `--key: unknown key source "clientip": did you mean client_ip?`},
		{"a key that lacks a word", func(f *tune.RecommendFlags) { f.Keys = []string{"header"} }, `--key: "header" needs a word after it: want header <name>`},
		{"a cost that is none", func(f *tune.RecommendFlags) { f.Cost = "z" }, `--cost: invalid cost "z"`},
		{"a key and a config", func(f *tune.RecommendFlags) { f.Config, f.Keys = config, []string{"host"} }, "exclude each other"},
		{"assets and a config", func(f *tune.RecommendFlags) { f.Config, f.Assets = config, true }, "exclude each other"},
		{"an unknown format", func(f *tune.RecommendFlags) { f.Format = "iis" }, "unknown format"},
	} {
		f := &tune.RecommendFlags{Spare: "99.9", ReplayFlags: tune.ReplayFlags{LogFlags: tune.LogFlags{Format: "auto"}}}
		c.change(f)
		_, _, err := f.Find(context.Background(), []string{log})
		if _, wrong := err.(usage.Error); !wrong || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a usage error with %q", c.name, err, c.want)
		}
	}
}

// TestHostileLogsLeaveNoControlBytes prints a recommendation and its page from a log
// whose keys are written by an attacker.
func TestHostileLogsLeaveNoControlBytes(t *testing.T) {
	var lines []combinedLine
	for n := range 50 {
		lines = append(lines, combinedLine{time.Duration(n) * time.Second, "203.0.113.66", "GET", "/", `\x1b[2J<script>alert(1)</script>`})
	}
	r := recommended(t, writeLog(t, lines...), func(f *tune.RecommendFlags) { f.Keys = []string{"header User-Agent"} })
	if got := r.Zones[0].Top[0].Key; !strings.HasPrefix(got, "%1B[2J") {
		t.Errorf("got the key %q, want its control byte escaped", got)
	}
	r.Zones[0].Top[0].Key = "\x1b[2J<script>alert(1)</script>"
	r.Zones[0].Notes = append(r.Zones[0].Notes, "<img src=x>")
	var text, page bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	if err := report.Write(&page, r.Zones, []string{"<u>note"}, []report.Setting{{Name: "logs", Value: "\x1b]0;<b>"}}); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{"text": text.String(), "page": page.String()} {
		if strings.ContainsAny(got, "\x1b\x07\x00") {
			t.Errorf("%s: got control bytes", name)
		}
	}
	for _, tag := range []string{"<script", "<img", "<b>", "<u>"} {
		if strings.Contains(page.String(), tag) {
			t.Errorf("got %s in the page, want it escaped", tag)
		}
	}
	if !strings.Contains(page.String(), `\x1b[2J&lt;script&gt;alert(1)&lt;/script&gt;`) {
		t.Error("got a page without the key, want it escaped")
	}
}

// TestTheJSONOfARecommendationHasNoNulls: scripts iterate over its lists.
func TestTheJSONOfARecommendationHasNoNulls(t *testing.T) {
	raw, err := json.Marshal(recommended(t, writeLog(t, mixedLines()[:1]...), nil))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte("null")) || bytes.Contains(raw, []byte("NaN")) {
		t.Errorf("got %s, want no null in it", raw)
	}
}

// TestALogOfAssetsOnlyHasNothingToRecommend and says so.
func TestALogOfAssetsOnlyHasNothingToRecommend(t *testing.T) {
	r := recommended(t, writeLog(t, combinedLine{0, "203.0.113.1", "GET", "/style.css", "x"}), nil)
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	if len(r.Zones) != 0 || !strings.Contains(b.String(), "No zone charges any of these requests.") {
		t.Errorf("got %q, want that no zone charges any", b.String())
	}
}

// TestAnInterruptedRecommendationIsOfTheRequestsSoFar also says so.
func TestAnInterruptedRecommendationIsOfTheRequestsSoFar(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f := &tune.RecommendFlags{Spare: "99.9", ReplayFlags: tune.ReplayFlags{LogFlags: tune.LogFlags{Format: "auto"}}}
	r, _, err := f.Find(ctx, []string{writeLog(t, mixedLines()...)})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	if n := r.Zones[0].Requests; !r.Partial || n == 0 || n > 512 || !strings.HasPrefix(b.String(), "Interrupted:") {
		t.Errorf("got %d requests, partial %v, %.40q, want some of them, and that they are not all", n, r.Partial, b.String())
	}
}

// TestAZoneThatSettlesSecondsGetsALimitForThem by the durations of a Caddy log.
func TestAZoneThatSettlesSecondsGetsALimitForThem(t *testing.T) {
	var b strings.Builder
	for n := range 300 {
		fmt.Fprintf(&b, `{"ts":%d.25,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"203.0.113.%d","proto":"HTTP/1.1","method":"GET","host":"example.com","uri":"/","headers":{}},"duration":0.2,"status":200,"size":1}`+"\n", logStart.Unix()+int64(n), n%10)
	}
	config := writeText(t, "Caddyfile", ":80 {\nthrottle {\nzone work {\nsettle seconds\nlimit 30 0.5/s\nin_flight 4\n}\n}\n}\n")
	r := recommended(t, writeText(t, "access.log", b.String()), func(f *tune.RecommendFlags) { f.Config = config })
	z := r.Zones[0]
	if z.Requests != 300 || z.Seconds == nil || math.Abs(z.Seconds.Load-60) > 1e-6 || z.InFlight == nil || z.InFlight.Most != 1 {
		t.Errorf("got %d requests, %+v, %+v, want 300, 60 seconds of work, and one at once", z.Requests, z.Seconds, z.InFlight)
	}
}

// One client with one request: the words agree with the numbers.
func TestRecommendCountsInWords(t *testing.T) {
	log := `192.0.2.1 - - [07/Mar/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "Mozilla/5.0"` + "\n" +
		`::1 - - [07/Mar/2026:10:00:01 +0000] "OPTIONS * HTTP/1.0" 200 5 "-" "Apache (internal dummy connection)"` + "\n" +
		`192.0.2.2 - - [07/Mar/2026:10:00:02 +0000] "CONNECT example.com:443 HTTP/1.1" 405 5 "-" "-"` + "\n"
	var b strings.Builder
	if err := recommended(t, writeText(t, "access.log", log), nil).Write(&b); err != nil {
		t.Fatal(err)
	}
	out := b.String()
	for _, want := range []string{"a burst of 1 request,", "1 request of 1 client from", "\nNote: Only one client is in the log"} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwant %q", out, want)
		}
	}
	for _, wrong := range []string{"1 requests", "1 clients", "Mind:"} {
		if strings.Contains(out, wrong) {
			t.Errorf("got %q in\n%s", wrong, out)
		}
	}
}
