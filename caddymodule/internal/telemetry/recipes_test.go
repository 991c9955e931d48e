package telemetry_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// recipes returns the commands of the documentation that read, with jq, the access log.
func recipes(t *testing.T) (commands []string) {
	t.Helper()
	page := check.Must(os.ReadFile("../../../docs/logs-and-metrics.md"))(t)
	for _, found := range regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```$").FindAllStringSubmatch(string(page), -1) {
		if strings.HasPrefix(found[1], "jq ") || strings.HasPrefix(found[1], "   jq ") {
			commands = append(commands, found[1])
		}
	}
	return commands
}

// All recipes must read every zone of a request, not only the decisive one.
func TestTheRecipesForTuningReadEveryZone(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("SKIPPED: jq is not installed: the recipes for tuning are not tested (apt-get install jq)")
	}
	var log strings.Builder
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, `http:// {
			log
			throttle {
				exempt path /free
				zone pages {
					limit 2 1/d
					shadow
				}
				zone networks {
					key client_ip ipv4 24
					limit 4 1/d
					cost 3 {
						path /heavy
					}
					shadow
				}
				zone shut {
					match path /shut
					limit 1 1/d
				}
			}
			respond ok
		}`)
		client := s.From("203.0.113.1:1")
		client.Statuses(5, "/page")
		s.From("192.0.2.9:1").Get("/heavy") // networks is the fuller zone, and decides
		client.Get("/free")
		s.From("198.51.100.7:1").Statuses(2, "/shut")
		for _, line := range s.Logs.Lines(t, "handled request") {
			check.OK(t, json.NewEncoder(&log).Encode(line))
		}
	})
	log.WriteString(`{"request":{"host":"example.com","uri":"/busy"},"throttle":{"zone":"pages","decision":"admitted"},"in_flight":{"decision":"refused"}}` + "\n")
	folder := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(folder, "access.log"), []byte(log.String()), 0o600))
	commands := recipes(t)
	want := [][]string{{`/shut"`, `/busy"`}} // what stands in each line
	check.Need(t, len(commands), len(want), "recipes")
	for i, command := range commands {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = folder
		out, err := cmd.CombinedOutput()
		check.Assume(t, err == nil, "got %v: %s", err, out)
		lines := slices.Collect(strings.Lines(string(out)))
		check.Need(t, len(lines), len(want[i]), "lines of %s, which are\n%s", command, out)
		for n, line := range lines {
			line = strings.Join(strings.Fields(line), " ")
			check.That(t, strings.Contains(line, want[i][n]), "got %q, want %q, of\n%s", line, want[i][n], command)
		}
	}
}
