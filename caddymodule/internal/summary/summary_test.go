package summary

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/accesslog"
)

// line is one of Caddy's access log, at a second after noon.
func line(second int, uri, throttle string) string {
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

func summaryOf(t *testing.T, lines ...string) *Summary {
	t.Helper()
	r, err := accesslog.Open([]string{"-"}, accesslog.Options{Stdin: strings.NewReader(strings.Join(lines, ""))})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := new(Summary)
	for req, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		s.Add(req)
	}
	return s
}

const (
	pagesA    = `{"zone":"pages","decision":"admitted","key":"203.0.113.7","cost":1,"level":3,"capacity":10}`
	pagesFull = `{"zone":"pages","decision":"refused","reason":"capacity","key":"203.0.113.9","cost":1,"level":10,"capacity":10,"retry_after":5}`
	// The fuller zone decides, and the other one was asked, too.
	both = `{"zone":"login","decision":"shadow_refused","reason":"blocked","key":"203.0.113.7","cost":1,"level":5,"capacity":5,"zones":[` +
		`{"zone":"login","decision":"shadow_refused","reason":"blocked","key":"203.0.113.7","cost":1,"level":5,"capacity":5},` +
		`{"zone":"pages","decision":"admitted","key":"203.0.113.7","cost":1,"level":9.5,"capacity":10}]}`
	slotOnly = `{"zone":"slots","decision":"admitted","key":"203.0.113.7"}`
)

// TestEveryZoneThatWasAskedIsCounted: the deciding zone is not the only one.
func TestEveryZoneThatWasAskedIsCounted(t *testing.T) {
	s := summaryOf(t,
		line(0, "/", pagesA), line(1, "/?a", both), line(2, "/?b", both),
		line(3, "/x?1", pagesFull), line(4, "/x?2", pagesFull), line(5, "/y", pagesFull), line(6, "/", slotOnly), line(7, "/style.css", ""))
	if s.Requests != 8 || s.Decided != 7 || s.Broken != 0 {
		t.Errorf("got %d requests, %d decided, %d broken, want 8, 7 and 0", s.Requests, s.Decided, s.Broken)
	}
	zones := s.Zones()
	var names []string
	for _, z := range zones {
		names = append(names, z.Zone)
	}
	if fmt.Sprint(names) != "[login pages slots]" {
		t.Fatalf("got zones %v, want login, pages and slots", names)
	}
	login, pages, slots := zones[0], zones[1], zones[2]
	if want := map[string]int{"shadow_refused": 2}; !reflect.DeepEqual(login.Decisions, want) {
		t.Errorf("login: got %v, want %v", login.Decisions, want)
	}
	if want := map[string]map[string]int{"shadow_refused": {"blocked": 2}}; !reflect.DeepEqual(login.Reasons, want) {
		t.Errorf("login: got %v, want %v", login.Reasons, want)
	}
	if want := map[string]int{"admitted": 3, "refused": 3}; !reflect.DeepEqual(pages.Decisions, want) {
		t.Errorf("pages: got %v, want %v", pages.Decisions, want)
	}
	if pages.Requests != 6 || pages.Keys != 2 || pages.RefusedKeys != 1 {
		t.Errorf("pages: got %d requests, %d keys, %d refused, want 6, 2 and 1", pages.Requests, pages.Keys, pages.RefusedKeys)
	}
	if want := (Near{Above: 1}); pages.Nearest != want {
		t.Errorf("pages: got %+v, want %+v", pages.Nearest, want)
	}
	if want := []Count{{"GET /x", 2}, {"GET /y", 1}}; !reflect.DeepEqual(pages.Routes, want) {
		t.Errorf("pages: got routes %v, want %v", pages.Routes, want)
	}
	if len(pages.Top) != 1 || pages.Top[0].Refused != 3 || pages.Top[0].Last.Sub(pages.Top[0].First).Seconds() != 2 {
		t.Errorf("pages: got %+v, want one key with 3 refusals in 2 seconds", pages.Top)
	}
	if len(pages.Hours) != 1 || pages.Hours[0].Count != 3 {
		t.Errorf("pages: got %v by hour, want 3 in one hour", pages.Hours)
	}
	if slots.Nearest != (Near{}) {
		t.Errorf("slots: got %+v, want nothing, because the zone has no buckets", slots.Nearest)
	}
}

func TestAFieldThatIsNoneIsCountedAndNoMore(t *testing.T) {
	s := summaryOf(t, line(0, "/", pagesA), line(1, "/", `"text"`), line(2, "/", `{"zone":7}`), line(3, "/", `[]`), line(4, "/", `{}`))
	if s.Requests != 5 || s.Decided != 1 || s.Broken != 3 {
		t.Errorf("got %d requests, %d decided, %d broken, want 5, 1 and 3", s.Requests, s.Decided, s.Broken)
	}
}

func TestTheTextSaysWhatWasCountedAndEscapesIt(t *testing.T) {
	evil := strings.ReplaceAll(pagesFull, "203.0.113.9", `\u001b[2Jevil`)
	var b strings.Builder
	if err := summaryOf(t, line(0, "/", pagesA), line(1, "/\x1b]0;owned\x07", evil), line(2, "/", both)).Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"3 requests from 2026-11-22 12:00:00 to 2026-11-22 12:00:02 UTC\n",
		"A zone was asked about 3 of them (100.0%).\n",
		"zone pages: 3 requests of 2 keys\n",
		"  shadow refused          1  100.0%  blocked 1\n",
		`\x1b[2Jevil`,
		`1  GET /\x1b]0;owned\a`,
		"above 90%  ██████████████████████████████ 1\n",
		"How full the buckets of 1 other key became, at most:\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got\n%s\nwant it to contain %q", b.String(), want)
		}
	}
	if strings.ContainsAny(b.String(), "\x1b\x07") {
		t.Errorf("got control bytes in %q", b.String())
	}
}

func TestWithoutARefusalTheTextSpeaksOfNoOtherKeys(t *testing.T) {
	var b strings.Builder
	if err := summaryOf(t, line(0, "/", pagesA)).Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := "How full the buckets of 1 key became, at most:\n"; !strings.Contains(b.String(), want) {
		t.Errorf("got\n%s\nwant it to contain %q", b.String(), want)
	}
}

func TestALogWithoutTheFieldSaysWhatToRunInstead(t *testing.T) {
	var b strings.Builder
	if err := summaryOf(t, line(0, "/", "")).Write(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "No line has the field throttle") || !strings.Contains(b.String(), "run caddy throttle replay or recommend") {
		t.Errorf("got %q, want that no line has the field, and what to run", b.String())
	}
}

func TestASummarySaysHowManyRefusalsItCannotSee(t *testing.T) {
	s := summaryOf(t,
		line(0, "/", `{"zone":"pages","decision":"refused","reason":"capacity","key":"a","level":10,"capacity":10,"unlogged":1200}`),
		line(1, "/", strings.ReplaceAll(both, `"level":9.5`, `"level":9.5,"unlogged":34`)),
		line(2, "/?unlogged", pagesA),
	)
	unlogged := make(map[string]int)
	for _, z := range s.Zones() {
		unlogged[z.Zone] = z.Unlogged
	}
	if want := map[string]int{"pages": 1234, "login": 0}; !reflect.DeepEqual(unlogged, want) {
		t.Errorf("got %v, want %v", unlogged, want)
	}
	var text strings.Builder
	if err := s.Write(&text); err != nil {
		t.Fatal(err)
	}
	if want := "1,234"; strings.Count(text.String(), "refused and not in the log") != 1 || !strings.Contains(text.String(), want) {
		t.Errorf("got\n%s\nwant a line with %s", text.String(), want)
	}
}
