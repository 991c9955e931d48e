package tests

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

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
	caddyLog, combinedLog := writeFile(t, "access.log", siteLog(caddyFormat)), writeFile(t, "access.log", siteLog(combinedFormat))
	site := writeFile(t, "Caddyfile", tunedSite)
	for name, args := range map[string][]string{
		"config":   {"--config", site, caddyLog},
		"zone":     {"--config", site, "--zone", "login", "--host", "example.com", combinedLog},
		"key":      {"--key", "client_ip", "--limit", "60 60/m", combinedLog},
		"json":     {"--config", site, "--zone", "pages", "--json", caddyLog},
		"combined": {"--key", "header User-Agent", "--limit", "100 1/s", "--cost", "2", combinedLog},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, stderr, code := runThrottle(t, append([]string{"replay"}, args...)...)
			if code != 0 {
				t.Fatalf("got code %d and\n%s", code, stderr)
			}
			got = strings.ReplaceAll(got, caddyLog, "access.log")
			file := filepath.Join("testdata", "replay", name+".txt")
			if *updateReplay {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if strings.ContainsRune(got, '\x1b') {
				t.Error("got a control character that a client has sent")
			}
		})
	}
}

func TestReplayTellsWrongUseFromUnreadableInput(t *testing.T) {
	t.Parallel()
	log := writeFile(t, "access.log", siteLog(combinedFormat))
	caddyLog := writeFile(t, "access.json", siteLog(caddyFormat))
	site := writeFile(t, "Caddyfile", tunedSite)
	bare := writeFile(t, "Caddyfile", "example.com {\n\trespond ok\n}\n")
	wrong := writeFile(t, "Caddyfile", "example.com {\n\tthrottle {\n\t\tzone a {\n\t\t\tcapcity 3\n\t\t}\n\t}\n}\n")
	body := writeFile(t, "Caddyfile", "example.com {\n\tthrottle {\n\t\tzone names {\n\t\t\tkey field log\n\t\t\tlimit 5 5/h\n\t\t}\n\t}\n}\n")
	limit := []string{"--limit", "60 1/s"}
	keyed := func(key string, rest ...string) []string {
		return append(append([]string{"--key", key}, limit...), rest...)
	}
	zipped := writeFile(t, "cut.gz", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x4b")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{limit, 2, "no log given"},
		{[]string{log}, 2, "no limits given"},
		{[]string{"--limit", "3", log}, 2, "want limit <capacity> <leak>"},
		{append(keyed("client_ip"), "--config", site, log), 2, "exclude each other"},
		{keyed("clientip", log), 2, "clientip"},
		{[]string{"--limit", "3 3", log}, 2, `invalid rate "3": want <number>/<s|m|h|d>`},
		{[]string{"--limit", "3\"} 3/s", log}, 2, "capacity"},
		{keyed("field log", log), 2, "logs hold no bodies"},
		{keyed("cookie sid", log), 2, "its key is in the header Cookie, which the log does not show"},
		{keyed("cookie sid", caddyLog), 2, "does not show: set log_credentials"},
		{keyed("header X-Api-Key", log), 2, "its key is in the header X-Api-Key, which the log does not show"},
		{keyed("host", log), 2, "give --host"},
		{[]string{"--config", site, "--zone", "logn", log}, 2, "did you mean login?"},
		{[]string{"--config", site, log}, 2, "give --host"},
		{[]string{"--config", bare, log}, 2, "no throttle handler"},
		{[]string{"--config", wrong, log}, 2, `unknown option "capcity"`},
		{[]string{"--config", body, "--host", "example.com", log}, 2, "form field"},
		{[]string{"--config", "absent", log}, 2, "absent"},
		{keyed("client_ip", "--nonsense", log), 2, "nonsense"},
		{keyed("client_ip", "absent.log"), 1, "no such file"},
		{keyed("client_ip", t.TempDir()), 1, "directory"},
		{keyed("client_ip", writeFile(t, "empty.log", "")), 1, "it is empty"},
		{keyed("client_ip", writeFile(t, "binary.log", "\x7fELF\x00\x00\n\x00")), 1, "binary data"},
		{keyed("client_ip", writeFile(t, "old.log", combinedFormat(time.Unix(3, 0), 0, "192.0.2.1", "GET", "/", "x", 200))), 1, "implausible time 1970"},
		{keyed("client_ip", writeFile(t, "esc\x1b[31m.log", "")), 1, `esc\x1b[31m`},
		{keyed("client_ip", writeFile(t, "cut.json", `{"ts":1`)), 1, "no valid JSON"},
		{keyed("client_ip", zipped), 1, "unexpected EOF"},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := runThrottle(t, append([]string{"replay"}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.want) || stdout != "" {
				t.Errorf("%q: got code %d, %q and\n%s\nwant code %d and %q", c.args, code, stdout, stderr, c.code, c.want)
			}
			if strings.Contains(stderr, "panic") || strings.Contains(stderr, "\x1b[31m.log") {
				t.Errorf("got %q", stderr)
			}
		})
	}
}

func TestReplayReadsItsStandardInput(t *testing.T) {
	t.Parallel()
	cmd := caddyCommand(t, "throttle", "replay", "--limit", "60 1/s", "-")
	cmd.Stdin = strings.NewReader(siteLog(combinedFormat))
	out, err := cmd.Output()
	if err != nil || !bytes.HasPrefix(out, []byte("4,")) {
		t.Errorf("got %v and %s", err, out)
	}
}

// A line that cannot be read is counted and shown, and what else could not be read is
// an error in the end.
func TestReplayGoesOnAfterWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	good := siteLog(combinedFormat)
	last := good[strings.LastIndexByte(good[:len(good)-1], '\n')+1 : len(good)-1]
	log := writeFile(t, "access.log", good+"evil \x1b]0;owned\x07\n"+last)
	stdout, stderr, code := runThrottle(t, "replay", "--limit", "60 1/s", log)
	if code != 0 || !strings.Contains(stdout, "1 of 4,922 lines") || !strings.Contains(stdout, `evil \x1b]0;owned\a`) {
		t.Errorf("got code %d, %s and\n%s", code, stderr, stdout)
	}
}

// Whether a file exists decides what static_files exempts and what try_files rewrites. The
// log is often read on another machine.
func TestAReplaySaysThatTheFilesOfTheSiteAreNotHere(t *testing.T) {
	t.Parallel()
	log := writeFile(t, "access.log", siteLog(combinedFormat))
	for site, want := range map[string]bool{
		"root * /srv/absent\nthrottle {\nexempt static_files\nzone pages {\nlimit 60 1/s\n}\n}":         true,
		"throttle {\nexempt static_files /srv/absent\nzone pages {\nlimit 60 1/s\n}\n}":                 true,
		"root * /srv/absent\ntry_files {path} /index.php\nthrottle pages 60 1/s":                        true,
		"root * /srv/absent\nthrottle pages 60 1/s\nphp_fastcgi localhost:9000":                         false, // which comes after
		"root * " + t.TempDir() + "\nthrottle {\nexempt static_files\nzone pages {\nlimit 60 1/s\n}\n}": false,
	} {
		file := writeFile(t, "Caddyfile", "http:// {\n"+site+"\n}")
		stdout, stderr, code := runThrottle(t, "replay", "--config", file, "--adapter", "caddyfile", log)
		if said := strings.Contains(stdout, "in /srv/absent, which is not here"); code != 0 || said != want {
			t.Errorf("%s: got code %d, %s and\n%s\nwant it said: %v", site, code, stderr, stdout, want)
		}
	}
}

// A replay runs beside the Caddy that serves the site, by a user who may read its logs
// and nothing else.
func TestAReplayOpensNothingOfTheConfigButItsRules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := writeFile(t, "access.log", siteLog(caddyFormat))
	site := writeFile(t, "Caddyfile", fmt.Sprintf(`{
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
	if err := json.Unmarshal([]byte(stdout), &report); code != 0 || err != nil {
		t.Fatalf("got code %d, %v, %s and %s", code, err, stdout, stderr)
	}
	if len(report.Zones) != 1 || report.Zones[0].Zone != "site" || report.Zones[0].Requests < 3600 {
		t.Errorf("got %+v, want the requests below /wiki/ in one zone", report.Zones)
	}
	made, err := os.ReadDir(dir)
	if err != nil || len(made) > 0 {
		t.Errorf("got %v and %v, want that no file is made", made, err)
	}
}
