package caddymodule

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	zonefile "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/caddyfile"
)

// suggested is what an error says to write instead.
var suggested = regexp.MustCompile(`(?s)in zone "pages": want (.*), at Caddyfile:\d+$`)

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
		{"limit_req zone=one burst=20;", "limit 21 2/s\ndelay"},
		{"capacity 60\nleak 2/s", "limit 60 2/s"},
		{"leak 2/s\ncapacity 60", "limit 60 2/s"},
		{"events 100\nwindow 1m", "limit 100 100/1m"},
		{"rate 100\nper 1m", "limit 120 100/1m"},
		{"rate 100\nevery 1h", "limit 120 100/1h"},
		{"rate 100\nduration 1m", "limit 120 100/1m"},
		{"key form log fold wordpress\nmissing_key share", "key form log fold wordpress missing share"},
		{"count_only status 401 403", "settle status 401 403 1 after"},
		{"max_body 16KiB\nunread_body_cost 5", "read_body 16KiB"},
		{"unread_body_cost 5\nmax_body 16KiB", "read_body 16KiB else 5"},
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
		"limit 120/2s":        "limit 120/2s: the burst is missing: limit 120 120/2s",
		"limit 10 per minute": "the burst is missing: limit 10 10/m",
		"limit 120 2r/s":      "did you mean 2/s?",
		"limit 60":            "the rate is missing: limit 60 60/m",
	} {
		if err := adaptZone(words); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", words, err, want)
		}
	}
}

// A suggestion that is pasted in place of what it is about adapts.
func TestASuggestionPastedInPlaceAdapts(t *testing.T) {
	for _, test := range []struct{ throttle, want, pasted string }{
		{"zone a {\nlimit 120 2/s\nnodelay\n}", "remove it: the zone has limit 120 2/s already", "zone a {\nlimit 120 2/s\n}"},
		{"zone a {\nlimit 120 2/s\nburst 10\n}", "remove it: the zone has limit 120 2/s already", "zone a {\nlimit 120 2/s\n}"},
		{"zone a {\nwindow 1m\nlimit 120 2/s\n}", "remove it: the zone has limit 120 2/s already", "zone a {\nlimit 120 2/s\n}"},
		{"zone a {\nlimit 100\nwindow 1h\n}", "limit 100 100/1h", "zone a {\nlimit 100 100/1h\n}"},
		{"zone a {\nwindow 1h\nlimit 100\n}", "want limit 100 100/1h", "zone a {\nlimit 100 100/1h\n}"},
		{"zone a {\nrate 2r/s\nburst 10\n}", "want limit 11 2/s", "zone a {\nlimit 11 2/s\n}"},
		{"zone a {\nburst 10\nrate 2r/s\n}", "want limit 11 2/s", "zone a {\nlimit 11 2/s\n}"},
		{"zone a {\nrank member told X-User\n}", "rank member told X-User *_session", "zone a {\nin_flight 5 {\nshare\nrank member told X-User *_session\n}\n}"},
		{"zone a {\nlimit 120 2/s\nshare\n}", "want a zone of its own, since share and limit exclude each other:\nzone turns {\n\tin_flight 5 {\n\tshare\n}\n}", "zone a {\nlimit 120 2/s\n}\nzone turns {\n\tin_flight 5 {\n\tshare\n}\n}"},
		{"zone a {\nlimit 120 2/s\nwhitelist 192.0.2.1 198.51.100.0/24\n}", "want exempt client_ip 192.0.2.1 198.51.100.0/24", "zone a {\nlimit 120 2/s\nexempt client_ip 192.0.2.1 198.51.100.0/24\n}"},
		{"zone a {\nlimit 120 2/s\nblacklist 192.0.2.1 192.0.2.2\n}", "want override 192.0.2.1 deny\noverride 192.0.2.2 deny", "zone a {\nlimit 120 2/s\noverride 192.0.2.1 deny\noverride 192.0.2.2 deny\n}"},
		{"pages 120 2/s", "want\nzone pages {\n\tlimit 120 2/s\n}", "zone pages {\n\tlimit 120 2/s\n}"},
		{"limit 120 2/s", "want\nzone pages {\n\tlimit 120 2/s\n}", "zone pages {\n\tlimit 120 2/s\n}"},
		{"zone a {\nlimit 120 2/s\nenforce 10%\n}", "did you mean 10?", "zone a {\nlimit 120 2/s\nenforce 10\n}"},
		{"zone a {\nlimit 120 2/s\nrefusal jitter 20%\n}", "did you mean 20?", "zone a {\nlimit 120 2/s\nrefusal jitter 20\n}"},
		{"zone a {\nlimit 120 2/s\nshadow 50%\n}", "did you mean enforce 50?", "zone a {\nlimit 120 2/s\nenforce 50\n}"},
		{"zone a {\nrps 10\n}", "want limit 10 10/s", "zone a {\nlimit 10 10/s\n}"},
		{"zone a {\nrequests_per_minute 60\nburst 20\n}", "want limit 20 60/m", "zone a {\nlimit 20 60/m\n}"},
		{"zone a {\nmax_events 100\nwindow 1m\n}", "want limit 100 100/1m", "zone a {\nlimit 100 100/1m\n}"},
		{"zone a {\nlimit 120 2\n}", "the rate has no unit: limit 120 2/s", "zone a {\nlimit 120 2/s\n}"},
	} {
		err := adaptThrottle(test.throttle)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", test.throttle, err, test.want)
		}
		if err := adaptThrottle(test.pasted); err != nil {
			t.Errorf("%s: got %v for what it suggests", test.throttle, err)
		}
	}
	err := adapts("http://example.com {\n\tthrottle pages 2r/s burst=10\n}\n")
	if want := "want throttle pages 11 2/s"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := adapts("http://example.com {\n\tthrottle pages 11 2/s\n}\n"); err != nil {
		t.Error(err)
	}
}
