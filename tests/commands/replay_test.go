package commands

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
