package tests

import (
	"regexp"
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

// waiting returns how many requests of a zone wait.
func (c *caddy) waiting(t *testing.T, zone string) int {
	t.Helper()
	return int(c.metric(t, "caddy_throttle_waiting", `zone="`+zone+`"`))
}

// served returns how many requests of a zone hold a slot.
func (c *caddy) served(t *testing.T, zone string) int {
	t.Helper()
	return int(c.metric(t, "caddy_throttle_in_flight", `zone="`+zone+`"`))
}

var goroutineCount = regexp.MustCompile(`goroutine profile: total (\d+)`)

func (c *caddy) goroutines(t *testing.T) int {
	t.Helper()
	_, profile := c.askAdmin("GET", "/debug/pprof/goroutine?debug=1", "")
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
