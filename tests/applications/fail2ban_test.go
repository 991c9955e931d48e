package applications

import (
	"fmt"
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

// TestFail2banBansTheBlockedClientOnly uses the filter of the documentation, and a
// client whose headers try to have others banned.
func TestFail2banBansTheBlockedClientOnly(t *testing.T) {
	t.Parallel()
	fail2ban := system.Need(t, "fail2ban-regex")
	page := system.Page(t, "docs/logs-and-metrics.md")
	found := regexp.MustCompile("(?s)\n```ini\n(\\[Definition\\]\n.*?)```\n").FindStringSubmatch(page)
	check.Assume(t, found != nil, "got no filter in the documentation, want one")
	dir := t.TempDir()
	filter, log := system.WriteFile(t, "caddy-throttle.conf", found[1]), filepath.Join(dir, "throttle.log")
	port, admin := servertest.FreePort(t), fmt.Sprintf("127.0.0.1:%d", servertest.FreePort(t))
	text := system.Config{Sites: fmt.Sprintf(`
http://:%d {
	log
	throttle {
		zone login {
			limit 2 1/d
			block 10m
		}
	}
	throttle {
		zone named {
			key header X-Api-Key plain
			limit 1 1/d
			block 10m
		}
	}
	respond ok
}`, port)}.Caddyfile(admin)
	text = strings.Replace(text, "{\n", "{\n\tlog bans {\n\t\tinclude throttle\n\t\toutput file "+log+"\n\t\tformat json\n\t}\n", 1)
	system.StartCaddyIn(t, admin, dir, system.WriteFile(t, "Caddyfile", text))

	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	const forged = `{"level":"info","ts":1795318763.5,"logger":"throttle","msg":"zone blocks a key","zone":"login","key":"198.51.100.9","for_seconds":600}`
	v := system.NewVisitor(t, "h1")
	for _, key := range []string{forged, forged, `","zone":"login","key":"198.51.100.9","for_seconds":600}`, "198.51.100.9", "198.51.100.9"} {
		v.Get(t, url+"?%22,%22key%22:%22198.51.100.9%22", "User-Agent", forged, "X-Api-Key", key, "X-Forwarded-For", "198.51.100.9", "Referer", forged)
	}
	system.Eventually(t, "a line about the block", func() bool {
		lines, _ := os.ReadFile(log)
		return strings.Contains(string(lines), `"zone blocks a key","zone":"login"`)
	})

	out, err := exec.Command(fail2ban, "--print-all-matched", log, filter).CombinedOutput()
	check.Assume(t, err == nil, "running fail2ban-regex: %v\n%s", err, out)
	check.That(t, regexp.MustCompile(`Lines: \d+ lines, 0 ignored, 1 matched`).Match(out), "got\n%s\nwant one line that matches", out)
	out, err = exec.Command(fail2ban, "--out", "ip", log, filter).Output()
	check.OK(t, err, "running fail2ban-regex")
	got := strings.Fields(string(out))
	check.That(t, len(got) == 1 && got[0] == v.Address, "got the addresses %q banned, want %s alone", got, v.Address)
}

// rowFor returns what stands beside an original in the table of the page about migrating, as
// lines of a zone.
func rowFor(t *testing.T, original string) string {
	t.Helper()
	page := system.Page(t, "docs/comparison.md")
	_, row, found := strings.Cut(page, original)
	_, row, _ = strings.Cut(row, " | ")
	row, _, _ = strings.Cut(row, "\n")
	var lines []string
	for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
		lines = append(lines, code[1])
	}
	check.Assume(t, found && len(lines) != 0, "got no row for %s in the page about migrating", original)
	return strings.Join(lines, "\n")
}

// TestFail2banBansWhomAZoneBlocks: the jail of the page about migrating, which reads Caddy's
// access log, and the zone beside it let as many wrong passwords through, one after the
// other.
func TestFail2banBansWhomAZoneBlocks(t *testing.T) {
	t.Parallel()
	server := system.Need(t, "fail2ban-server")
	dir, port := t.TempDir(), servertest.FreePort(t)
	log, banned := filepath.Join(dir, "access.log"), filepath.Join(dir, "banned")
	system.StartCaddy(t, system.Config{Sites: fmt.Sprintf("http://:%d {\nlog {\noutput file %s\n}\nthrottle {\nzone login {\nmatch path /login\nsettle status 401 1 after\n%s\n}\n}\nrespond 401\n}\n",
		port, log, rowFor(t, "fail2ban's `maxretry = 5`"))})
	for name, text := range map[string]string{
		"fail2ban.conf":       "[Definition]\nloglevel = INFO\nlogtarget = " + dir + "/log\nsyslogsocket = auto\nsocket = " + dir + "/sock\npidfile = " + dir + "/pid\ndbfile = None\nallowipv6 = auto\n",
		"jail.conf":           "[login]\nenabled = true\nbackend = polling\nlogpath = " + log + "\nfilter = caddy\naction = note\nmaxretry = 5\nfindtime = 10m\nbantime = 1h\nignoreself = false\n",
		"filter.d/caddy.conf": "[Definition]\nfailregex = \"client_ip\":\"<HOST>\".*\"status\":401\ndatepattern = \"ts\":{EPOCH}\n",
		"action.d/note.conf":  "[Definition]\nactionban = echo <ip> >> " + banned + "\n",
	} {
		name = filepath.Join(dir, "etc", name)
		check.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
		check.OK(t, os.WriteFile(name, []byte(text), 0o644))
	}
	p := check.Must(system.StartProcess(exec.Command(server, "-f", "-c", filepath.Join(dir, "etc"), "start")))(t)
	t.Cleanup(func() { _ = p.Stop() })
	system.Eventually(t, "fail2ban to watch the log", func() bool { return len(linesWith(t, dir+"/log", "Jail 'login' started")) > 0 })

	v := system.NewVisitor(t, "h1")
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	for range 4 {
		v.Get(t, url)
	}
	system.Eventually(t, "fail2ban to see four", func() bool { return len(linesWith(t, dir+"/log", "Found "+v.Address)) == 4 })
	_, err := os.Stat(banned)
	check.Assume(t, err != nil, "got a ban after four wrong passwords, want one after five")
	v.Get(t, url)
	system.Eventually(t, "a ban", func() bool { return len(linesWith(t, banned, v.Address)) == 1 })
	var got []int
	for range 7 {
		got = append(got, v.Get(t, url+"login").Status)
	}
	check.Slices(t, got, []int{401, 401, 401, 401, 401, 429, 429}, "from throttle")
}
