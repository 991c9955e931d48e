package tests

import (
	"regexp"
	"strconv"
	"testing"
)

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
