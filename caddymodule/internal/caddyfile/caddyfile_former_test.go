package caddyfile_test

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
var suggested = regexp.MustCompile(`(?s).*(?:such as|want|in the block of a zone)\s([^<]*), at Caddyfile:\d+$`)

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
		if zonefile.Named(zonefile.ZoneOptions, word) != nil {
			t.Fatalf("%s is an option of a zone", word)
		}
		for _, rest := range []string{"", " 5", " 10r/s", " 1m", " 10.0.0.0/8", " x y", " \"Too many\"", " status 401", ";"} {
			err := adaptZone(word + rest)
			if err == nil {
				t.Errorf("%s%s: got no error", word, rest)
				continue
			}
			found := suggested.FindStringSubmatch(err.Error())
			if found == nil {
				t.Errorf("%s%s: got %v, want lines to write instead", word, rest, err)
				continue
			}
			for line := range strings.SplitSeq(found[1], ", or ") {
				line = strings.TrimSuffix(line, " without a limit")
				if err := adaptZone(beside(line) + line); err != nil {
					t.Errorf("%q: got %v for what it suggests:\n%s", word+rest, err, line)
				}
			}
		}
	}
}

// An owner who writes what the message shows has a file that adapts.
func TestASuggestionWrittenInPlaceAdapts(t *testing.T) {
	for _, test := range []struct{ in, written, want string }{
		{"zone", "rate=10r/s burst=20 nodelay", "limit 21 10/s"},
		{"zone", "limit_req zone=one burst=20;", "limit 21 21/m"},
		{"zone", "capacity 60", "limit 60 60/m"},
		{"zone", "leak: 2/s", "limit 2 2/s"},
		{"zone", "capcity 60", "limit 60 60/m"},
		{"zone", "events 100 window 1m", "limit 100 100/1m"},
		{"zone", "rps 10", "limit 10 10/s"},
		{"zone", "requests_per_hour 60", "limit 60 60/h"},
		{"zone", "nodelay", "limit 120 2/s"},
		{"zone", "limit 120/2s", "limit 120 120/2s"},
		{"zone", "limit 10 per minute", "limit 10 10/m"},
		{"zone", "limit 120 30 requests per minute", "limit 120 30/m"},
		{"zone", "limit 60", "limit 60 60/m"},
		{"zone", "limit 2r/s burst=10 nodelay", "limit 11 2/s"},
		{"zone", "limit 120 2/s block 10m", "limit 120 2/s"},
		{"zone", "limit", "limit 120 2/s"},
		{"zone", "concurrency 8", "in_flight 5"},
		{"zone", "safelist 192.0.2.1;", "exempt client_ip 192.0.2.1"},
		{"block", "pages 120 2/s", "zone pages {\n\tlimit 120 2/s\n}"},
		{"block", "limit 120 2/s", "zone pages {\n\tlimit 120 2/s\n}"},
		{"site", "throttle pages rate=2r/s burst=10 nodelay", "throttle pages 11 2/s"},
		{"site", "throttle pages 120 per minute", "throttle pages 120 120/m"},
		{"site", "throttle pages rps 10", "throttle pages 10 10/s"},
		{"site", "throttle pages {remote_host} 10 per minute", "throttle pages {http.request.remote.host} 10 10/m"},
		{"site", "throttle pages 120 2/s nodelay", "throttle pages 120 2/s"},
		{"site", "throttle pages 120 2/s on_store_error allow", "throttle pages 120 2/s {\n\ton_store_error allow\n}"},
		{"site", "throttle pages 120 2/s refusal message \"Too many.\" status 503", "throttle pages 120 2/s {\n\trefusal message \"Too many.\" status 503\n}"},
	} {
		err := adapts(mistake{test.in, test.written, ""}.caddyfile())
		if err == nil {
			t.Errorf("%q: got no error", test.written)
			continue
		}
		if found := suggested.FindStringSubmatch(err.Error()); found == nil || found[1] != test.want {
			t.Errorf("%q: got %v, want %s", test.written, err, test.want)
		}
		if err := adapts(mistake{test.in, beside(test.want) + test.want, ""}.caddyfile()); test.in == "zone" && err != nil {
			t.Errorf("%q: got %v for %s", test.written, err, test.want)
		}
		if err := adapts(mistake{test.in, test.want, ""}.caddyfile()); test.in != "zone" && err != nil {
			t.Errorf("%q: got %v for %s", test.written, err, test.want)
		}
	}
}
