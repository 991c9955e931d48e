package caddymodule

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
)

// suggested is what an error says to write instead.
var suggested = regexp.MustCompile(`(?s)in zone "pages": .*want(?: in the block of in_flight at Caddyfile:\d+)?\s(.*), at Caddyfile:\d+$`)

func adaptZone(lines string) error { return adaptThrottle("zone pages {\n" + lines + "\n}") }

func adaptThrottle(lines string) error {
	return adapts("http://example.com {\n\tthrottle {\n" + lines + "\n\t}\n}\n")
}

func adapts(file string) error {
	_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(file), map[string]any{"filename": "Caddyfile"})
	return err
}

// beside returns lines beside which a suggested line means something.
func beside(line string) string {
	switch {
	case strings.HasPrefix(line, "limit "), strings.HasPrefix(line, "in_flight "):
		return ""
	case strings.HasPrefix(line, "read_body "):
		return "limit 60 2/s\ncost body_items\n"
	case strings.Contains(line, " unlisted "):
		return "limit 60 2/s\noverride 203.0.113.7 600 10/s\n"
	}
	return "limit 60 2/s\n"
}

// Each word of a former grammar or of another limiter is answered with lines that adapt,
// with whatever stands behind the word.
func TestEveryLineThatAnErrorSuggestsAdapts(t *testing.T) {
	for _, word := range slices.Sorted(maps.Keys(zonefile.FormerWords)) {
		for _, rest := range []string{"", " 5", " 10r/s", " 1m", " 10.0.0.0/8", " share", " fit", " off", " x y", " \"Too many\"", " 64KiB", " status 401", " member issued sid", ";"} {
			if zonefile.OptionNamed(word) >= 0 {
				t.Fatalf("%s is an option of a zone", word)
			}
			for _, more := range []string{"", "in_flight 5\n", "delay 2\n"} {
				err := adaptZone(more + word + rest)
				if err == nil {
					t.Errorf("%s%s: got no error", word, rest)
					continue
				}
				found := suggested.FindStringSubmatch(err.Error())
				if found == nil {
					if more != "" && strings.Contains(err.Error(), "remove it: the zone has in_flight at Caddyfile:4 already") {
						continue
					}
					t.Errorf("%s%s: got %v, want lines to write instead", word, rest, err)
					continue
				}
				if more != "" && !strings.HasPrefix(found[1], strings.Fields(more)[0]) {
					continue // it does not take the place of that line
				}
				if err := adaptZone(beside(found[1]) + found[1]); err != nil {
					t.Errorf("%q after %q: got %v for what it suggests:\n%s", word+rest, more, err, found[1])
				}
			}
		}
	}
}

func TestATranslationSeesWhatStandsBesideTheWord(t *testing.T) {
	for _, test := range []struct{ zone, want string }{
		{"in_flight 5\nmax_wait 8s", "in_flight 5 wait 8s"},
		{"max_wait 8s\nin_flight 5", "in_flight 5 wait 8s"},
		{"limit 60 2/s\nmax_wait 8s", "delay wait 8s"},
		{"delay 4\nmax_waiting 50", "delay 4 queue 50"},
		{"rate=10r/s burst=20 nodelay", "limit 21 10/s"},
		{"limit_req zone=one burst=20;", "limit 21 2/s"},
		{"capacity 60\nleak 2/s", "limit 60 2/s"},
		{"leak 2/s\ncapacity 60", "limit 60 2/s"},
		{"events 100\nwindow 1m", "limit 100 100/1m"},
		{"rate 100\nper 1m", "limit 120 100/1m"},
		{"rate 100\nevery 1h", "limit 120 100/1h"},
		{"rate 100\nduration 1m", "limit 120 100/1m"},
		{"key form log fold wordpress\nmissing_key share", "key form log fold wordpress missing share"},
		{"count_only status 401 403", "settle status 401 403 1 after"},
		{"max_body 16KiB\nunread_body_cost 5", "read_body 16KiB"},
		{"in_flight 5\nshare", "in_flight 5 {\n\tshare\n}"},
		{"capcity 60\nleak 2/s", "limit 60 2/s"},
		{"message Please wait", `refusal message "Please wait"`},
		{"safelist 203.0.113.7", "exempt client_ip 203.0.113.7"},
		{"penalty 1h", "block 1h"},
		{"max_connections 20", "in_flight 20"},
	} {
		err := adaptZone(test.zone)
		if err == nil {
			t.Errorf("%q: got no error", test.zone)
			continue
		}
		if found := suggested.FindStringSubmatch(err.Error()); found == nil || found[1] != test.want {
			t.Errorf("%q: got %v, want %s", test.zone, err, test.want)
		}
	}
	for words, want := range map[string]string{
		"limit 120/2s":        "limit 120/2s: the burst is missing: want limit 120 120/2s",
		"limit 10 per minute": "the burst is missing: want limit 10 10/m",
		"limit 120 2r/s":      "did you mean 2/s?",
		"limit 60":            "the rate is missing: want limit 60 60/m",
	} {
		if err := adaptZone(words); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", words, err, want)
		}
	}
}

// mistakenAt is an error of the adapter with its line.
var (
	mistakenAt = regexp.MustCompile(`(?s)^(.*), at Caddyfile:(\d+)$`)
	remedy     = regexp.MustCompile(`(?s)want(?: in the block of \w+ at Caddyfile:(\d+))?\s(.*)$`)
	tooAt      = regexp.MustCompile(`(?:of|and) \w+ at Caddyfile:(\d+)(?:, | and)`)
	wordMeant  = regexp.MustCompile(`"([^"]+)": did you mean ([^?]+)\?$`)
)

// follow does what a message says with the lines it names, and no more.
func follow(t *testing.T, file, message string) string {
	t.Helper()
	lines := strings.Split(file, "\n")
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n - 1
	}
	found := mistakenAt.FindStringSubmatch(message)
	if found == nil {
		t.Fatalf("%s\ngot %s, want a line", file, message)
	}
	here := number(found[2])
	if word := wordMeant.FindStringSubmatch(found[1]); word != nil {
		lines[here] = strings.Replace(lines[here], word[1], word[2], 1)
		return strings.Join(lines, "\n")
	}
	write := remedy.FindStringSubmatch(found[1])
	switch {
	case strings.Contains(message, "is given twice in "):
		lines[here] = ""
		return strings.Join(lines, "\n")
	case strings.Contains(message, "remove it: "):
		lines[here] = ""
		return strings.Join(lines, "\n")
	case write == nil:
		t.Fatalf("%s\ngot %s, want lines to write", file, message)
	}
	for _, too := range tooAt.FindAllStringSubmatch(found[1][:len(found[1])-len(write[2])], -1) {
		lines[number(too[1])] = ""
	}
	switch {
	case strings.Contains(message, "and beside this zone want"):
		zone := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "zone pages {") })
		lines[here], lines[zone] = "", write[2]+"\n"+lines[zone]
	case write[1] != "":
		lines[here], lines[number(write[1])] = "", lines[number(write[1])]+"\n"+write[2]
	default:
		lines[here] = write[2]
	}
	return strings.Join(lines, "\n")
}

// followed does what each message says until the file adapts, and returns the first one.
func followed(t *testing.T, m mistake) (first string) {
	t.Helper()
	file := m.caddyfile()
	var messages []string
	for range 5 {
		err := adapts(file)
		if err == nil {
			return append(messages, "")[0]
		}
		messages = append(messages, err.Error())
		file = follow(t, file, err.Error())
	}
	t.Errorf("%s\ngot %s, want it to adapt in the end; it became\n%s", m.caddyfile(), strings.Join(messages, "\nthen "), file)
	return messages[0]
}

// An owner who pastes what each message shows where it says has a file that adapts.
func TestASuggestionPastedInPlaceAdapts(t *testing.T) {
	for _, m := range []mistake{
		{"zone", "limit 120 2/s\nnodelay", "remove it: the zone has limit 120 2/s at Caddyfile:4 already"},
		{"zone", "limit 120 2/s\nburst 10", "remove it: the zone has limit 120 2/s at Caddyfile:4 already"},
		{"zone", "window 1m\nlimit 120 2/s", "remove it: the zone has limit 120 2/s at Caddyfile:5 already"},
		{"zone", "limit 100\nwindow 1h", "want limit 100 100/1h"},
		{"zone", "window 1h\nlimit 100", "instead of this and of limit at Caddyfile:5, want limit 100 100/1h"},
		{"zone", "rate 2r/s\nburst 10", "want limit 10 2/s"},
		{"zone", "burst 10\nrate 2r/s", "want limit 10 2/s"},
		{"zone", "limit 120 2/s\nshare", "share and limit exclude each other: remove it, and beside this zone want\nzone turns {\n\tin_flight 5 {\n\t\tshare\n\t}\n}"},
		{"zone", "in_flight 5\nshare", "instead of this and of in_flight at Caddyfile:4, want\nin_flight 5 {\n\tshare\n}"},
		{"zone", "in_flight 5\nmax_wait 8s", "instead of this and of in_flight at Caddyfile:4, want in_flight 5 wait 8s"},
		{"zone", "in_flight 5 {\nwait 8s\n}\nshare", "want in the block of in_flight at Caddyfile:4\nshare"},
		{"zone", "limit 60 2/s\nrefusal {\nstatus 503\n}\npage", "want in the block of refusal at Caddyfile:5\npage {\n\ttitle \"My site\"\n}"},
		{"zone", "in_flight 5 {\nwait 8s\n}\nmax_waiting 9", "want in the block of in_flight at Caddyfile:4\nqueue 9"},
		{"zone", "in_flight 5 wait 8s\nmax_wait 9s", "instead of this and of in_flight at Caddyfile:4, want in_flight 5 wait 9s"},
		{"zone", "limit 60 2/s\nrefusal {\nstatus 503\n}\nstatus 429", "want in the block of refusal at Caddyfile:5\nstatus 429"},
		{"zone", "limit 120 2/s\nwhitelist 192.0.2.1 198.51.100.0/24", "want\nexempt client_ip 192.0.2.1\nexempt client_ip 198.51.100.0/24"},
		{"zone", "limit 120 2/s\nallowlist a b", "want exempt client_ip 203.0.113.7"},
		{"zone", "limit 120 2/s\nallowlist 192.0.2.1 office", "want exempt client_ip 192.0.2.1"},
		{"zone", "limit 120 2/s\ndeny evil.example", "want override 203.0.113.7 deny"},
		{"zone", "limit 120 2/s\nblacklist 192.0.2.1 192.0.2.2", "want\noverride 192.0.2.1 deny\noverride 192.0.2.2 deny"},
		{"block", "pages 120 2/s", "want\nzone pages {\n\tlimit 120 2/s\n}"},
		{"block", "limit 120 2/s", "want\nzone pages {\n\tlimit 120 2/s\n}"},
		{"zone", "limit 120 2/s\nenforce 10%", "did you mean 10?"},
		{"zone", "limit 120 2/s\nrefusal jitter 20%", "did you mean 20?"},
		{"zone", "rps 10", "want limit 10 10/s"},
		{"zone", "requests_per_minute 60\nburst 20", "want limit 20 60/m"},
		{"zone", "max_events 100\nwindow 1m", "want limit 100 100/1m"},
		{"zone", "limit 120 2", "the rate has no unit: want limit 120 2/s"},
		{"zone", "limit 10 1m", "that is a window: want limit 10 10/1m"},
		{"zone", "limit 10 per minute", "the burst is missing: want limit 10 10/m"},
		{"zone", "limit 10/s 60", "the capacity comes first: want limit 60 10/s"},
		{"zone", "limit 60", "the rate is missing: want limit 60 60/m"},
		{"zone", "limit 2r/s burst=10", "want limit 11 2/s"},
		{"site", "throttle pages 120 2", "the rate has no unit: want throttle pages 120 2/s"},
		{"site", "throttle pages 2r/s burst=10", "that is nginx's: want throttle pages 11 2/s"},
		{"site", "throttle pages rate=2r/s burst=10 nodelay", "want throttle pages 11 2/s"},
		{"site", "throttle pages 120 per minute", "the burst is missing: want throttle pages 120 120/m"},
		{"site", "throttle pages rps 10", "unexpected \"rps\" after pages: want throttle pages 10 10/s"},
		{"site", "throttle pages 120/2s", "the burst is missing: want throttle pages 120 120/2s"},
		{"site", "throttle pages {remote_host} 10 1m", "that is a window: want throttle pages {http.request.remote.host} 10 10/1m"},
		{"site", "throttle pages events 100 window 1m", "unexpected \"events\" after pages: want throttle pages 100 100/1m"},
		{"site", "throttle pages 120 2/s nodelay", "unexpected \"nodelay\" after 2/s: want throttle pages 120 2/s"},
		{"site", "throttle pages 120 2/s whitelist 192.0.2.1", "want\nthrottle pages 120 2/s {\n\texempt client_ip 192.0.2.1\n}"},
		{"site", "throttle pages 120 2/s max_wait 8s", "want\nthrottle pages 120 2/s {\n\tdelay wait 8s\n}"},
		{"site", "throttle pages client_ip 120 2/s shadow block 10m", "want throttle pages client_ip 120 2/s"},
		{"site", "throttle pages 120 2/s on_store_error allow", "want\nthrottle pages 120 2/s {\n\ton_store_error allow\n}"},
		{"site", "throttle pages 120 2/s refusal message \"Too many.\" status 503", "want\nthrottle pages 120 2/s {\n\trefusal message \"Too many.\" status 503\n}"},
		{"site", "throttle pages 120 2/s share", "want throttle pages 120 2/s"},
		{"site", "throttle pages client_ip 10/s 60", "the capacity comes first: want throttle pages client_ip 60 10/s"},
		{"site", "throttle pages header X-Api-Key missing share 600 10/s", ""},
		{"site", "throttle pages form message query rate 5 1/s", ""},
	} {
		if first := followed(t, m); !strings.Contains(first, m.says) || m.says == "" && first != "" {
			t.Errorf("%s\ngot %s, want %s", m.text, first, m.says)
		}
	}
}

// Beside a limit, too, each word is answered with what to do to the file.
func TestEveryFormerWordBesideALimitIsAnsweredWithWhatToDo(t *testing.T) {
	for _, word := range slices.Sorted(maps.Keys(zonefile.FormerWords)) {
		for _, rest := range []string{"", " 5", " 10r/s", " 1m", " 10.0.0.0/8", " share", " x y"} {
			for _, more := range []string{"", "in_flight 5\n", "in_flight 5 {\nbuffer 8MiB\n}\n", "delay 2\n", "refusal {\nstatus 503\n}\n"} {
				if word == "count_only" && strings.HasPrefix(more, "delay") {
					continue // a charge after the answer and a queue before it exclude each other
				}
				needs := ""
				switch {
				case strings.Contains(word, "body"):
					needs = "cost body_items\n"
				case word == "unlisted_key":
					needs = "override 203.0.113.8 600 10/s\n"
				}
				followed(t, mistake{"zone", "limit 60 2/s\n" + needs + more + word + rest, ""})
				if needs == "" {
					followed(t, mistake{"site", "throttle pages 60 2/s " + word + rest, ""})
				}
			}
		}
	}
}
