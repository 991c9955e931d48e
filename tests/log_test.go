package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// accessLine is a line of an access log.
type accessLine struct {
	Status   int
	Throttle *struct{ Zone, Decision string }
}

func TestAccessLogSaysWhatWasDecided(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, shadow string
		decision     string
		status       int
	}{
		{"enforced", "", "refused", 429},
		{"shadow", "shadow", "shadow_refused", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			port := freePort(t)
			file := filepath.Join(t.TempDir(), "access.log")
			startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	log {
		output file %s
	}
	throttle {
		zone logged {
			limit 2 1/d
			%s
		}
	}
	respond ok
}`, port, file, c.shadow)})
			v := newVisitor(t, "h2")
			for range 3 {
				v.get(t, fmt.Sprintf("http://127.0.0.1:%d/", port))
			}

			var text string
			eventually(t, "three lines in the access log", func() bool {
				data, _ := os.ReadFile(file)
				text = string(data)
				return strings.Count(text, "\n") == 3
			})
			n := 0
			for line := range strings.Lines(text) {
				var got accessLine
				if err := json.Unmarshal([]byte(line), &got); err != nil {
					t.Fatalf("parsing %s: %v", line, err)
				}
				n++
				wantStatus, wantDecision := 200, "admitted"
				if n == 3 {
					wantStatus, wantDecision = c.status, c.decision
				}
				if got.Throttle == nil || got.Throttle.Zone != "logged" || got.Throttle.Decision != wantDecision || got.Status != wantStatus {
					t.Errorf("got line %d %s, want status %d, zone logged, decision %s", n, line, wantStatus, wantDecision)
				}
			}
		})
	}
}

// TestAThousandRefusalsAreAFewLines: a flood must not fill the disk, and the log
// must not name the refused clients.
func TestAThousandRefusalsAreAFewLines(t *testing.T) {
	t.Parallel()
	for _, shadow := range []string{"", "shadow"} {
		t.Run("zone"+shadow, func(t *testing.T) {
			t.Parallel()
			port := freePort(t)
			c := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone flooded {
			key header X-Api-Key plain
			limit 1 1/d
			%s
		}
	}
	respond ok
}`, port, shadow)})
			before := len(c.logLines("throttle"))
			v := newVisitor(t, "h2")
			url := fmt.Sprintf("http://127.0.0.1:%d/", port)
			for range 1001 {
				v.get(t, url, "X-Api-Key", "a-secret-of-the-visitor")
			}
			eventually(t, "a line when the zone begins to refuse", func() bool { return len(c.logLines("flooded")) > 0 })
			lines := c.logLines("throttle")[before:]
			if len(lines) > 3 {
				t.Errorf("got %d lines for 1000 refusals, want at most 3:\n%.2000s", len(lines), strings.Join(lines, ""))
			}
			if leaked := c.logLines("a-secret-of-the-visitor"); len(leaked) > 0 {
				t.Errorf("got a client's key in the log, want none: %s", leaked[0])
			}
		})
	}
}

// TestMetricsNeverCarryAnythingThatAClientSends holds for labels and for their number.
func TestMetricsNeverCarryAnythingThatAClientSends(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	c := startCaddy(t, config{sites: fmt.Sprintf("http://:%d {\n throttle metered client_ip 2 1/d\n respond ok\n}", port)})
	url := fmt.Sprintf("http://127.0.0.1:%d/unlikely-path", port)
	v := newVisitor(t, "h1")
	v.countAdmitted(t, 5, url)
	for _, count := range []struct {
		labels []string
		want   float64
	}{
		{[]string{`decision="admitted"`}, 2},
		{[]string{`decision="refused"`, `reason="capacity"`}, 3},
		{[]string{v.address}, 0},
		{[]string{"unlikely"}, 0},
	} {
		if got := c.metric(t, "caddy_throttle_requests_total", append(count.labels, `zone="metered"`)...); got != count.want {
			t.Errorf("got %v requests by %v, want %v", got, count.labels, count.want)
		}
	}
	if got := c.metric(t, "caddy_throttle_buckets", `zone="metered"`); got != 1 {
		t.Errorf("got %v buckets, want 1", got)
	}
}
