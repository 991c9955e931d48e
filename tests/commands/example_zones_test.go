package commands

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// startExample runs Caddyfile.example on a port of its own, with these directives
// instead of its stand-in for PHP or Rails.
func startExample(t *testing.T, directives string) (port int, c *system.Caddy) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "Caddyfile.example"))
	if err != nil {
		t.Fatal(err)
	}
	port = servertest.FreePort(t)
	admin := fmt.Sprintf("127.0.0.1:%d", servertest.FreePort(t))
	example := string(text)
	for _, change := range []struct{ old, new string }{
		{"\n{\n", "\n{\n\tadmin " + admin + "\n\tdefault_bind 127.0.0.1\n"},
		{"\nhttp://localhost:8080 {\n", fmt.Sprintf("\nhttp://127.0.0.1:%d {\n", port)},
		{"\t# refusal {\n\t\t# \tpage too-many-requests.html\n\t\t# }\n", "\trefusal {\n\t\t\tpage " + root + "/docs/too-many-requests.html\n\t\t}\n"},
		{"\treverse_proxy localhost:8081\n", "\t" + directives + "\n"},
		{"\nhttp://localhost:8081 {\n", fmt.Sprintf("\nhttp://localhost:%d {\n", servertest.FreePort(t))},
	} {
		if strings.Count(example, change.old) != 1 {
			t.Fatalf("got %d of %q in Caddyfile.example, want 1", strings.Count(example, change.old), change.old)
		}
		example = strings.Replace(example, change.old, change.new, 1)
	}
	// The names of the stand-in for WordPress.
	example = strings.NewReplacer("field password\n", "field pwd\n", "key field username\n", "key field log\n",
		" logged_in\n", " wordpress_logged_in_*\n").Replace(example)
	return port, system.StartCaddyIn(t, admin, root, system.WriteFile(t, "Caddyfile", example))
}

// TestCaddyfileExampleCountsRowsAndSeconds tests the zones imports and work.
func TestCaddyfileExampleCountsRowsAndSeconds(t *testing.T) {
	t.Parallel()
	port, c := startExample(t, system.RackSite(t).Directives)
	v := system.NewVisitor(t, "h1")
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	statuses := ""
	for range 3 {
		statuses += fmt.Sprint(v.Post(t, base+"/import", "application/json", batchOf(t, 1000)).Status, " ")
	}
	if statuses != "200 200 429 " {
		t.Errorf("got %sfor 1000 rows each, want 200 200 429 in a capacity of 2000", statuses)
	}
	if a := v.Get(t, base+"/slow?for=300"); a.Status != 200 {
		t.Errorf("got %d for a slow page, want 200", a.Status)
	}
	var settled bool
	system.Eventually(t, "the slow page in the log", func() bool {
		for _, line := range c.LogLines("/slow?for=300") {
			settled = regexp.MustCompile(`"zone":"work","decision":"admitted","key":"[^"]*","cost":0.2,[^}]*"settled":(0\.[3-9]|[1-9])`).MatchString(line)
			return true
		}
		return false
	})
	if !settled {
		t.Errorf("got %v, want 0.3 seconds and more settled by zone work", c.LogLines("/slow?for=300"))
	}
}

// batchOf is an import as scripts send it, below 64 KiB.
func batchOf(t *testing.T, rows int) string {
	t.Helper()
	type row struct {
		ID int `json:"id"`
	}
	batch := struct {
		Comment string `json:"comment"`
		Rows    []row  `json:"rows"`
	}{Comment: `"rows":[1,2,3]`}
	for n := range rows {
		batch.Rows = append(batch.Rows, row{n})
	}
	text, err := json.Marshal(batch)
	if err != nil || len(text) > 64<<10 {
		t.Fatalf("got a batch of %d bytes and %v, want it below 64 KiB", len(text), err)
	}
	return string(text)
}
