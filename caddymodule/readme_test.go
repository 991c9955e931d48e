package caddymodule_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// readmeSite returns the configuration in the README, enforced and with a stand-in for
// PHP that answers logins with 200.
func readmeSite(t *testing.T, assets int) string {
	t.Helper()
	readme := check.Must(os.ReadFile("../README.md"))(t)
	found := regexp.MustCompile("(?s)```caddyfile\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	check.Need(t, len(found), 2, "configurations in the README, want a small one and the first one")
	folder := t.TempDir()
	for i := range assets {
		check.OK(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.css", i)), nil, 0o600))
	}
	config := found[1][1]
	n := strings.Count(config, "\n")
	check.That(t, n <= 40, "got a first configuration of %d lines, want at most 40", n)
	for _, change := range [][2]string{
		{"example.com {", "http:// {"},
		{"root * /srv/www", "root * " + folder},
		{"\t\tshadow\n", ""},
		{"php_fastcgi unix//run/php/php-fpm.sock", "@php not path *.css\n\trespond @php ok"},
	} {
		if !strings.Contains(config, change[0]) {
			t.Fatalf("the README's configuration has no %q", change[0])
		}
		config = strings.ReplaceAll(config, change[0], change[1])
	}
	return config
}

// Four people behind one address open a page with 80 assets at once. Then two of them
// write: an editor loads 40 things from PHP, and saves every ten seconds. The others
// read on.
func TestTheReadmesConfigurationRefusesNobodyWhoReadsOrWrites(t *testing.T) {
	const assets = 80
	config := readmeSite(t, assets)
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, config)
		home := s.From("203.0.113.7:1")
		get := func(target string) {
			t.Helper()
			check.Need(t, home.Get(target).Code, 200, "%s after %d charged requests", target, len(s.Logs.Lines(t, "handled request")))
		}
		for range 4 {
			get("/")
			for i := range assets {
				get(fmt.Sprintf("/%d.css", i))
			}
		}
		for range 2 {
			for i := range 40 {
				get(fmt.Sprintf("/wp-json/wp/v2/block-types?page=%d", i))
			}
		}
		for range 60 {
			time.Sleep(10 * time.Second)
			for range 2 {
				get("/wp-json/wp/v2/posts/1/autosaves")
				get("/another-page")
				get("/wp-admin/admin-ajax.php")
			}
		}
		for _, line := range s.Logs.Lines(t, "handled request") {
			throttle, _ := line["throttle"].(map[string]any)
			if level, charged := throttle["level"].(float64); charged && level > 0.75*120 {
				t.Fatalf("got the level %v, want at most three quarters of the capacity", level)
			}
		}
	})
}

// Tokens cannot be guessed, and an app asks many times with one that has expired.
func TestTheReadmesConfigurationRefusesNoTokens(t *testing.T) {
	s := servertest.Run(t, strings.Replace(readmeSite(t, 0), "respond @php ok", "respond @php 401", 1))
	for i := range 60 {
		r := servertest.Request(servertest.Someone, servertest.Site0, "Authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.x")
		check.Need(t, s.Do(r).Code, 401, "request %d", i)
	}
}

// No key reads the user of Digest, so all its users share one bucket.
func TestTheReadmesConfigurationHoldsGuessesByDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Run(t, strings.Replace(readmeSite(t, 0), "respond @php ok", "respond @php 401", 1))
		heard := 0
		for i := range 60 {
			r := servertest.Request(fmt.Sprintf("198.51.100.%d:1", i), servertest.Site0, "Authorization", `Digest username="alice", response="x"`)
			if s.Do(r).Code == 401 {
				heard++
			}
		}
		check.Equal(t, heard, 10, "guesses from 60 addresses that got through")
	})
}

// The zones of the first configuration are in Caddyfile.example, too.
func TestTheExampleBeginsWithTheFirstConfiguration(t *testing.T) {
	readme := check.Must(os.ReadFile("../README.md"))(t)
	text := check.Must(os.ReadFile("../Caddyfile.example"))(t)
	comments := regexp.MustCompile(`(?m)^\t*#.*\n`)
	whole := comments.ReplaceAllString(string(text), "")
	_, config, _ := strings.Cut(string(readme), "## The first configuration")
	zones := regexp.MustCompile(`(?s)\t\tzone pages \{.*?\n\t\}\n`).FindString(config)
	zones = strings.TrimSuffix(zones, "\t}\n")
	check.That(t, zones != "" && strings.Contains(whole, zones), "got another beginning in Caddyfile.example than the zones of the README:\n%s", zones)
}

// Its own zones, behind the proxies that it trusts.
func TestTheExampleHoldsGuesses(t *testing.T) {
	text := check.Must(os.ReadFile("../Caddyfile.example"))(t)
	site, _, _ := strings.Cut(string(text), "# The stand-in")
	s := servertest.Run(t, strings.NewReplacer("http://localhost:8080 {", "http:// {", "reverse_proxy localhost:8081", "respond 422").Replace(site))
	s.From("192.0.2.1:1").WantStatuses("/users/sign_in?user[password]=x", map[int]int{422: 5, 429: 2})
	statuses := make(map[int]int)
	for n := range 100 {
		proxy := s.From("10.0.0.1:1").With("X-Forwarded-For", fmt.Sprint("198.51.100.", n))
		statuses[proxy.Get("/?username=me&password=x").Code]++
	}
	check.That(t, statuses[422] == 10 && statuses[429] == 90, "got %v for guesses at one account, want ten of 422 and 90 of 429", statuses)
}

// Any page can show a picture of /.env, and must not have its readers blocked.
func TestTheProbesOfTheDocsBlockScannersAndNoBrowsers(t *testing.T) {
	docs := check.Must(os.ReadFile("../docs/bots.md"))(t)
	zone := regexp.MustCompile(`(?s)zone probes \{.*?\n\}\n`).FindString(string(docs))
	s := servertest.Run(t, "http:// {\nthrottle {\n"+zone+"}\nrespond ok\n}")
	for n, from := range []string{"none", "same-origin", "cross-site"} { // a bookmark, a comment, and another site
		s.Network(n).With("Sec-Fetch-Site", from).WantStatuses("/.env", map[int]int{200: 3})
		s.Network(n).Answers("/", 200)
	}
	scanner := s.From("203.0.113.9:1")
	scanner.WantStatuses("/.env", map[int]int{200: 2, 429: 1})
	scanner.Answers("/", 429)
}
