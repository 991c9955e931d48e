package system

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Metric returns the sum of a metric over all series with the given labels,
// written as in the exposition: `zone="login"`.
func (c *Caddy) Metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	status, text := c.AskAdmin("GET", "/metrics", "")
	if status != 200 {
		t.Fatalf("got %d %s from /metrics, want 200", status, text)
	}

	sum := 0.0
	for line := range strings.Lines(text) {
		end := strings.LastIndexByte(line, ' ')
		series := line[:max(end, 0)]
		if series != name && !strings.HasPrefix(series, name+"{") || !holdsAll(series, labels) {
			continue
		}
		number, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
		if err != nil {
			t.Fatalf("parsing the metric %q: %v", line, err)
		}
		sum += number
	}
	return sum
}

func holdsAll(series string, labels []string) bool {
	for _, label := range labels {
		if !strings.Contains(series, label) {
			return false
		}
	}
	return true
}

// Decisions returns how many requests of a zone ended with a decision.
func (c *Caddy) Decisions(t *testing.T, zone, decision string) int {
	t.Helper()
	return int(c.Metric(t, "caddy_throttle_requests_total", `zone="`+zone+`"`, `decision="`+decision+`"`))
}

// Waiting returns how many requests of a zone wait.
func (c *Caddy) Waiting(t *testing.T, zone string) int {
	t.Helper()
	return int(c.Metric(t, "caddy_throttle_waiting", `zone="`+zone+`"`))
}

// Served returns how many requests of a zone hold a slot.
func (c *Caddy) Served(t *testing.T, zone string) int {
	t.Helper()
	return int(c.Metric(t, "caddy_throttle_in_flight", `zone="`+zone+`"`))
}

var goroutineCount = regexp.MustCompile(`goroutine profile: total (\d+)`)

func (c *Caddy) Goroutines(t *testing.T) int {
	t.Helper()
	_, profile := c.AskAdmin("GET", "/debug/pprof/goroutine?debug=1", "")
	found := goroutineCount.FindStringSubmatch(profile)
	if found == nil {
		t.Fatalf("got %.200s, want a profile of goroutines", profile)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
