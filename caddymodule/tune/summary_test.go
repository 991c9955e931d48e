package tune_test

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// summaryLine is one of Caddy's access log, at a second after noon.
func summaryLine(second int, uri, throttle string) string {
	if throttle != "" {
		throttle = `,"throttle":` + throttle
	}
	quoted, err := json.Marshal(uri)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"level":"info","ts":%d.5,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"203.0.113.7","client_ip":"203.0.113.7","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":%s,"headers":{}},"duration":0.5,"size":10,"status":200%s}`+"\n",
		1795348800+second, quoted, throttle)
}

// summaryOf returns the summary of a log, and its text.
func summaryOf(t *testing.T, lines ...string) (*tune.Report, string) {
	t.Helper()
	file := writeFile(t, "access.log", strings.Join(lines, ""))
	return ranJSON[tune.Report](t, "summary", file), ran(t, "summary", file)
}

const (
	summaryAdmitted = `{"zone":"pages","decision":"admitted","key":"203.0.113.7","cost":1,"level":3,"capacity":10}`
	summaryRefused  = `{"zone":"pages","decision":"refused","reason":"capacity","key":"203.0.113.9","cost":1,"level":10,"capacity":10,"retry_after":5}`
	// The fuller zone decides, and the other one was asked, too.
	summaryBoth = `{"zone":"login","decision":"shadow_refused","reason":"blocked","key":"203.0.113.7","cost":1,"level":5,"capacity":5,"zones":[` +
		`{"zone":"login","decision":"shadow_refused","reason":"blocked","key":"203.0.113.7","cost":1,"level":5,"capacity":5},` +
		`{"zone":"pages","decision":"admitted","key":"203.0.113.7","cost":1,"level":9.5,"capacity":10}]}`
	summarySlots = `{"zone":"slots","decision":"delayed","key":"203.0.113.7","delay":2.5}`
)

// The deciding zone is not the only one.
func TestASummaryCountsEveryZoneThatWasAsked(t *testing.T) {
	r, text := summaryOf(t,
		summaryLine(0, "/", summaryAdmitted), summaryLine(1, "/?a", summaryBoth), summaryLine(2, "/?b", summaryBoth),
		summaryLine(3, "/x?1", summaryRefused), summaryLine(4, "/x?2", summaryRefused), summaryLine(5, "/y", summaryRefused),
		summaryLine(6, "/", summarySlots+`,"in_flight":{"decision":"refused"}`), summaryLine(7, "/style.css", ""))
	want := "Note: requests that a zone was asked about: 7 of 8.\nNote: requests that in_flight refused, which no zone above counts as refused: 1. "
	check.That(t, strings.Contains(text, want), "got\n%s\nwant %q", text, want)
	check.Assume(t, len(r.Zones) == 3 && r.Zones[0].Name == "login" && r.Zones[1].Name == "pages" && r.Zones[2].Name == "slots", "got %+v, want the zones login, pages and slots", r.Zones)
	login, pages, slots := r.Zones[0], r.Zones[1], r.Zones[2]
	check.Equal(t, fmt.Sprint(login.Decisions, login.Reasons["blocked"]), "map[shadow_refused:2] 2", "login, want all blocked")
	check.Equal(t, fmt.Sprint(pages.Decisions), "map[admitted:3 refused:3]", "pages")
	check.That(t, pages.Requests == 6 && pages.Keys == 2 && pages.RefusedKeys == 1 && pages.Fullest == [4]int{0, 0, 0, 1}, "pages: got %+v, want 6 requests of 2 keys, one refused and the other near the limit", pages)
	check.Slices(t, pages.Routes, []tune.Route{{Path: "/x", Refused: 2}, {Path: "/y", Refused: 1}}, "pages")
	worst := pages.Worst
	check.That(t, len(worst) == 1 && worst[0].Refused == 3 && worst[0].LastOver.Sub(worst[0].FirstOver).Seconds() == 2, "pages: got %+v, want one key with 3 refusals in 2 seconds", worst)
	check.That(t, slots.Fullest == [4]int{} && slots.LongestDelay == 2.5, "slots: got %+v, want a delay of 2.5 s and no buckets", slots)
}

// TestASummaryListsNoPathThatScrapersMakeUp: of too many paths, only the most frequent are counted right.
func TestASummaryListsNoPathThatScrapersMakeUp(t *testing.T) {
	var lines []string
	for n := range 3000 {
		lines = append(lines, summaryLine(n, fmt.Sprint("/page/", n%1500), summaryRefused))
	}
	_, text := summaryOf(t, lines...)
	check.Contains(t, text, "\nRefused by path:\n\n  no path has 1% of them\n")
	for range 60 {
		lines = append(lines, summaryLine(3000, "/search", summaryRefused))
	}
	_, text = summaryOf(t, lines...)
	check.Contains(t, text, "\nRefused by path:\n\n        60  /search\n\n")
}

func TestTheTextOfASummary(t *testing.T) {
	evil := strings.NewReplacer("203.0.113.9", `\u001b[2Jevil`, "pages", `\u001b[2Jzone`, "refused", `\u001b[2Jrefused`, "capacity\",", `\u001b[2Jwhy",`).Replace(summaryRefused)
	for name, test := range map[string]struct{ lines, want []string }{
		"counts fields that are none": {
			[]string{summaryLine(0, "/", summaryAdmitted), summaryLine(1, "/", `"text"`), summaryLine(2, "/", `{"zone":7}`), summaryLine(3, "/", `[]`), summaryLine(4, "/", `{}`)},
			[]string{"asked about: 1 of 5.\n", "could not be read: 3.\n"},
		},
		"escapes what clients sent": {
			[]string{summaryLine(0, "/", summaryAdmitted), summaryLine(1, "/\x1b]0;owned\x07", evil), summaryLine(2, "/", summaryBoth)},
			[]string{"3 requests from 2026-11-22 12:00:00 to 2026-11-22 12:00:02 UTC", `\x1b[2Jevil`, `Zone \x1b[2Jzone`, `\x1b[2Jrefused  `, `for: \x1b[2Jwhy 1`, `1  /\x1b]0;owned\a`, "75% or more        1\n"},
		},
		"doubts the unit of durations": {
			[]string{strings.ReplaceAll(summaryLine(0, "/", summaryAdmitted), `"duration":0.5`, `"duration":52000`)},
			[]string{"that is hardly true", "--time-field duration:ms"},
		},
		"does not know people without assets": {
			[]string{summaryLine(0, "/", summaryRefused), summaryLine(1, "/a.css", "")},
			[]string{"people among them           0\n", "Note: No client looks like a person"},
		},
		"says what to run instead": {[]string{summaryLine(0, "/", "")}, []string{"No line has the field throttle", "run caddy throttle replay or recommend"}},
	} {
		_, text := summaryOf(t, test.lines...)
		for _, want := range test.want {
			check.That(t, strings.Contains(text, want) && !strings.ContainsAny(text, "\x1b\x07"), "%s: got\n%q\nwant it to contain %q, and no control bytes", name, text, want)
		}
	}
}

func TestASummarySaysHowManyRefusalsItCannotSee(t *testing.T) {
	r, text := summaryOf(t,
		summaryLine(0, "/", `{"zone":"pages","decision":"refused","reason":"capacity","key":"a","level":10,"capacity":10,"unlogged":1200}`),
		summaryLine(1, "/", strings.ReplaceAll(summaryBoth, `"level":9.5`, `"level":9.5,"unlogged":34`)),
		summaryLine(2, "/?unlogged", summaryAdmitted))
	login, pages := r.Zones[0].Unlogged, r.Zones[1].Unlogged
	check.That(t, login == 0 && pages == 1234 && r.Log.Unlogged == 1234, "got %d, %d and %d, want 0, 1234 and 1234", login, pages, r.Log.Unlogged)
	check.That(t, strings.Count(text, "refused too, but by refusal log not in the log, and in no figure here: 1,234") == 1, "got\n%s\nwant a line with 1,234", text)
}

// TestSummaryOfALevelBeyondAllCapacities is one of the fullest, and no crash.
func TestSummaryOfALevelBeyondAllCapacities(t *testing.T) {
	r, _ := summaryOf(t, summaryLine(0, "/", `{"zone":"pages","decision":"admitted","key":"k","cost":1,"level":1e12,"capacity":1e-9}`))
	check.That(t, r.Zones[0].Fullest[3] == 1, "got %v", r.Zones[0].Fullest)
}

// TestExamplesReadOldLogs as Caddy names those that it has rolled.
func TestExamplesReadOldLogs(t *testing.T) {
	for _, command := range []string{"replay", "recommend", "summary"} {
		_, logs, _ := strings.Cut(ran(t, command, "--help"), " /var/log/caddy/")
		logs, _, _ = strings.Cut(logs, "\n")
		matches, err := path.Match(logs, "access-2026-11-30T00-00-00.000.log.gz")
		check.That(t, matches && err == nil, "%s: the example reads %q, and so no log that was rolled", command, logs)
	}
}
