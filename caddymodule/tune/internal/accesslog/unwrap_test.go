package accesslog

import (
	"encoding/json"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// Lines of Caddy and of a combined log come within those of other programs.
func TestLinesWithinOthersAreRead(t *testing.T) {
	const (
		caddy    = `{"level":"info","ts":1793600000.5,"logger":"http.log.access","msg":"handled request","request":{"client_ip":"203.0.113.7","method":"GET","host":"example.com","uri":"/a?b=\"|\" ","headers":{"User-Agent":["curl"]}},"status":200,"duration":0.1}`
		combined = `203.0.113.7 - - [02/Nov/2026:08:00:00 +0000] "GET /a HTTP/1.1" 200 512 "-" "x | y: {z}"`
	)
	quoted := check.Must(json.Marshal(caddy + "\n"))(t)
	for _, prefix := range []string{
		"", "caddy-1  | ", "site_web.1 | ", "caddy-1  |",
		"2026-11-02T08:00:00.123456789Z stdout F ", "2026-11-02T08:00:00.1+01:00 stderr F ",
		"Nov  2 08:00:00 host caddy[123]: ", "Nov 12 08:00:00 host.example.com nginx: ", "<190>Nov  2 08:00:00 host nginx: ",
		"2026-11-02T08:00:00+0100 host caddy[1]: ", "2026-11-02T08:00:00.5+01:00 host caddy[1]: ",
	} {
		for _, line := range []string{caddy, combined} {
			if got := unwrap(prefix + line); got != line && prefix != "caddy-1  |" {
				t.Errorf("prefix %q: got %s, want %s", prefix, got, line)
			}
		}
	}
	for _, line := range []string{
		`{"log":` + string(quoted) + `,"stream":"stderr","time":"2026-11-02T08:00:00Z"}`,
		`{"__CURSOR":"s=1","MESSAGE":` + string(quoted) + `,"_PID":"1"}`, `{"MESSAGE":` + string(quoted) + `}`,
	} {
		got := unwrap(line)
		check.That(t, got == caddy, "got %s within %s, want Caddy's line", got, line)
	}
	// What clients write is not taken for a prefix.
	for _, line := range []string{
		`203.0.113.7 - a | b [02/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 5`, `example.com:443 203.0.113.7 - - [02/Nov/2026:08:00:00 +0000] "GET / | HTTP/1.1" 200 5`,
		`2001:db8::1 - - [02/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 5`, `{"log":5,"request":{}}`, `{"A":1}`, `- | `, `Mon`,
	} {
		got := unwrap(line)
		check.That(t, got == line, "got %s, want %s as it is", got, line)
	}
}
