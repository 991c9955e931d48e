package commands

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestCaddyfileExampleTurns200sIntoA429 runs the file as it is, then the curl
// loop in its comments.
func TestCaddyfileExampleTurns200sIntoA429(t *testing.T) {
	root, err := filepath.Abs("..")
	check.OK(t, err)
	file := filepath.Join(root, "Caddyfile.example")
	text, err := os.ReadFile(file)
	check.OK(t, err)
	bash, _ := system.Need(t, "bash"), system.Need(t, "curl")

	for _, command := range []string{"adapt", "validate"} {
		cmd := system.CaddyCommand(t, command, "--config", file, "--adapter", "caddyfile")
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("caddy %s: %v\n%s", command, err, out)
		}
	}

	system.StartCaddyIn(t, adminOf(t, root, file), root, file)
	loop := documentedLoop(t, string(text))
	out, err := exec.Command(bash, "-c", loop).CombinedOutput()
	check.Assume(t, err == nil, "running %s: %v\n%s", loop, err, out)
	var statuses string
	for _, line := range regexp.MustCompile(`(?m)^(?:HTTP/\S+ )?(\d{3})\b`).FindAllStringSubmatch(string(out), -1) {
		statuses += line[1] + " "
	}
	check.That(t, regexp.MustCompile(`^(200 ){2,}(429 )+$`).MatchString(statuses), "got the statuses %q from %s, want some of 200, then 429", statuses, loop)
}

// documentedLoop returns the first comment of the file with a loop over curl.
func documentedLoop(t *testing.T, caddyfile string) string {
	t.Helper()
	comment := regexp.MustCompile(`^\s*#\s*(?:\$ )?(for .*curl.*done)\s*$`)
	for line := range strings.Lines(caddyfile) {
		if found := comment.FindStringSubmatch(strings.TrimSuffix(line, "\n")); found != nil {
			return found[1]
		}
	}
	t.Fatal("got no comment like `for ...; do curl ...; done` in Caddyfile.example, want one")
	return ""
}

// adminOf returns the address of a Caddyfile's admin endpoint.
func adminOf(t *testing.T, dir, file string) string {
	t.Helper()
	cmd := system.CaddyCommand(t, "adapt", "--config", file, "--adapter", "caddyfile")
	cmd.Dir = dir
	out, err := cmd.Output()
	check.OK(t, err, "adapting %s", file)
	var adapted struct{ Admin struct{ Listen string } }
	check.OK(t, json.Unmarshal(out, &adapted), "parsing the adapted config")
	if adapted.Admin.Listen == "" {
		return "localhost:2019"
	}
	return adapted.Admin.Listen
}
