package commands

import (
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestValidateNamesThePlaceOfAWrongConfig has one case of each kind. The adapter
// tests in caddymodule have the others.
func TestValidateNamesThePlaceOfAWrongConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, zone, want string }{
		{"a word of another limiter", "window 10s", "window"},
		{"a number that is none", "limit ten 1/s", "ten"},
		{"a rate without a unit", "limit 10 10", "10"},
		{"a duplicate", "refusal status 429\n\t\t\trefusal status 503", "refusal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := system.WriteFile(t, "Caddyfile", "{\n\tadmin off\n}\nhttp://:1 {\n\tthrottle {\n\t\tzone wrong {\n\t\t\t"+c.zone+"\n\t\t}\n\t}\n}\n")
			out, err := system.CaddyCommand(t, "validate", "--config", file, "--adapter", "caddyfile").CombinedOutput()
			check.Assume(t, err != nil, "got a valid config, want an error\n%s", out)
			line := "7"
			if strings.Contains(c.zone, "\n") {
				line = "8"
			}
			for _, want := range []string{"Caddyfile:" + line, c.want} {
				check.That(t, strings.Contains(string(out), want), "got %s, want it to hold %q", out, want)
			}
		})
	}
}

func TestTheBinaryHasTheModule(t *testing.T) {
	t.Parallel()
	out, err := system.CaddyCommand(t, "list-modules").Output()
	check.OK(t, err, "listing modules")
	for _, module := range []string{"throttle", "http.handlers.throttle", "throttle.stores.memory"} {
		check.That(t, regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(module)+`$`).Match(out), "got no module %s in the list, want it", module)
	}
}
