package tests

import (
	"strconv"
	"strings"
	"testing"
)

// metric returns the sum of a metric over all series with the given labels,
// written as in the exposition: `zone="login"`.
func (c *caddy) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	status, text := c.askAdmin("GET", "/metrics", "")
	if status != 200 {
		t.Fatalf("got %d %s from /metrics, want 200", status, text)
	}

	sum := 0.0
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "} ")
		if !strings.HasPrefix(series, name+"{") || !holdsAll(series, labels) {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
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

// decisions returns how many requests of a zone ended with a decision.
func (c *caddy) decisions(t *testing.T, zone, decision string) int {
	t.Helper()
	return int(c.metric(t, "caddy_throttle_requests_total", `zone="`+zone+`"`, `decision="`+decision+`"`))
}
