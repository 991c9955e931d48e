package tune_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/tune"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// fence is a block of a Caddyfile in a page.
var fence = regexp.MustCompile("(?s)```caddyfile\n(.*?)```")

// documented returns the configs of the documentation that have zones, as JSON, by where they
// are. Those that do not load by themselves are no whole config.
func documented(t *testing.T) map[string][]byte {
	t.Helper()
	pages, err := filepath.Glob("../../docs/recipes/*.md")
	check.Assume(t, err == nil && len(pages) >= 5, "got %q, %v, want the recipes", pages, err)
	all := make(map[string][]byte)
	add := func(name, caddyfile string) {
		if strings.Contains(caddyfile, "zone ") && strings.Contains(caddyfile, "throttle") {
			caddyfile = strings.ReplaceAll(strings.ReplaceAll(caddyfile, "trusted_proxies_strict", ""), "trusted_proxies static private_ranges", "")
			if adapted, err := adapted(caddyfile); err == nil {
				all[name] = adapted
			}
		}
	}
	for _, page := range append(pages, "../../README.md") {
		text := check.Must(os.ReadFile(page))(t)
		for i, block := range fence.FindAllStringSubmatch(string(text), -1) {
			add(fmt.Sprintf("%s, block %d", filepath.Base(page), i+1), block[1])
		}
	}
	example, err := os.ReadFile("../../Caddyfile.example")
	check.OK(t, err)
	add("Caddyfile.example", string(example))
	return all
}

// madeLog is a log of Caddy for some hosts, of people who log in, guessers, scrapers and programs.
func madeLog(seed uint64, hosts []string) string {
	rng := rand.New(rand.NewPCG(seed, 48))
	type request struct {
		at   float64
		line string
	}
	var all []request
	add := func(at float64, addr, agent, method, uri string, status int) {
		took := rng.ExpFloat64() * []float64{.05, .3, 3}[seed%3]
		headers := fmt.Sprintf(`"User-Agent":[%q],"Cookie":["a=b"]`, agent)
		if rng.IntN(10) == 0 {
			headers += `,"Authorization":["Basic bWU6c2VjcmV0"],"X-Api-Key":["key` + fmt.Sprint(rng.IntN(3)) + `"]`
		}
		all = append(all, request{at, fmt.Sprintf(`{"ts":%f,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":%[2]q,"client_ip":%[2]q,"proto":"HTTP/2.0","method":%[3]q,"host":%[4]q,"uri":%[5]q,"headers":{%[6]s},"tls":{"version":772}},"bytes_read":%[7]d,"duration":%[8]f,"size":%[9]d,"status":%[10]d}`+"\n",
			float64(logStart.Unix())+at+took, addr, method, hosts[rng.IntN(len(hosts))], uri, headers, rng.IntN(3000), took, rng.IntN(200_000), status)})
	}
	logIns := []string{"/wp-login.php", "/users/sign_in", "/login", "/session", "/index.php?title=Special:UserLogin"}
	pages := []string{"/", "/index.php", "/?s=%d", "/wiki/%d", "/projects/%d", "/api/v1/orders/%d", "/wp-json/%d", "/search?q=%d", "/.env", "/wp-admin/", "/w/index.php?title=%d&diff=prev"}
	for p := range 30 {
		addr, at := fmt.Sprintf("198.51.100.%d", p), rng.Float64()*2*86400
		if p%5 == 0 {
			addr = fmt.Sprintf("2001:db8:%x::%x", p, rng.IntN(9))
		}
		for n := range 1 + rng.IntN(20) {
			add(at, addr, "Mozilla/5.0", "GET", strings.ReplaceAll(pages[rng.IntN(4)], "%d", fmt.Sprint(n)), 200)
			add(at, addr, "Mozilla/5.0", "GET", "/assets/site.css", 200)
			if rng.IntN(5) == 0 {
				add(at+1, addr, "Mozilla/5.0", "POST", logIns[seed%5], []int{302, 302, 200, 401}[rng.IntN(4)])
			}
			at += rng.ExpFloat64() * 20
		}
	}
	for s := range 3 + int(seed%3) {
		at, every := rng.Float64()*86400, .2+rng.Float64()*10
		for n := range 150 + rng.IntN(200) {
			at += rng.ExpFloat64() * every
			switch addr := fmt.Sprintf("203.0.113.%d", s); s % 2 {
			case 0:
				add(at, addr, "python-requests/2.32", "GET", strings.ReplaceAll(pages[rng.IntN(len(pages))], "%d", fmt.Sprint(n)), []int{200, 200, 404}[rng.IntN(3)])
			default:
				add(at, addr, "Mozilla/5.0", "POST", logIns[seed%5], []int{200, 401, 403, 302}[rng.IntN(4)])
			}
		}
	}
	slices.SortStableFunc(all, func(a, b request) int { return int(1e6 * (a.at - b.at)) })
	var b strings.Builder
	for _, r := range all {
		b.WriteString(r.line)
	}
	return b.String()
}

// withLimit returns a config with another limit of a zone.
func withLimit(t *testing.T, config []byte, zone, limit string) []byte {
	t.Helper()
	var whole any
	check.OK(t, json.Unmarshal(config, &whole))
	var change func(any)
	change = func(part any) {
		switch part := part.(type) {
		case []any:
			for _, element := range part {
				change(element)
			}
		case map[string]any:
			if part["name"] == zone && part["limit"] != nil {
				part["limit"] = limit
			}
			for _, element := range part {
				change(element)
			}
		}
	}
	change(whole)
	changed := check.Must(json.Marshal(whole))(t)
	return changed
}

// TestRecommendedFiguresAreThoseOfAReplay: for each config of the documentation and many logs,
// what recommend says of a limit is what replay does with it, and both take the same for people.
func TestRecommendedFiguresAreThoseOfAReplay(t *testing.T) {
	configs := documented(t)
	names := make([]string, 0, len(configs))
	for name := range configs {
		names = append(names, name)
	}
	slices.Sort(names)
	host := regexp.MustCompile(`"host":\["([^"]+)"`)
	refusing, corrected := 0, 0
	for seed := range check.OrShort[uint64](20, 10) {
		name := names[int(seed)%len(names)]
		tried := []string{name}
		if os.Getenv("TEST_LONG") != "" {
			tried = names
		}
		for _, name := range tried {
			hosts := []string{"localhost"}
			for _, match := range host.FindAllStringSubmatch(string(configs[name]), -1) {
				hosts = append(hosts, match[1])
			}
			log := writeFile(t, "access.log", madeLog(seed, hosts[min(1, len(hosts)-1):]))
			file := writeFile(t, "caddy.json", string(configs[name]))
			out, complaint, err := run(t.Context(), "recommend", "--json", "--config", file, log)
			if err != nil {
				check.Assume(t, strings.Contains(complaint, "is left out"), "%s: got %v: %s", name, err, complaint)
				continue
			}
			found := new(tune.Recommendation)
			check.OK(t, json.Unmarshal([]byte(out), found))
			for _, z := range found.Zones {
				best := z.Units.Best()
				pasted := writeFile(t, "pasted.json", string(withLimit(t, configs[name], z.Zone, best.Text())))
				r := ranJSON[tune.Report](t, "replay", "--config", pasted, "--zone", z.Zone, log)
				check.Need(t, len(r.Zones), 1, "%s, zone %s: zones", name, z.Zone)
				d := r.Zones[0]
				got := fmt.Sprint(d.Requests, d.Keys, d.RefusedKeys, d.RefusedPeople, d.Decisions["refused"]+d.Decisions["shadow_refused"])
				if want := fmt.Sprint(z.Requests, z.Keys, best.RefusedKeys, best.RefusedPeople, best.RefusedRequests); got != want {
					t.Errorf("log %d, %s, zone %s, limit %s: a replay has %s requests, keys, keys and people refused, and refusals, recommend %s", seed, name, z.Zone, best.Text(), got, want)
				}
				for i, k := range d.Worst {
					if len(z.Refused) > i && (z.Refused[i].Key != k.Key || z.Refused[i].Looks != k.Looks) {
						t.Errorf("log %d, %s, zone %s: a replay refuses %+v, recommend %+v", seed, name, z.Zone, k, z.Refused[i])
					}
				}
				if best.RefusedRequests > 0 {
					refusing++
				}
				if z.Units.Load != float64(z.Requests) {
					corrected++
				}
			}
		}
	}
	check.That(t, refusing >= 10 && corrected >= 5, "got %d limits that refuse, and %d zones whose costs are not 1, want ten and five", refusing, corrected)
	t.Logf("%d limits refuse, %d zones have other costs, of %d configs", refusing, corrected, len(names))
}

// TestPeopleAreJudgedByAllTheirRequests: in a zone without assets too, and by the network that
// the zone's key has.
func TestPeopleAreJudgedByAllTheirRequests(t *testing.T) {
	var lines []combinedLine
	for n := range 8 {
		addr := fmt.Sprintf("2001:db8:0:1::%x", n)
		lines = append(lines, combinedLine{time.Duration(n) * time.Minute, addr, "POST", "/login", "Mozilla/5.0"})
		lines = append(lines, combinedLine{time.Duration(n)*time.Minute + time.Second, fmt.Sprintf("2001:db8:0:2::%x", n), "GET", "/style.css", "Mozilla/5.0"})
	}
	log := writeLog(t, lines...)
	for key, people := range map[string]int{"ipv6 64": 0, "ipv6 48": 1} {
		config := writeFile(t, "Caddyfile", ":80 {\nthrottle {\nzone login {\nmatch path /login\nlimit 3 1/d\nkey client_ip {\n"+key+"\n}\n}\n}\n}\n")
		z := ranJSON[tune.Report](t, "replay", "--config", config, log).Zones[0]
		best := recommended(t, log, "--config", config, "--check", "3 1/d").Zones[0].Units.Best()
		check.That(t, z.RefusedPeople == people && best.RefusedPeople == people && z.RefusedKeys == 1, "%s: got %+v and %+v, want %d people of one key refused", key, z, best, people)
	}
}

// TestTheHostsOfALogAreSaidWhereTheConfigHasOthers, with how many requests each has.
func TestTheHostsOfALogAreSaidWhereTheConfigHasOthers(t *testing.T) {
	log := writeFile(t, "access.log", madeLog(1, []string{"www.example.com"}))
	config := writeFile(t, "Caddyfile", "example.com {\nthrottle pages 5 1/s\n}\n")
	for _, command := range []string{"recommend", "replay"} {
		out := ran(t, command, "--config", config, log)
		want := "requests for hosts of which the config has no site, such as www.example.com (change that in a copy to try it): "
		check.That(t, strings.Contains(out, want), "%s: got\n%s\nwant %q", command, out, want)
	}
}

// TestAZoneWithAFieldIsJudgedByPostRequests, or by those to the address of logins.
func TestAZoneWithAFieldIsJudgedByPostRequests(t *testing.T) {
	var lines []combinedLine
	for n := range 9 {
		lines = append(lines, combinedLine{time.Duration(n) * time.Second, "203.0.113.9", "POST", "/login", "x"}, combinedLine{time.Duration(n) * time.Second, "203.0.113.9", "GET", "/login", "x"})
	}
	lines = append(lines, combinedLine{time.Minute, "203.0.113.9", "POST", "/comment?a=b", "x"})
	log := writeLog(t, lines...)
	config := writeFile(t, "Caddyfile", ":80 {\nthrottle {\nzone login {\nfield password\nlimit 5 1/d\n}\n}\n}\n")
	for path, requests := range map[string]int{"": 10, "/login": 9, "/log*": 9, "/comment": 1} {
		flags := []string{"replay", "--config", config, log}
		if path != "" {
			flags = append(flags, "--login", path)
		}
		r := ranJSON[tune.Report](t, flags...)
		if z := r.Zones[0]; z.Requests != requests || !strings.Contains(strings.Join(r.Notes, "\n"), "it is judged by the POST requests") {
			t.Errorf("--login %s: got %d requests and the notes %q, want %d", path, z.Requests, r.Notes, requests)
		}
	}
}

// TestWhoSentMostIsAlwaysShown, with 404s and logins, and no word of banning a monitor.
func TestWhoSentMostIsAlwaysShown(t *testing.T) {
	lines := mixedLines()
	for n := range 5000 {
		lines = append(lines, combinedLine{time.Duration(n) * 20 * time.Second, "10.0.0.5", "GET", "/up", "ELB-HealthChecker/2.0"})
	}
	slices.SortStableFunc(lines, func(a, b combinedLine) int { return cmp.Compare(a.at, b.at) })
	log := writeLog(t, lines...)
	config := writeFile(t, "Caddyfile", ":80 {\nthrottle pages 5 1/d\n}\n")
	for _, args := range [][]string{{"recommend", log}, {"replay", "--config", config, log}} {
		out := ran(t, args...)
		for _, want := range []string{"Who sent the most:", "a monitor or health check\n    mostly /up, as ELB-HealthChecker/2.0\n", "Who sent the most logins (POST):", "203.0.113.10 ", "%      -        0 "} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: got\n%s\nwant %q", args[0], out, want)
			}
		}
		if strings.Contains(out, "ban it") || args[0] == "recommend" && !strings.Contains(out, "It seems to be a monitor or health check. If it is yours, let it pass, by exempt client_ip in the global options. To judge the rest, give this command - instead of LOG, and the output of zgrep -hvwF '10.0.0.5' LOG.") {
			t.Errorf("got\n%s\nwant a health check as such", out)
		}
	}
}
