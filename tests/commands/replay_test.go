package commands

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// A ruling is what zones have decided about a request, by their names.
type ruling map[string]string

// logged returns what the running handler has decided, by the lines of its access log.
func logged(t *testing.T, file string) (rulings []ruling) {
	t.Helper()
	type outcome struct{ Zone, Decision, Reason, Key string }
	text := check.Must(os.ReadFile(file))(t)
	for line := range strings.Lines(string(text)) {
		var got struct {
			Throttle *struct {
				outcome
				Zones []outcome
			}
		}
		check.OK(t, json.Unmarshal([]byte(line), &got), "parsing %s", line)
		r := make(ruling)
		if got.Throttle != nil {
			for _, o := range append(got.Throttle.Zones, got.Throttle.outcome) {
				if o.Zone != "" { // none has decided about a static file
					r[o.Zone] = o.Decision + " " + o.Reason + " " + o.Key
				}
			}
		}
		rulings = append(rulings, r)
	}
	return rulings
}

// replayed returns what a replay has decided, by the lines of the log.
func replayed(t *testing.T, lines int, args ...string) []ruling {
	t.Helper()
	out := filepath.Join(t.TempDir(), "requests.jsonl")
	if text, err := system.CaddyCommand(t, append([]string{"throttle", "replay", "--requests", out}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("got %v and\n%s", err, text)
	}
	text := check.Must(os.ReadFile(out))(t)
	rulings := make([]ruling, lines)
	for i := range rulings {
		rulings[i] = make(ruling)
	}
	for line := range strings.Lines(string(text)) {
		var got struct {
			Line                        int
			Zone, Decision, Reason, Key string
		}
		check.OK(t, json.Unmarshal([]byte(line), &got), "parsing %s", line)
		rulings[got.Line-1][got.Zone] = got.Decision + " " + got.Reason + " " + got.Key
	}
	return rulings
}

// The leaks are so slow that the times of requests decide nothing but their order.
const replaySite = `
http://:%[1]d {
	log {
		output file %[2]s
	}
	root * %[3]s
	@api path /api/*
	vars tenant {query.tenant}
	redir /old /new
	rewrite /site1/login /login?{query}
	throttle {
		exempt path *.css
		exempt static_files
		zone pages {
			limit 20 1/d
			override 127.0.0.8 unlimited
			override 127.0.0.9 3 1/d
		}
		zone tenants {
			key {http.vars.tenant} missing skip
			limit 5 1/d
		}
		zone login {
			match {
				method POST
				path /login*
			}
			limit 3 1/d
			settle status 401 403 1 after
			block 1d
		}
		zone tried {
			shadow
			match path /search*
			key client_ip header X-Part
			cost 2
			limit 7 1/d
		}
	}
	handle @api {
		throttle {
			zone api {
				limit 4 1/d
			}
			zone big {
				settle bytes 1KiB after
				limit 6 1/d
			}
		}
		respond "%[4]s"
	}
	handle /login* {
		@wrong query wrong=1
		respond @wrong 401
		respond 200
	}
	handle {
		rewrite * /index.php
		respond ok
	}
}`

func TestAReplayDecidesAsTheRunningHandlerDid(t *testing.T) {
	t.Parallel()
	port, admin, dir := servertest.FreePort(t), fmt.Sprintf("127.0.0.1:%d", servertest.FreePort(t)), t.TempDir()
	log := filepath.Join(dir, "access.log")
	check.OK(t, os.WriteFile(filepath.Join(dir, "logo.png"), []byte("png"), 0o600))
	sites := fmt.Sprintf(replaySite, port, log, dir, strings.Repeat("x", 1500))
	file := system.WriteFile(t, "Caddyfile", system.Config{Sites: sites}.Caddyfile(admin))
	system.StartCaddyIn(t, admin, filepath.Dir(file), file)

	n := 0
	for _, address := range []string{"127.0.0.2", "127.0.0.8", "127.0.0.9"} {
		v := system.NewVisitorFrom(t, "h1", address)
		for i := range 12 {
			for _, path := range []string{
				"/", "/logo.png", "/a.css", "/search?q=1", "/?tenant=a", fmt.Sprintf("/?tenant=%d", i%3), "/api/x", "/login", "/login?wrong=1", "/a%20b%2fc?x",
				"/old", "/site1/login", "/site1/login?wrong=1", // a redirect, and the login by another address
			} {
				method := "GET"
				if strings.Contains(path, "/login") {
					method = "POST"
				}
				v.Send(t, method, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), "X-Part", fmt.Sprint(i%2))
				n++
			}
		}
	}
	system.Eventually(t, "all lines in the access log", func() bool {
		text, _ := os.ReadFile(log)
		return bytes.Count(text, []byte("\n")) == n
	})
	want := logged(t, log)
	got := replayed(t, n, "--config", file, "--adapter", "caddyfile", log)
	seen := make(map[string]int)
	for i := range want {
		check.That(t, maps.Equal(got[i], want[i]), "line %d: got %v, want %v", i+1, got[i], want[i])
		for zone, ruling := range want[i] {
			seen[zone+" "+strings.Fields(ruling)[0]]++
		}
	}
	for _, wanted := range []string{
		"pages admitted", "pages refused", "tenants refused", "login refused", "login admitted", "tried shadow_refused", "tried admitted", "api refused", "api admitted", "big admitted",
	} {
		check.That(t, seen[wanted] != 0, "no request was %s, so nothing is shown of that: %v", wanted, seen)
	}
	out, _, _ := runThrottle(t, "summary", "--json", log)
	var summary struct {
		Zones []struct {
			Zone      string
			Decisions map[string]int
		}
	}
	check.OK(t, json.Unmarshal([]byte(out), &summary))
	counted := make(map[string]int)
	for _, z := range summary.Zones {
		for decision, n := range z.Decisions {
			counted[z.Zone+" "+decision] = n
		}
	}
	check.That(t, maps.Equal(counted, seen), "got the summary %v, want %v", counted, seen)
}

// runThrottle runs a command, and returns its output, its errors and its exit code.
func runThrottle(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := system.CaddyCommand(t, append([]string{"throttle"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

var updateReplay = flag.Bool("update-replay", false, "write the golden outputs of throttle replay anew")

// siteLog returns a log of an hour: people who read pages, an office of many people
// behind one address, a scraper, and somebody who guesses passwords.
func siteLog(format func(at time.Time, took time.Duration, ip, method, uri, agent string, status int) string) string {
	rng := rand.New(rand.NewPCG(7, 11))
	begin := time.Date(2026, 3, 1, 11, 30, 0, 0, time.UTC)
	agents := []string{"Mozilla/5.0 Firefox/140.0", "Mozilla/5.0 Chrome/140.0", "Mozilla/5.0 Safari/18.0", "Mozilla/5.0 Edg/140.0", "Mozilla/5.0 (Android) Chrome/139.0", "Mozilla/5.0 (iPhone)"}
	var log strings.Builder
	line := func(at time.Time, ip, method, uri, agent string, status int) {
		took := time.Duration(rng.IntN(300)) * time.Millisecond
		log.WriteString(format(at.Add(took), took, ip, method, uri, agent, status) + "\n")
	}
	for second := range 3600 {
		at := begin.Add(time.Duration(second) * time.Second)
		if second%60 == 7 {
			person := rng.IntN(20)
			for i, uri := range []string{"/", "/wiki/Main_Page", "/style.css", "/logo.png", "/app.js"} {
				line(at.Add(time.Duration(i)*100*time.Millisecond), fmt.Sprintf("198.51.100.%d", person), "GET", uri, agents[person%len(agents)], 200)
			}
		}
		if second%4 == 1 {
			line(at, "203.0.113.5", "GET", []string{"/wiki/A?x=1", "/logo.png", "/style.css"}[rng.IntN(3)], agents[rng.IntN(len(agents))], 200)
		}
		if second >= 1200 && second < 2400 {
			for i := range 3 {
				line(at.Add(time.Duration(i)*300*time.Millisecond), "192.0.2.66", "GET", fmt.Sprintf("/wiki/Special:Diff?id=%d", rng.IntN(100000)), "scraper\x1b[31m/1.0", 200)
			}
		}
		if second%30 == 3 {
			line(at, "192.0.2.99", "POST", "/wp-login.php", "curl/8", 401)
		}
	}
	return log.String()
}

func caddyFormat(at time.Time, took time.Duration, ip, method, uri, agent string, status int) string {
	line, _ := json.Marshal(map[string]any{
		"level": "info", "ts": float64(at.UnixMicro()) / 1e6, "logger": "http.log.access.log0", "msg": "handled request",
		"request":  map[string]any{"remote_ip": ip, "client_ip": ip, "proto": "HTTP/2.0", "method": method, "host": "example.com", "uri": uri, "headers": map[string][]string{"User-Agent": {agent}, "Cookie": {"REDACTED"}}},
		"duration": took.Seconds(), "size": 1000, "status": status,
	})
	return string(line)
}

func combinedFormat(at time.Time, _ time.Duration, ip, method, uri, agent string, status int) string {
	return fmt.Sprintf(`%s - - [%s] "%s %s HTTP/1.1" %d 1000 "-" "%s"`, ip, at.Format("02/Jan/2006:15:04:05 -0700"), method, uri, status, agent)
}

const tunedSite = `
example.com {
	throttle {
		zone pages {
			exempt path *.css *.js *.png
			limit 60 1/s
		}
		zone login {
			match {
				method POST
				path /wp-login.php*
			}
			limit 10 10/h
			settle status 401 403 1 after
			block 10m 1h
		}
		zone slow {
			match path /wiki/Special*
			limit 30 1/s
			delay 5
			shadow
		}
	}
	respond ok
}
`

func TestTheOutputOfReplayIsGolden(t *testing.T) {
	t.Parallel()
	caddyLog, combinedLog := system.WriteFile(t, "access.log", siteLog(caddyFormat)), system.WriteFile(t, "access.log", siteLog(combinedFormat))
	site, agents := system.WriteFile(t, "Caddyfile", tunedSite), system.WriteFile(t, "Caddyfile", ":80 {\nthrottle {\nzone limit {\nkey header User-Agent {\nplain\n}\nlimit 100 1/s\ncost 2\n}\n}\n}\n")
	for name, args := range map[string][]string{
		"config":   {"--config", site, caddyLog},
		"zone":     {"--config", site, "--zone", "login", "--host", "example.com", combinedLog},
		"json":     {"--config", site, "--zone", "pages", "--json", caddyLog},
		"combined": {"--config", agents, combinedLog},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, stderr, code := runThrottle(t, append([]string{"replay"}, args...)...)
			check.Assume(t, code == 0, "got code %d and\n%s", code, stderr)
			got = strings.ReplaceAll(got, caddyLog, "access.log")
			file := filepath.Join("testdata", "replay", name+".txt")
			if *updateReplay {
				check.OK(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want := check.Must(os.ReadFile(file))(t)
			check.That(t, got == string(want), "got\n%s\nwant\n%s", got, want)
			check.That(t, !strings.ContainsRune(got, '\x1b'), "got a control character that a client has sent")
		})
	}
}

func TestReplayReadsItsStandardInput(t *testing.T) {
	t.Parallel()
	cmd := system.CaddyCommand(t, "throttle", "replay", "--config", system.WriteFile(t, "Caddyfile", ":80 {\nthrottle limit 60 1/s\n}\n"), "-")
	cmd.Stdin = strings.NewReader(siteLog(combinedFormat))
	out, err := cmd.Output()
	check.That(t, err == nil && bytes.HasPrefix(out, []byte("4,")), "got %v and %s", err, out)
}

// A replay runs beside the Caddy that serves the site, by a user who may read its logs
// and nothing else.
func TestAReplayOpensNothingOfTheConfigButItsRules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := system.WriteFile(t, "access.log", siteLog(caddyFormat))
	site := system.WriteFile(t, "Caddyfile", fmt.Sprintf(`{
	admin unix/%[1]s/admin.sock
	storage file_system %[1]s/storage
	log default {
		output file %[1]s/default.log
	}
	throttle {
		store redis redis://127.0.0.1:1/
		zone site {
			limit 60 1/s
		}
	}
}
example.com {
	log {
		output file %[1]s/access.log
	}
	tls internal
	@wiki path /wiki/*
	route @wiki {
		forward_auth 127.0.0.1:1 {
			uri /auth
		}
		throttle site
		reverse_proxy 127.0.0.1:1
	}
	handle_errors {
		throttle {
			zone errors {
				limit 1 1/d
			}
		}
	}
}
`, dir))
	stdout, stderr, code := runThrottle(t, "replay", "--config", site, "--json", log)
	var report struct {
		Zones []struct {
			Zone     string
			Requests int
		}
	}
	err := json.Unmarshal([]byte(stdout), &report)
	check.Assume(t, code == 0 && err == nil, "got code %d, %v, %s and %s", code, err, stdout, stderr)
	check.That(t, len(report.Zones) == 1 && report.Zones[0].Zone == "site" && report.Zones[0].Requests >= 3600, "got %+v, want the requests below /wiki/ in one zone", report.Zones)
	made, err := os.ReadDir(dir)
	check.That(t, err == nil && len(made) == 0, "got %v and %v, want that no file is made", made, err)
}
