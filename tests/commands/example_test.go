package commands

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
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

// startExample runs Caddyfile.example on a port of its own, with these directives
// instead of its stand-in for PHP or Rails.
func startExample(t *testing.T, directives string) (port int, c *system.Caddy) {
	t.Helper()
	root := check.Must(filepath.Abs(".."))(t)
	text := check.Must(os.ReadFile(filepath.Join(root, "Caddyfile.example")))(t)
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
		check.Assume(t, strings.Count(example, change.old) == 1, "got %d of %q in Caddyfile.example, want 1", strings.Count(example, change.old), change.old)
		example = strings.Replace(example, change.old, change.new, 1)
	}
	// The names of the stand-in for WordPress.
	example = strings.NewReplacer("field password\n", "field pwd\n", "key field username\n", "key field log\n",
		" logged_in\n", " wordpress_logged_in_*\n").Replace(example)
	return port, system.StartCaddyIn(t, admin, root, system.WriteFile(t, "Caddyfile", example))
}

// TestCaddyfileExampleLimitsFailedLogins on the sites that it says it is for.
func TestCaddyfileExampleLimitsFailedLogins(t *testing.T) {
	t.Parallel()
	for _, s := range loginSites(t) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			port, _ := startExample(t, s.Directives)
			v := system.NewVisitor(t, "h1")
			for n := range 4 {
				check.Need(t, s.login(t, v, port, "owner", "right"), s.succeeded, "login %d with the right password", n+1)
			}
			statuses := ""
			for n := range 7 { // the bucket leaks 5 a minute
				statuses += fmt.Sprint(s.login(t, v, port, fmt.Sprint("user", n), "wrong"), " ")
			}
			want := regexp.MustCompile(fmt.Sprintf(`^(%d ){4,5}(429 )+$`, s.failed))
			check.That(t, want.MatchString(statuses), "got %sfor guesses, want %v", statuses, want)
			check.Equal(t, s.login(t, system.NewVisitor(t, "h1"), port, "owner", "right"), s.succeeded, "another address")
		})
	}
}

// TestCaddyfileExampleLimitsGuessesOnOneAccount from a hundred addresses behind
// the proxy that it trusts.
func TestCaddyfileExampleLimitsGuessesOnOneAccount(t *testing.T) {
	t.Parallel()
	port, _ := startExample(t, system.PHPSite(t).Directives)
	proxy := system.NewVisitor(t, "h1")
	statuses := make(map[int]int)
	for n := range 100 {
		form := url.Values{"log": {"admin"}, "pwd": {"wrong"}}
		statuses[post(t, proxy, fmt.Sprintf("http://127.0.0.1:%d/wp-login.php", port), form, fmt.Sprintf("198.51.100.%d", n))]++
	}
	check.That(t, statuses[200] == 10 && statuses[429] == 90, "got %v by status, want 10 of 200 and 90 of 429", statuses)
}

// loginSite is a site with a login, and its answer to failed logins.
type loginSite struct {
	system.Site
	path, user, password string // of the form
	failed, succeeded    int
}

func loginSites(t *testing.T) []loginSite {
	t.Helper()
	return []loginSite{
		{system.PHPSite(t), "/wp-login.php", "log", "pwd", 200, 302},                      // like WordPress
		{system.RackSite(t), "/users/sign_in", "user[email]", "user[password]", 422, 303}, // like Devise
	}
}

func (s *loginSite) login(t *testing.T, v *system.Visitor, port int, user, password string) int {
	t.Helper()
	return post(t, v, fmt.Sprintf("http://127.0.0.1:%d%s", port, s.path), url.Values{s.user: {user}, s.password: {password}}, "")
}

// post sends a form, for a client with another address if that is given.
func post(t *testing.T, v *system.Visitor, to string, form url.Values, client string) (status int) {
	t.Helper()
	r := check.Must(http.NewRequest("POST", to, strings.NewReader(form.Encode())))(t)
	r.Header.Set("Content-Type", system.Urlencoded)
	if client != "" {
		r.Header.Set("X-Forwarded-For", client)
	}
	a := check.Must(v.Fetch(r))(t)
	return a.Status
}
