package tune_test

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune/internal/clients"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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
	return writeFile(t, "access.log", b.String())
}

// mixedLines are people, an office and three scrapers, in two days.
func mixedLines() (lines []combinedLine) {
	for n := range 1800 {
		lines = append(lines, combinedLine{time.Duration(n) * time.Second, fmt.Sprintf("203.0.113.%d", 66+n%3), "GET", fmt.Sprintf("/page/%d?x", n), fmt.Sprintf("bot/%d", n%3)})
	}
	for n := range 200 {
		at, person := time.Duration(n)*10*time.Minute, fmt.Sprintf("198.51.100.%d", n%40)
		lines = append(lines, combinedLine{at, person, "GET", "/", "Mozilla"}, combinedLine{at, person, "GET", "/style.css", "Mozilla"})
	}
	for n := range 60 {
		at, agent := time.Duration(n/30)*25*time.Hour+time.Duration(n%30)*time.Second, fmt.Sprintf("Mozilla/%d", n%12)
		lines = append(lines, combinedLine{at, "203.0.113.10", "GET", "/", agent}, combinedLine{at, "203.0.113.10", "POST", "/login", agent}, combinedLine{at, "203.0.113.10", "GET", "/style.css", agent})
	}
	slices.SortStableFunc(lines, func(a, b combinedLine) int { return cmp.Compare(a.at, b.at) })
	return lines
}

// recommended runs the command with its defaults and these flags.
func recommended(t testing.TB, log string, flags ...string) *tune.Recommendation {
	t.Helper()
	return ranJSON[tune.Recommendation](t, append([]string{"recommend", log}, flags...)...)
}

// TestTheRecommendedLinesAdapt pastes what is recommended into a site.
func TestTheRecommendedLinesAdapt(t *testing.T) {
	r := recommended(t, writeLog(t, mixedLines()...), "--spare", "97")
	z := r.Zones[0]
	check.Assume(t, strings.Contains(z.Caddyfile, "exempt static_files"), "got\n%s\nwant lines that exempt static files", z.Caddyfile)
	adapted := adapt(t, "example.com {\nroot * /srv\n"+z.Caddyfile+"php_fastcgi unix//run/php.sock\n}\n")
	best := z.Units.Best()
	want := fmt.Sprintf(`"exempt_static_files":[{}],"limit":"%v %s"`, best.Capacity, best.Leak)
	check.That(t, bytes.Contains(adapted, []byte(want)), "got %s, want it to contain %s", adapted, want)
	check.That(t, bytes.Contains(adapted, []byte(`"shadow":{}`)), "got %s, want a zone in shadow", adapted)
}

// TestTheRecommendedLinesOfAZoneOfAConfigAdapt puts them where they say.
func TestTheRecommendedLinesOfAZoneOfAConfigAdapt(t *testing.T) {
	const config = ":80 {\nthrottle {\nzone pages {\nmatch method GET\nlimit 60 2/s\n}\nzone rest {\nmatch not path /login\nkey client_ip\ncost 3\nlimit 9 5/m\n}\n}\n}\n"
	file := writeFile(t, "Caddyfile", config)
	log := writeLog(t, mixedLines()...)
	r := recommended(t, log, "--config", file)
	check.Assume(t, len(r.Zones) == 2 && r.Zones[0].Zone == "pages" && r.Zones[1].Zone == "rest", "got %d zones, want pages and rest", len(r.Zones))
	rest, n := r.Zones[1], len(mixedLines())-60
	if rest.Requests != n || rest.Keys != 44 || rest.Units.Load != 3*float64(n) {
		t.Errorf("got %d requests of %d keys with a load of %v, want %d of 44 with three times that: the zone's match and cost count", rest.Requests, rest.Keys, rest.Units.Load, n)
	}
	check.Equal(t, r.Zones[0].Requests, len(mixedLines())-60, "requests of pages, want all but the posts: the zone exempts no assets")
	adapt(t, strings.Replace(config, "limit 9 5/m\n", rest.Caddyfile, 1))
	one := recommended(t, log, "--config", file, "--zone", "rest", "--spare", "100")
	check.That(t, len(one.Zones) == 1 && one.Zones[0].Zone == "rest", "got %d zones with --zone, want rest alone", len(one.Zones))
}

// TestRecommendRefusesWrongUse: what is wrong is said before a log is read.
func TestRecommendRefusesWrongUse(t *testing.T) {
	log := writeLog(t, mixedLines()[:10]...)
	config := writeFile(t, "Caddyfile", ":80 {\nthrottle pages client_ip 5 1/s\n}\n")
	for _, c := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"a share that is none", []string{"--spare", "most"}, `invalid --spare "most"`},
		{"a limit that is none", []string{"--check", "120"}, "--check: "},
		{"a limit without a burst", []string{"--check", "2/s"}, "--check: "},
		{"a share above all", []string{"--spare", "100.1"}, "want a percentage from 0 to 100"},
		{"a zone that does not exist", []string{"--config", config, "--zone", "page"}, "did you mean pages?"},
		{"a key that logs do not hold", []string{"--config", zoneOf(t, "key field log\nlimit 5 1/s")}, "logs hold no bodies"},
		{"a cookie in a combined log", []string{"--config", zoneOf(t, "key cookie sid\nlimit 5 1/s")}, "its key is in the header Cookie, which the log does not show"},
	} {
		check.Contains(t, wrongUse(t, append([]string{"recommend", log}, c.flags...)...), c.want, "%s", c.name)
	}
	files := strings.NewReplacer("LOG", log, "SITE", writeFile(t, "Caddyfile", "example.com {\nthrottle pages client_ip 5 1/s\n}\n"),
		"OPEN", writeFile(t, "Caddyfile", ":80 {\nthrottle {\n"), "NONE", writeFile(t, "Caddyfile", ":80 {\nrespond ok\n}\n"))
	for command, want := range map[string]string{
		"recommend":                        "no log given: want files",
		"recommend LOG --config missing":   "missing: no such file",
		"recommend LOG --config OPEN":      "Caddyfile:2",
		"recommend LOG --config NONE":      "no throttle handler",
		"recommend LOG --limit 5":          "unknown flag: --limit",
		"replay LOG":                       "no limits given: want --config",
		"recommend LOG --zone login":       "--zone needs --config",
		"replay LOG --config SITE":         "give --host <name>",
		"replay LOG --config SITE -a yaml": "adapter: yaml",
	} {
		check.Contains(t, wrongUse(t, strings.Fields(files.Replace(command))...), want, "%s", command)
	}
	for name, want := range map[string]string{"empty": "/empty: it is empty\n", "esc\x1b[31m": `/esc\x1b[31m: it is empty` + "\n"} { // which is no wrong use
		out, complaint, err := run(t.Context(), "recommend", writeFile(t, name, ""))
		check.That(t, out == "" && err != nil && err.Error() != "exiting with status 2" && strings.HasSuffix(complaint, want), "%q: got %q, %v and %q", name, out, err, complaint)
	}
}

// TestHostileLogsLeaveNoControlBytes prints a recommendation from a log whose keys are
// written by an attacker.
func TestHostileLogsLeaveNoControlBytes(t *testing.T) {
	var lines []combinedLine
	for n := range 50 {
		lines = append(lines, combinedLine{time.Duration(n) * time.Second, "203.0.113.66", "GET", "/", `\x1b[2J<script>alert(1)</script>`})
	}
	r := recommended(t, writeLog(t, lines...), "--config", zoneOf(t, "key header User-Agent {\nplain\n}\nlimit 5 1/s"))
	r.Zones[0].Withheld = nil // which would leave the list out
	r.Zones[0].Refused = append(r.Zones[0].Refused, clients.Key{Key: "\x1b[2Jkey", Sender: clients.Sender{Agent: "\x07agent", Asks: "/\x1b]0;"}})
	got := r.Text()
	check.That(t, !strings.ContainsAny(got, "\x1b\x07\x00") && strings.Contains(got, `\x1b[2Jkey`), "got control bytes, or no key, in %q", got)
}

// TestTheJSONOfARecommendationHasNoNulls: scripts iterate over its lists.
func TestTheJSONOfARecommendationHasNoNulls(t *testing.T) {
	got := ran(t, "recommend", "--json", writeLog(t, mixedLines()[:1]...))
	check.That(t, !strings.Contains(got, "null") && !strings.Contains(got, "NaN"), "got %s, want no null in it", got)
}

// TestALogOfAssetsOnlyHasNothingToRecommend and says so.
func TestALogOfAssetsOnlyHasNothingToRecommend(t *testing.T) {
	got := ran(t, "recommend", writeLog(t, combinedLine{0, "203.0.113.1", "GET", "/style.css", "x"}))
	check.Contains(t, got, "No zone charges any of these requests.", "want that no zone charges any")
}

// TestAZoneThatSettlesSecondsIsJudgedByThem: the time is charged when the response is there,
// into debt, and what is reserved counts until then.
func TestAZoneThatSettlesSecondsIsJudgedByThem(t *testing.T) {
	var b strings.Builder
	for n := range 300 {
		fmt.Fprintf(&b, `{"ts":%d.25,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"203.0.113.%d","proto":"HTTP/1.1","method":"GET","host":"example.com","uri":"/","headers":{}},"duration":4.25,"status":200,"size":1}`+"\n", logStart.Unix()+int64(n)*60, n%10)
	}
	log := writeFile(t, "access.log", b.String())
	for limit, refused := range map[string]int{"3 15/s": 0, "3 1/h": 280} {
		config := writeFile(t, "Caddyfile", ":80 {\nthrottle {\nzone work {\nsettle seconds\nlimit "+limit+"\n}\n}\n}\n")
		z := recommended(t, log, "--config", config, "--check", limit).Zones[0]
		best := z.Units.Best()
		check.That(t, z.Units.Load == 1275 && best.RefusedRequests == refused, "limit %s: got a load of %v and %+v, want 1275 seconds and %d refused", limit, z.Units.Load, best, refused)
	}
}

// One client with one request: the words agree with the numbers.
func TestRecommendCountsInWords(t *testing.T) {
	log := `192.0.2.1 - - [07/Mar/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "Mozilla/5.0"` + "\n" +
		`::1 - - [07/Mar/2026:10:00:01 +0000] "OPTIONS * HTTP/1.0" 200 5 "-" "Apache (internal dummy connection)"` + "\n" +
		`192.0.2.2 - - [07/Mar/2026:10:00:02 +0000] "CONNECT example.com:443 HTTP/1.1" 405 5 "-" "-"` + "\n"
	out := ran(t, "recommend", writeFile(t, "access.log", log))
	for _, want := range []string{"- Only 1 request was charged.", "1 request of 1 client from", "\nNo limit is recommended:\n"} {
		check.That(t, strings.Contains(out, want), "got\n%s\nwant %q", out, want)
	}
	for _, wrong := range []string{"1 requests", "1 clients", "Mind:"} {
		check.That(t, !strings.Contains(out, wrong), "got %q in\n%s", wrong, out)
	}
}

func TestRecommendSaysHowManyRefusalsItCannotSee(t *testing.T) {
	var log strings.Builder
	for i, unlogged := range []string{"", `,"unlogged":1200`, `,"unlogged":"many"`, `,"unlogged":34,"zones":[{"zone":"a","unlogged":34},{"zone":"b"}]`, `,"key":"\"unlogged\":99"`} {
		fmt.Fprintf(&log, `{"ts":%d.5,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"203.0.113.7","method":"GET","host":"example.com","uri":"/"},"duration":0.5,"status":429,"throttle":{"zone":"a","decision":"refused"%s}}`+"\n", logStart.Unix()+int64(i), unlogged)
	}
	r := recommended(t, writeFile(t, "access.log", log.String()))
	check.Equal(t, r.Log.Unlogged, 1234)
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "requests refused and not in the log, because refusal log kept them out: their clients seem quieter than they were: 1,234.") {
		t.Errorf("got the notes %s, want how many requests are missing", notes)
	}
}

// TestMatchersOnWhatTheLogHidesAreSaid: Caddy logs cookies as REDACTED, and combined logs hold
// two headers. A zone that matches by them is left out of a recommendation, and a replay says
// that it cannot know.
func TestMatchersOnWhatTheLogHidesAreSaid(t *testing.T) {
	redacted := writeFile(t, "access.log", strings.Repeat(`{"ts":1793600000.25,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"203.0.113.7","proto":"HTTP/1.1","method":"GET","host":"example.com","uri":"/","headers":{"Cookie":["REDACTED"]}},"duration":0.2,"status":200,"size":1}`+"\n", 9))
	readable := writeFile(t, "readable.log", `{"ts":1793600000.25,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"203.0.113.7","proto":"HTTP/1.1","method":"GET","host":"example.com","uri":"/","headers":{"Cookie":["a=b"]}},"duration":0.2,"status":200,"size":1}`+"\n")
	combined := writeLog(t, mixedLines()[:20]...)
	replaced := func(name, by string) string {
		data := check.Must(os.ReadFile(redacted))(t)
		return writeFile(t, name, strings.ReplaceAll(string(data), `{"Cookie":["REDACTED"]}`, by))
	}
	hashed, deleted := replaced("hashed.log", `{"Cookie":["b5d4045c"]}`), replaced("deleted.log", "{}")
	for _, c := range []struct {
		about, site, log, hidden string
	}{
		{"a cookie", "zone members {\nmatch header Cookie *logged_in*\nlimit 5 1/s\n}", redacted, "Cookie"},
		{"a cookie that can be read", "zone members {\nmatch header Cookie *logged_in*\nlimit 5 1/s\n}", readable, ""},
		{"a cost by a cookie", "zone members {\nlimit 50 1/s\ncost 5 {\nnot header Cookie *logged_in*\n}\n}", redacted, "Cookie"},
		{"exempt by a header", "zone members {\nlimit 5 1/s\nexempt header X-Secret s3cret\n}", combined, "X-Secret"},
		{"exempt by a header that Caddy logs", "zone members {\nlimit 5 1/s\nexempt header X-Secret s3cret\n}", redacted, ""},
		{"an expression", "zone members {\nlimit 5 1/s\nmatch expression `{http.request.header.X-Plan} == \"a\"`\n}", combined, "X-Plan"},
		{"a hashed cookie", "zone members {\nmatch header Cookie *logged_in*\nlimit 5 1/s\n}", hashed, "Cookie"},
		{"headers that were deleted", "zone members {\nmatch not header User-Agent *bot*\nlimit 5 1/s\n}", deleted, "User-Agent"},
		{"a cost in a header", "zone members {\nlimit 50 1/s\ncost {http.request.header.X-Cost}\n}", combined, "X-Cost"},
		{"the user agent", "zone members {\nlimit 5 1/s\nmatch header User-Agent *bot*\n}", combined, ""},
	} {
		config := writeFile(t, "Caddyfile", ":80 {\nthrottle {\nzone all {\nlimit 60 2/s\n}\n"+c.site+"\n}\n}\n")
		notes := strings.Join(recommended(t, c.log, "--config", config).Notes, "\n")
		left := "zone members is left out: its matchers or costs look at the header " + c.hidden + ", which the log does not show."
		got := strings.Contains(notes, left)
		check.That(t, got == (c.hidden != ""), "%s: recommend noted %q, want %q: %v", c.about, notes, left, c.hidden != "")
		r := ranJSON[tune.Report](t, "replay", "--config", config, c.log)
		said := "zone members: its matchers or costs look at the header " + c.hidden + ", which the log does not show: requests are judged without its value."
		notes = strings.Join(r.Notes, "\n")
		check.That(t, strings.Contains(notes, said) == (c.hidden != "") && !strings.Contains(notes, "left out"), "%s: replay noted %q, want %q: %v", c.about, notes, said, c.hidden != "")
		for _, z := range r.Zones {
			if marked := c.hidden != "" && z.Name == "members"; strings.Contains(z.Unknown, "look at the header "+c.hidden) != marked || !marked && z.Unknown != "" {
				t.Errorf("%s: got zone %s marked %q, want %v", c.about, z.Name, z.Unknown, marked)
			}
		}
	}
	routes := writeFile(t, "Caddyfile", ":80 {\n@in header Cookie *logged_in*\nhandle @in {\nrespond in\n}\nhandle {\nthrottle all 60 2/s\n}\n}\n")
	if notes := strings.Join(recommended(t, redacted, "--config", routes).Notes, "\n"); !strings.Contains(notes, "matchers of the config look at the header Cookie, which the log does not show") {
		t.Errorf("a matcher of a route: got the notes %q, want that the log does not show cookies", notes)
	}
}

// TestWhatALogLacksIsSaid: a zone whose key or cost is in no line must not seem to be judged by it.
func TestWhatALogLacksIsSaid(t *testing.T) {
	caddys := writeFile(t, "access.log", `{"ts":1793600000.25,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"203.0.113.7","proto":"HTTP/1.1","method":"GET","host":"example.com","uri":"/","headers":{"Cookie":["a=b"]}},"duration":0.2,"status":200,"size":1}`+"\n")
	rails := writeFile(t, "production.log", "Started GET \"/\" for 203.0.113.7 at 2026-11-01 10:00:00 +0000\nCompleted 200 OK in 5ms (Views: 1ms)\n")
	for _, c := range []struct{ log, zone, left, noted string }{
		{rails, "settle bytes 1MiB", "it settles bytes, and the log has no sizes", ""},
		{rails, "settle seconds", "", "most logs have that until its end"},
		{caddys, "settle bytes 1MiB", "", ""},
		{rails, "match protocol https", "its matchers ask for TLS, which only Caddy's log shows", ""},
		{caddys, "exempt tls", "", ""},
		{caddys, "key {http.request.tls.client.fingerprint}", "its key is who has authenticated, and a replay authenticates nobody", ""},
		{caddys, "key {http.auth.user.id}", "its key is who has authenticated, and a replay authenticates nobody", ""},
		{caddys, "key header X-Api-Key", "", "requests without the key of zone some, which go by its key missing: 1."},
		{caddys, "key cookie a", "", ""},
	} {
		notes := strings.Join(recommended(t, c.log, "--config", writeFile(t, "Caddyfile", ":80 {\nthrottle {\nzone all {\nlimit 60 2/s\n}\nzone some {\nlimit 60 2/s\n"+c.zone+"\n}\n}\n}\n")).Notes, "\n")
		check.That(t, strings.Contains(notes, "zone some is left out: "+c.left+".") == (c.left != ""), "%s: got the notes %q, want %q", c.zone, notes, c.left)
		check.That(t, strings.Contains(notes, c.noted) && (c.noted != "" || !strings.Contains(notes, "without the key")), "%s: got the notes %q, want %q", c.zone, notes, c.noted)
	}
	site := writeFile(t, "Caddyfile", ":80 {\n@s protocol https\nthrottle @s some 60 2/s\nthrottle all 60 2/s\n}\n")
	for log, want := range map[string]bool{rails: true, caddys: false} {
		notes := strings.Join(recommended(t, log, "--config", site).Notes, "\n")
		check.That(t, strings.Contains(notes, "matchers of the config ask for TLS") == want, "%s, a matcher of a directive: got the notes %q, want it %v", log, notes, want)
	}
}
