package tests

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	caddyfileInReadme = regexp.MustCompile("(?s)```caddyfile\n(.*?)```")
	jsonInReadme      = regexp.MustCompile("(?s)```json\n(\\{\n.*?)```")
)

// TestEveryConfigInTheReadmeIsValid, whole or a part of one.
func TestEveryConfigInTheReadmeIsValid(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	validate := func(name, adapter, text string) {
		t.Helper()
		cmd := caddyCommand(t, "validate", "--adapter", adapter, "--config", writeFile(t, name, text))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("got %v, want a valid config:\n%s\n%s", err, text, out)
		}
	}
	const (
		plan = "{\n throttle {\n plan partner 600 10/s\n }\n}\n"
		site = plan + "http://:1 {\n %s\n}\n"
		zone = plan + "http://:1 {\n throttle {\n %s\n }\n}\n"
		part = plan + "http://:1 {\n root * /srv\n throttle {\n zone some {\n capacity 1\n leak 1/s\n %s\n }\n }\n}\n"
	)
	secret := writeFile(t, "redis", "secret")
	valid := 0
	for _, found := range caddyfileInReadme.FindAllStringSubmatch(string(readme), -1) {
		text, whole := found[1], "%s"
		switch first, _, _ := strings.Cut(text, " "); {
		case first == "throttle":
			whole = site
		case first == "zone":
			whole = zone
		case first == "exempt":
			whole = part
		}
		text = regexp.MustCompile(`(?s)zone \w+ \{\s*\.\.\.\s*\}`).ReplaceAllString(text, "zone some {\n capacity 1\n leak 1/s\n }")
		text = strings.ReplaceAll(text, "/run/secrets/redis", secret)
		validate("Caddyfile", "caddyfile", fmt.Sprintf(whole, text))
		valid++
	}
	page := writeFile(t, "slow.html", "slow down")
	for _, found := range jsonInReadme.FindAllStringSubmatch(string(readme), -1) {
		validate("caddy.json", "", strings.ReplaceAll(found[1], "/etc/caddy/slow.html", page))
		valid++
	}
	if valid < 10 {
		t.Errorf("got %d configs in the README, want more", valid)
	}
}

// TestABurstIsSmoothedAsTheReadmeSays: of thirty requests five pass, fifteen
// wait, and ten would have to wait too long.
func TestABurstIsSmoothedAsTheReadmeSays(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	header >Verdict {http.throttle.delay}
	throttle {
		zone pages {
			capacity 60
			leak 5/s
			delay 4
			max_wait 3s
		}
	}
	respond ok
}`, port)})
	var err error
	for range stalls {
		if err = smoothed(newVisitor(t, "h1").visitAtOnce(fmt.Sprintf("http://127.0.0.1:%d/", port), 30)); err == nil {
			return
		}
		t.Logf("once more, after: %v", err)
	}
	t.Error(err)
}

// smoothed checks how long each request waited. Between the first and the last,
// less than one request leaks.
func smoothed(visits []visit) error {
	for n, visit := range visits {
		if n >= 20 {
			if visit.err != nil || visit.status != 429 {
				return fmt.Errorf("request %d: got %v, want 429", n+1, visit)
			}
			continue
		}
		want := max(0, 0.2*float64(n-4))
		delay, err := strconv.ParseFloat(visit.verdict, 64)
		if err != nil || visit.status != 200 || delay > want+1e-5 || delay < want-0.2 || visit.took.Seconds() < delay {
			return fmt.Errorf("request %d: got %v, want 200 after %v s", n+1, visit, want)
		}
	}
	return nil
}
